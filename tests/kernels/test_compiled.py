"""What NVRTC and ptxas make of each kernel's variants: they compile, keep what bits need, and move whole vectors."""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from cupy_backends.cuda.libs import nvrtc
from kernel_cases import DTYPES, KERNELS, Options
from kit.kept import Kept

from dali_feed.kernels import launch

pytestmark = pytest.mark.slow

# CuPy adds these to whatever it compiles and cannot be told not to; a kernel whose last bits matter has to stand them.
CUPY_ADDS = ("-ftz=true", "--device-as-default-execution-space")
ARCHES = ("sm_75", "sm_80", "sm_90", "sm_100")
WHOLE_VECTORS = tuple(
    (f"-DOUT_{dtype.upper()}", "-DCHANNELS_LAST=1", f"-DPIXELS={pixels}", "-DMIX=1", "-DVECTOR=16")
    for pixels, dtype in itertools.product((2, 4), DTYPES)
)


def some_of(variants: tuple[Options, ...], arch: str) -> list[Options]:
    """A share of many variants, so that each meets an architecture, and each of their options meets this one."""
    chosen = list(variants[ARCHES.index(arch) :: len(ARCHES)] if len(variants) > len(ARCHES) else variants)
    for variant in variants:
        if not {*variant} <= {*itertools.chain(*chosen)}:
            chosen.append(variant)
    return chosen


def source_of(name: str, variants: tuple[Options, ...]) -> str:
    """`name`.cu so many times, each with its options, as kernels `name`_0, `name`_1, ..."""
    text = ""
    for n, options in enumerate(variants):
        defines = [option.removeprefix("-D").partition("=")[::2] for option in options] + [(name, f"{name}_{n}")]
        text += "".join(f"#define {key} {value or 1}\n" for key, value in defines)
        text += f"namespace variant_{n} {{\n{launch._source(name)}}}\n"
        text += "".join(f"#undef {key}\n" for key, _ in defines)
    return text


def compiled(kept: Kept, name: str, arch: str, variants: tuple[Options, ...], kind: str = "ptx") -> Path:
    """What NVRTC makes of `name`.cu for `arch`, "sm_90": its "ptx", or the "cubin" that it is assembled to.

    Both need no GPU, and a wrong instruction fails here, as with an "sm_" architecture NVRTC assembles the code.
    """
    words = (f"--gpu-architecture={arch}", *launch.OPTIONS, *CUPY_ADDS)
    source = source_of(name, variants)

    def make(path: Path) -> None:
        program = nvrtc.createProgram(source, f"{name}.cu", [], [])
        try:
            nvrtc.compileProgram(program, words)
        except nvrtc.NVRTCError:
            pytest.fail(f"{name} for {arch}, {variants}:\n{nvrtc.getProgramLog(program)}")
        # Of a cubin CuPy takes a last byte off, as if it were text.
        path.write_bytes(nvrtc.getPTX(program) if kind == "ptx" else nvrtc.getCUBIN(program) + b"\0")

    return kept.file(f"{name}.{arch}.{kind}", [str(nvrtc.getVersion()), source, *words], make)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_nvrtc_compiles_the_variants(kept: Kept, name: str, arch: str, every: bool) -> None:
    """Each assembles for each architecture, keeps subnormals, stays in registers and moves whole vectors."""
    variants = KERNELS[name].variants
    for options in variants if every else some_of(variants, arch):
        ptx = compiled(kept, name, arch, (options,)).read_text()
        assert f".entry {name}_0(" in ptx, options
        assert ".ftz" not in ptx, f"CuPy's -ftz=true reached an operation that can round: {options}"
        assert ".local" not in ptx, f"an index is not a constant: {options}"
        # On sm_75 bfloat16 is rounded by integer arithmetic.
        assert ("cvt.rn.bf16.f32" in ptx) == (options[0] == "-DOUT_BFLOAT16" and arch != "sm_75"), options
        if name in {"augment", "jitter"}:
            assert ".f64" not in ptx, options
            assert "st.global.v4." in ptx or "-DVECTOR=16" not in options, options
        elif "-DPIXELS=4" in options and not {"-DOUT_UINT8", "-DVECTOR=8"} & {*options}:
            assert "st.global.v4." in ptx, options  # four bytes, and eight, may also be one store


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("name", "variants"),
    [("finish", WHOLE_VECTORS), *((name, KERNELS[name].variants[:1]) for name in ("augment", "jitter"))],
)
def test_assembled_they_store_sixteen_bytes_at_a_time(
    kept: Kept, name: str, variants: tuple[Options, ...], arch: str
) -> None:
    """All that usual variants write are stores of 16 bytes, and all they keep lies in registers."""
    assert {*variants} <= {*KERNELS[name].variants}
    found = instructions(kept, name, arch, variants)
    assert len(found) == len(variants)
    for options, counts in zip(variants, found, strict=True):
        assert named(counts, "STG") == {"STG.E.128"}, options
        assert not named(counts, "STL") | named(counts, "LDL"), options


_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ +)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)


def nvdisasm() -> str:
    """The disassembler's path; the test is skipped where there is none."""
    found = importlib.util.find_spec("triton")
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / "backends" / "nvidia" / "bin" / "nvdisasm"
        if path.is_file():
            return str(path)
    pytest.skip("no nvdisasm: triton, which torch for CUDA comes with, is not installed")


def instructions(kept: Kept, name: str, arch: str, variants: tuple[Options, ...]) -> list[Counter[str]]:
    """How many instructions of each name each variant of `name`.cu has when it is assembled for `arch`, "sm_90"."""
    tool = nvdisasm()
    binary, about = compiled(kept, name, arch, variants, "cubin"), Path(tool).stat()

    def make(path: Path) -> None:
        path.write_bytes(subprocess.run([tool, str(binary)], capture_output=True, check=True).stdout)

    made_from = binary.name, tool, str(about.st_size), str(about.st_mtime_ns)  # its name says what it was made from
    text = kept.file(f"{name}.{arch}.sass", made_from, make).read_text()
    kernel = re.compile(rf"\n\.text\.{name}_(\d+):\n(.*?)(?=\n\.text\.|\Z)", re.DOTALL)
    kernels = sorted((int(n), code) for n, code in kernel.findall(text))
    return [Counter(_INSTRUCTION.findall(code)) for _, code in kernels]


def named(found: Counter[str], name: str) -> set[str]:
    """The forms in which an instruction is there: "STG" gives {"STG.E.128"}."""
    return {each for each in found if each.split(".")[0] == name}
