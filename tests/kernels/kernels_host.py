"""Kernels on the host: g++ compiles the same .cu that a GPU runs, with tests/kernels/cuda_shim.h in the place of CUDA.

What runs is a `Launch` as the launcher prepared it, so the grid, the chosen variant and the order and types of the
arguments are under test as well as the arithmetic. `on_gpu` has the launcher run it on a GPU. Either way it takes
NumPy arrays, and what the kernel writes stands in them afterwards. On a GPU they lie as they lie here: as far behind a
border, with the same strides, rows that overlap or have gaps between them.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from kit.kept import Kept

from dali_feed.kernels.launch import Launch, Launcher

_HERE = Path(__file__).resolve().parent
_SOURCES = _HERE.parents[1] / "kernels"
# No contraction: a*b+c must stay two roundings where a kernel writes it so. Kernels read words through bytes.
_FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing")
# It is the compiler that costs here and not the run, so this one does not optimize.
_SANITIZE = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1")
_CTYPES: dict[np.dtype[Any], type[ctypes._SimpleCData[Any]]] = {
    np.dtype(np.uint64): ctypes.c_uint64,
    np.dtype(np.int32): ctypes.c_int32,
    np.dtype(np.float32): ctypes.c_float,
}
_Index3 = ctypes.c_uint * 3


class OnDevice:
    """A NumPy array that says it lies on a GPU: what a launcher sees of a CuPy array or a tensor."""

    def __init__(self, array: npt.NDArray[Any], **changes: object) -> None:
        self.array = array  # keeps the memory
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3, **changes}


@dataclass(frozen=True)
class HostKernel:
    """Every variant of one kernel, compiled; `run` executes a prepared launch on host memory."""

    variants: tuple[tuple[str, ...], ...]
    addresses: tuple[tuple[int, int], ...]  # of what runs a kernel of that type, and of the kernel
    library: ctypes.CDLL  # keeps the code

    def run(self, job: Launch, begin: tuple[int, int, int] = (0, 0, 0)) -> None:
        """Run the blocks from `begin` on to the end of the grid."""
        arguments = job.arguments.values()
        types = (_CTYPES[argument.dtype] for argument in arguments)
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *(ctypes.POINTER(_Index3),) * 4, *types)
        runner, kernel = self.addresses[self.variants.index(job.options)]
        corners = [ctypes.byref(_Index3(*corner)) for corner in (job.grid, job.block, begin, job.grid)]
        function(runner)(kernel, *corners, *(argument.item() for argument in arguments))


@functools.cache
def compile_for_host(kept: Kept, name: str, variants: tuple[tuple[str, ...], ...]) -> HostKernel:
    """Compile `kernels/name.cu`, each tuple of -D options a variant, into one shared library."""
    kernels = [f"&variant_{i}::{name}_{i}" for i in range(len(variants))]
    entries = ", ".join(f"(void*)&shim::Host<decltype({kernel})>::run, (void*){kernel}" for kernel in kernels)
    table = f'extern "C" {{ extern void* const shim_table[]; void* const shim_table[] = {{{entries}}}; }}\n'
    binary = _compile(kept, name, variants, table, f"{name}.so", ("-shared", "-fPIC"))
    library = ctypes.CDLL(str(binary))
    addresses = (ctypes.c_size_t * 2 * len(variants)).in_dll(library, "shim_table")
    return HostKernel(variants, tuple((runner, kernel) for runner, kernel in addresses), library)


def compile_sanitized(kept: Kept, name: str, variants: Sequence[tuple[str, ...]]) -> Path:
    """Compile the same into a program with the address and undefined-behaviour sanitizers, for `run_sanitized`."""
    kernels = [f"&variant_{i}::{name}_{i}" for i in range(len(variants))]
    served = "".join(
        f"    case {i}: shim::Host<decltype({kernel})>::serve({kernel}); break;\n" for i, kernel in enumerate(kernels)
    )
    main = (
        "int main() {\n  unsigned variant;\n  while (std::fread(&variant, 4, 1, stdin) == 1) switch (variant) {\n"
        f"{served}  }}\n}}\n"
    )
    return _compile(kept, name, variants, main, f"{name}.sanitized", _SANITIZE)


def run_sanitized(
    program: Path, variants: Sequence[tuple[str, ...]], jobs: Sequence[tuple[Launch, Sequence[npt.NDArray[Any]]]]
) -> bytes:
    """Run jobs in one process, each with the arrays that its pointers are of.

    Returns the bytes of all outputs in order. A finding of a sanitizer fails the test with its report.
    """
    stream = bytearray()
    for job, arrays in jobs:
        memory = {array.ctypes.data: array.tobytes() for array in arrays}
        stream += struct.pack("<7I", variants.index(job.options), *job.grid, *job.block)
        for argument in job.arguments.values():
            if argument.dtype == np.uint64:
                content = memory[int(argument)] if argument else b""
                stream += struct.pack("<Q", len(content)) + content
            else:
                stream += argument.tobytes()
    done = subprocess.run([program], input=bytes(stream), capture_output=True, check=False)
    if done.returncode:
        pytest.fail(f"{program.name} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')[:4000]}")
    return done.stdout


def _compile(
    kept: Kept, name: str, variants: Sequence[tuple[str, ...]], tail: str, output: str, flags: tuple[str, ...]
) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        msg = f"g++ is missing, so kernels/{name}.cu was NOT checked against its reference: apt-get install g++"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(msg)
    text = '#include "cuda_shim.h"\n'
    for i, options in enumerate(variants):
        defines = [option.removeprefix("-D").partition("=") for option in options]
        text += f"namespace variant_{i} {{\n#define {name} {name}_{i}\n"
        text += "".join(f"#define {key} {value or 1}\n" for key, _, value in defines)
        text += f'#include "{name}.cu"\n#undef {name}\n' + "".join(f"#undef {key}\n" for key, _, _ in defines) + "}\n"
    command = [compiler, *_FLAGS, *flags]
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    beside = [path.read_text(encoding="utf-8") for path in sorted([*_HERE.glob("*.h"), *_SOURCES.glob("*.cu*")])]

    def make(binary: Path) -> None:
        source = binary.with_suffix(".cpp")
        source.write_text(text + tail, encoding="utf-8")
        words = [*command, f"-I{_HERE}", f"-I{_SOURCES}", str(source), "-o", str(binary)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        source.unlink()
        if done.returncode:
            pytest.fail(f"kernels/{name}.cu does not compile for the host:\n{done.stderr[:4000]}")

    return kept.file(output, [version, *command, text + tail, *beside], make)


def moved(value: Any, put: Callable[[npt.NDArray[Any]], Any]) -> Any:
    """Arguments with each array, those in a tuple, a dict or a `Mix` too, where `put` puts it."""
    if isinstance(value, np.ndarray):
        return put(value)
    if isinstance(value, dict):
        return {name: moved(each, put) for name, each in value.items()}
    if type(value) is tuple:
        return tuple(moved(each, put) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(moved(getattr(value, each.name), put) for each in dataclasses.fields(value)))
    return value


_BORDER = 256


@dataclass
class _Device:
    """Copies of host arrays in device memory, of torch's."""

    copies: list[tuple[npt.NDArray[Any], npt.NDArray[np.uint8], Any]] = field(default_factory=list)

    def put(self, array: npt.NDArray[Any]) -> Any:
        """All bytes from the first element to the last, and an array over them."""
        size = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)) + array.itemsize
        shift = array.ctypes.data % _BORDER
        span = np.frombuffer((ctypes.c_uint8 * size).from_address(array.ctypes.data), np.uint8)
        room = torch.empty(shift + size, dtype=torch.uint8, device="cuda")
        room[shift:] = torch.from_numpy(span.copy()).cuda()
        self.copies.append((array, span, room[shift:]))
        return OnDevice(array, data=(room.data_ptr() + shift, False), strides=array.strides)

    def fetch(self) -> None:
        for array, span, room in self.copies:
            if array.flags.writeable:
                span[...] = room.cpu().numpy()


def on_gpu(launcher: Launcher[Any], arguments: dict[str, Any]) -> Launch:
    """Have a kernel launched with copies of these arrays; what it wrote stands in them then."""
    device = _Device()
    there = moved(arguments, device.put)
    launcher(**there, stream=torch.cuda.current_stream())
    device.fetch()
    return launcher.prepare(**there)
