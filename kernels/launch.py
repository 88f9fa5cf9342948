"""From a .cu file to a launch: compiled once per device and options, every failure named.

Law: nothing is allocated, copied or waited for on the way to a launch. Nothing here changes the current device: CuPy
would put back what it was told before, whatever torch has made of it since.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, Generic, ParamSpec

import numpy as np

from dali_feed.errors import ConfigError, EngineError
from dali_feed.packages import needed

log = logging.getLogger("dali_feed")

# a*b+c stays two roundings in every kernel; one that wants a fused multiply-add says so.
OPTIONS = ("--std=c++17", "-fmad=false")
_LOG_LINES = 12

_INCLUDE = re.compile(r'^#include "(_\w+\.cuh)"\n', re.MULTILINE)

P = ParamSpec("P")

_kernels: dict[tuple[str, tuple[str, ...], int], Any] = {}  # by name, options and device
_lock = threading.Lock()  # guards them: each is compiled once


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """What `__cuda_array_interface__` says: `typestr` in NumPy's spelling, `strides` in bytes and never None."""

    pointer: int
    shape: tuple[int, ...]
    typestr: str
    strides: tuple[int, ...]
    read_only: bool

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(self.typestr[2:])

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, which is the whole range of a dense array."""
        return math.prod(self.shape) * self.itemsize

    def is_dense(self, order: tuple[int, ...] | None = None) -> bool:
        """Whether the elements lie without holes, dimensions taken outermost first in `order` (default: as they are).

        The stride of a dimension of size 1 is never used, so it does not count.
        """
        step = self.itemsize
        for axis in reversed(order or range(len(self.shape))):
            if self.shape[axis] != 1 and self.strides[axis] != step:
                return False
            step *= self.shape[axis]
        return True


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch, complete. `stream` as `launch` takes it.

    `arguments` are NumPy scalars of the kernel's types in its order, a pointer a uint64, by the names that users know.
    """

    kernel: str
    options: tuple[str, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: Mapping[str, Any]
    stream: object = None


class Launcher(Generic[P]):
    """A kernel: called with its arguments, it is launched. `prepare` only makes the launch of them, and is pure."""

    def __init__(self, prepare: Callable[P, Launch]) -> None:
        self.prepare = prepare
        functools.update_wrapper(self, prepare)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Enqueue it; see `launch`."""
        launch(self.prepare(*args, **kwargs))


def device_array(subject: str, name: str, array: object) -> DeviceArray:
    """Read `array.__cuda_array_interface__`; ConfigError, opening with `subject`, where there is none to be used."""
    try:
        interface = array.__cuda_array_interface__  # type: ignore[attr-defined]
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:  # torch raises each of these for some tensor
        raise ConfigError(
            f"{subject}: {name} must be an array on a GPU (one with __cuda_array_interface__), found "
            f"{type(array).__name__}: {error}"
        ) from error
    try:
        dtype = np.dtype(interface["typestr"])  # DALI writes "=B" where others write "|u1"
    except TypeError as error:
        msg = f"{subject}: {name} must have a dtype that NumPy knows, found {interface['typestr']!r}"
        raise ConfigError(msg) from error
    shape = tuple(int(size) for size in interface["shape"])
    pointer, read_only = interface["data"]
    strides = interface.get("strides")
    if interface.get("mask") is not None:
        raise ConfigError(f"{subject}: {name} must have no mask (give the data alone), found one")
    if strides is None:
        strides = [math.prod(shape[axis + 1 :]) * dtype.itemsize for axis in range(len(shape))]
    known = DeviceArray(int(pointer), shape, dtype.str, tuple(int(step) for step in strides), bool(read_only))
    if known.pointer % known.itemsize:
        rule = f"must begin at a multiple of its element size, {known.itemsize} bytes"
        raise ConfigError(f"{subject}: {name} {rule}, found {known.pointer:#x}")
    return known


@functools.cache
def compiles() -> bool:
    """Whether kernels can be compiled here: CuPy and NVRTC load. Where they do not, the log says why, once."""
    try:
        load_cupy()  # first: whatever of CuPy is imported makes its folder
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        log.warning("kernels: cannot be compiled (%s); torch's operations, which are slower, do their work", error)
        return False
    return True


def load_cupy() -> Any:
    """CuPy. Where its folder of compiled kernels cannot be written to, its import would raise: they stay in memory."""
    if "cupy" not in sys.modules and not _can_keep(os.environ.get("CUPY_CACHE_DIR", "~/.cupy/kernel_cache")):
        os.environ.update(CUPY_CACHE_IN_MEMORY="1", CUPY_CACHE_DIR=tempfile.gettempdir())
    with needed():
        import cupy
    return cupy


def _can_keep(folder: str) -> bool:
    try:
        os.makedirs(os.path.expanduser(folder), exist_ok=True)
    except OSError:
        return False
    return os.access(os.path.expanduser(folder), os.W_OK)


def kernel(name: str, options: tuple[str, ...]) -> Any:
    """The `cupy.RawKernel` `name` of `name`.cu with `options`, compiled for the current device at first, then kept.

    Raises EngineError with the compiler's first lines.
    """
    cupy = load_cupy()
    key = (name, options, cupy.cuda.runtime.getDevice())
    with _lock:
        if key not in _kernels:
            from cupy.cuda.compiler import CompileException

            try:
                module = cupy.RawModule(code=_source(name), backend="nvrtc", options=(*OPTIONS, *options))
                function = module.get_function(name)
                function.compile()  # otherwise it waits for the first launch, and so would its error
            except (CompileException, OSError, RuntimeError) as error:
                arch = f"sm_{cupy.cuda.Device().compute_capability}"
                raise _failed(name, arch, options, str(error)) from error
            _kernels[key] = function
        return _kernels[key]


def launch(job: Launch) -> None:
    """Enqueue `job` on its stream of the current device, on which its arrays lie, and return at once.

    A stream is a cudaStream_t as an int, a CuPy or torch stream, or None for CuPy's current stream of that device.
    Raises ConfigError for another kind of stream and for arrays elsewhere, EngineError if the kernel cannot be compiled
    or launched.
    """
    # All that CuPy asks of a stream is its `ptr`; its own wrapper class differs between CuPy 13 and 14.
    stream = None if job.stream is None else SimpleNamespace(ptr=_handle(job.kernel, job.stream))
    device = int(load_cupy().cuda.runtime.getDevice())
    _check_places(job, device)
    function = kernel(job.kernel, job.options)
    try:
        function(job.grid, job.block, tuple(job.arguments.values()), stream=stream)
    except RuntimeError as error:  # CUDADriverError is one
        raise EngineError(
            f"kernel {job.kernel} on cuda:{device}: CUDA must accept the launch; it refuses grid {job.grid}, block "
            f"{job.block}: {error}. An error of earlier work on this GPU shows here too: with "
            "CUDA_LAUNCH_BLOCKING=1 in the environment it shows where it happens"
        ) from error


def _handle(subject: str, stream: object) -> int:
    """The cudaStream_t of a CuPy stream (`ptr`), a torch stream (`cuda_stream`) or an int; ConfigError otherwise."""
    handle = getattr(stream, "ptr", getattr(stream, "cuda_stream", stream))
    if isinstance(handle, bool) or not isinstance(handle, int) or handle < 0:
        msg = f"{subject}: stream must be a cudaStream_t as an int, a CuPy or torch stream, or None, found {stream!r}"
        raise ConfigError(msg)
    return handle


def _check_places(job: Launch, device: int) -> None:
    """Refuse memory of another place than the current device: it would fault later, and without a name."""
    runtime = load_cupy().cuda.runtime
    for name, argument in job.arguments.items():
        if argument.dtype != np.uint64 or not argument:
            continue
        place = runtime.pointerGetAttributes(int(argument))
        if place.type not in (runtime.memoryTypeDevice, runtime.memoryTypeManaged):
            where = f"memory of the host (CUDA memory type {place.type})"
            raise ConfigError(f"{job.kernel}: {name} must lie in a GPU's memory, found {where}")
        if place.device != device:
            rule = f"must lie on the current device, cuda:{device}, which torch.cuda.device(...) chooses"
            raise ConfigError(f"{job.kernel}: {name} {rule}, found cuda:{place.device}")


@functools.cache
def _source(name: str) -> str:
    """The kernel with its headers in the place of their #include: NVRTC has no search path here."""
    folder = files("dali_feed.kernels")
    text = (folder / f"{name}.cu").read_text(encoding="utf-8")

    def header(include: re.Match[str]) -> str:
        line = text.count("\n", 0, include.end()) + 1
        content = (folder / include[1]).read_text(encoding="utf-8")
        return f'#line 1 "{include[1]}"\n{content}#line {line} "{name}.cu"\n'

    return _INCLUDE.sub(header, text)


def _failed(name: str, arch: str, options: tuple[str, ...], log: str) -> EngineError:
    lines = [line for line in log.splitlines() if line.strip()]
    left_out = [f"({len(lines) - _LOG_LINES} more lines)"] if len(lines) > _LOG_LINES else []
    first = "\n  ".join([*lines[:_LOG_LINES], *left_out])
    return EngineError(f"kernel {name} for {arch}, options {' '.join(options) or 'none'}: does not compile:\n  {first}")
