"""What ptxas makes of a kernel: its instructions, read with the nvdisasm that triton, torch's compiler, brings."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from kit.kept import Kept

from dali_feed.kernels import launch

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
