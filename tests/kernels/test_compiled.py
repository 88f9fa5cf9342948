"""What NVRTC and ptxas make of each kernel's variants: they compile, keep what bits need, and move whole vectors."""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import unpack_cases
from finish_cases import DTYPES, JITTER_VARIANTS, VARIANTS
from kernels_host import in_turn
from kit.kept import Kept, PtxOf

from dali_feed.errors import EngineError
from dali_feed.kernels import launch

pytestmark = pytest.mark.slow

KERNELS = {"finish": VARIANTS, "jitter": JITTER_VARIANTS, "unpack": unpack_cases.VARIANTS}
WHOLE_VECTORS = tuple(
    (f"-DOUT_{dtype.upper()}", "-DCHANNELS_LAST=1", f"-DPIXELS={pixels}", "-DMIX=1", "-DVECTOR=16")
    for pixels, dtype in itertools.product((2, 4), DTYPES)
)


def of(name: str, rows: Any, arches: list[str]) -> list[Any]:
    """Parameters for variants of a kernel."""
    return [
        pytest.param(name, *each.values, id=f"{name} {each.id}", marks=each.marks) for each in in_turn(rows, arches)
    ]


@pytest.mark.parametrize(
    ("name", "options", "arch"),
    [each for name, rows in KERNELS.items() for each in of(name, rows, ["sm_75", "sm_80", "sm_90", "sm_100"])],
)
def test_nvrtc_compiles_every_variant(compiled_ptx: PtxOf, name: str, options: tuple[str, ...], arch: str) -> None:
    """Each assembles for each architecture, keeps subnormals, stays in registers and moves whole vectors."""
    ptx = compiled_ptx(name, arch, options).decode()
    assert f".entry {name}(" in ptx
    assert ".ftz" not in ptx, "CuPy's -ftz=true reached an operation that can round"
    assert ".local" not in ptx, "an index is not a constant"
    # On sm_75 bfloat16 is rounded by integer arithmetic.
    assert ("cvt.rn.bf16.f32" in ptx) == (options[0] == "-DOUT_BFLOAT16" and arch != "sm_75")
    if name == "jitter":
        assert ".f64" not in ptx
        assert "st.global.v4." in ptx or options[2] != "-DVECTOR=16"
    elif name == "finish" and options[2] == "-DPIXELS=4" and options[0] != "-DOUT_UINT8":
        assert "st.global.v4." in ptx or options[4] == "-DVECTOR=8"  # four bytes may also be one 32-bit store


@pytest.mark.parametrize(
    ("name", "options", "arch"),
    [
        *of("finish", WHOLE_VECTORS, ["sm_80", "sm_90"]),
        *(("jitter", JITTER_VARIANTS[0], arch) for arch in ("sm_80", "sm_90")),
    ],
)
def test_assembled_it_stores_sixteen_bytes_at_a_time(
    kept: Kept, name: str, options: tuple[str, ...], arch: str
) -> None:
    """All that a usual variant writes are stores of 16 bytes, and all it keeps lies in registers."""
    assert options in KERNELS[name]
    found = instructions(kept, name, arch, options)
    assert named(found, "STG") == {"STG.E.128"}
    assert not named(found, "STL") | named(found, "LDL")


@pytest.mark.parametrize(
    ("name", "arch", "options", "told"),
    [
        ("finish", "sm_90", (), "define one of OUT_FLOAT32"),
        ("finish", "sm_1", VARIANTS[0], "INVALID_OPTION"),
        ("unpack", "sm_90", KERNELS["unpack"][0][1:], "define one of OUT_FLOAT32"),
        (
            *("unpack", "sm_90", ("-DOUT_UINT8", "-DBITS=10", *KERNELS["unpack"][0][2:])),
            "uint8 is for elements of 8 bits",
        ),
    ],
)
def test_a_failed_compilation_says_what_and_where(name: str, arch: str, options: tuple[str, ...], told: str) -> None:
    """The error names kernel and architecture and carries the compiler's first lines."""
    with pytest.raises(EngineError, match=f"kernel {name} for {arch}, options(?s:.*){told}"):
        launch.compile_ptx(name, arch, options)


_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ +)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)


def nvdisasm() -> str:
    """The disassembler's path; the test is skipped where there is none."""
    found = importlib.util.find_spec("triton")
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / "backends" / "nvidia" / "bin" / "nvdisasm"
        if path.is_file():
            return str(path)
    pytest.skip("no nvdisasm: triton, which torch for CUDA comes with, is not installed")


def instructions(kept: Kept, name: str, arch: str, options: tuple[str, ...]) -> Counter[str]:
    """How many instructions of each name `name`.cu has when it is assembled for `arch`, "sm_90"."""
    from cupy_backends.cuda.libs import nvrtc

    tool = nvdisasm()
    words = (f"--gpu-architecture={arch}", *launch.OPTIONS, *launch._CUPY_ADDS, *options)

    def make(binary: Path) -> None:
        program = nvrtc.createProgram(launch._source(name), f"{name}.cu", [], [])
        nvrtc.compileProgram(program, words)
        binary.write_bytes(nvrtc.getCUBIN(program) + b"\0")  # CuPy takes a last byte off, as if this were text

    binary = kept.file(f"{name}.{arch}.cubin", [str(nvrtc.getVersion()), launch._source(name), *words], make)
    done = subprocess.run([tool, str(binary)], capture_output=True, text=True, check=True)
    return Counter(_INSTRUCTION.findall(done.stdout))


def named(found: Counter[str], name: str) -> set[str]:
    """The forms in which an instruction is there: "STG" gives {"STG.E.128"}."""
    return {each for each in found if each.split(".")[0] == name}
