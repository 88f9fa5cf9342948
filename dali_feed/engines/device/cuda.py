"""A GPU by torch. Nothing else in the product but `kernels/launch.py` and the bench names `torch.cuda` or CuPy.

One copy stream for each GPU and process, at high priority: torch has 32 others for everybody, and wraps. What was sent
is of that stream's pool, where memory that is let go may be used again at once, by a copy behind all those before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch

from dali_feed.engines.device.device import Device, InUse
from dali_feed.errors import EngineError
from dali_feed.records.gauges import GpuStats

__all__ = ["CudaDevice", "chosen", "free_and_total", "gpu_name", "gpu_stats", "is_there", "open_device", "shown"]


def is_there() -> bool:
    """Whether torch finds a GPU."""
    return torch.cuda.is_available()


def chosen() -> int:
    """The number of this thread's GPU."""
    return torch.cuda.current_device()


def gpu_name(device: str | int) -> str:
    """What the vendor calls it."""
    return torch.cuda.get_device_name(device)


def gpu_stats(device: int) -> GpuStats:
    """How that GPU is now; NVML, which torch asks, says how busy it is."""
    about, busy = torch.cuda.get_device_properties(device), None
    free, total = torch.cuda.mem_get_info(device)
    with suppress(Exception):  # NVML is not there, or says nothing of a part of a GPU
        busy = torch.cuda.utilization(device) / 100
    return GpuStats(f"GPU-{about.uuid}", about.name, busy, total - free, total)


def free_and_total(device: int | None) -> tuple[int, int] | None:
    """Bytes of memory that a GPU has left, and has in all; None where torch is not at work on one.

    Raises RuntimeError where the GPU says nothing more.
    """
    if device is None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return torch.cuda.mem_get_info(device)


_streams: dict[int, torch.cuda.Stream] = {}  # by GPU
_streams_lock = threading.Lock()  # guards them


def _copy_stream(number: int) -> torch.cuda.Stream:
    with _streams_lock:
        if number not in _streams:
            _streams[number] = torch.cuda.Stream(number, priority=-1)  # type: ignore[no-untyped-call]
        return _streams[number]


def _event() -> torch.cuda.Event:
    """One for which a thread can wait asleep."""
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


def _relax() -> None:
    """Let this thread's calls not break a CUDA graph that another thread captures."""
    with suppress(Exception):  # torch for CUDA brings the bindings with it
        from cuda.bindings import driver  # type: ignore[import-untyped]

        driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)


class shown:  # noqa: N801 - it stands for the memory, as torch is to see it
    """Memory as __cuda_array_interface__ shows it, and nothing else, so that torch looks at it in no other way."""

    def __init__(self, images: Any) -> None:
        interface = images.__cuda_array_interface__
        self.__cuda_array_interface__ = {
            "shape": tuple(interface["shape"]),
            "typestr": np.dtype(interface["typestr"]).str,  # DALI writes "=B" where others write "|u1"
            "data": (interface["data"][0], False),
            "strides": interface.get("strides"),
            "version": 2,
        }


class CudaDevice:
    """See `Device`. Nothing is done on the GPU before the first call."""

    def __init__(self, number: int) -> None:
        self.number, self._place, self._in_use = number, torch.device("cuda", number), InUse()

    def enter(self) -> None:
        """See `Device`."""
        torch.cuda.set_device(self.number)
        _relax()

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """See `Device`; page-locked memory too is of a context, that of the thread's device."""
        with torch.cuda.device(self.number):
            return torch.empty(shape, dtype=dtype, pin_memory=True)

    def send(self, here: torch.Tensor) -> torch.Tensor:
        """See `Device`; torch uses the page-locked memory again when the copy is done."""
        with self.sending():
            return here.to(self._place, non_blocking=True)

    @contextmanager
    def sending(self) -> Iterator[torch.cuda.Stream]:
        """See `Device`: the copy stream is the current one."""
        with torch.cuda.device(self.number), torch.cuda.stream(_copy_stream(self.number)):
            yield _copy_stream(self.number)

    def wait(self) -> None:
        """See `Device`: by one event, for which the thread sleeps without the interpreter's lock."""
        with self.sending() as stream:
            arrived = _event()
            arrived.record(stream)
        arrived.synchronize()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """See `Device`."""
        return torch.empty(shape, dtype=dtype, device=self._place)

    def copy(self, there: Any) -> torch.Tensor:
        """See `Device`."""
        with torch.cuda.device(self.number):
            return self.view(there).clone()

    def view(self, images: Any) -> torch.Tensor:
        """See `Device`: DALI would wait for the whole GPU to release what it has handed over through DLPack."""
        return images if isinstance(images, torch.Tensor) else torch.as_tensor(shown(images), device=self._place)

    def launch(self, kernel: Callable[..., None], *arrays: Any, **settings: Any) -> None:
        """See `Device`: under torch's device, so that CuPy finds its context."""
        with torch.cuda.device(self.number):
            kernel(*arrays, **settings, stream=torch.cuda.current_stream())

    @contextmanager
    def hold(self, *objects: Any) -> Iterator[None]:
        """See `Device`. Raises EngineError while a CUDA graph is captured, of which a batch cannot be a part."""
        with torch.cuda.device(self.number):
            if torch.cuda.is_current_stream_capturing():
                msg = (
                    f"loader on cuda:{self.number}: next() cannot be captured in a CUDA graph, as each batch has memory"
                    " of its own; take the batch before torch.cuda.graph(), and copy it into the graph's input"
                )
                raise EngineError(msg)
            try:
                yield
            finally:
                done = _event()
                done.record(torch.cuda.current_stream())
                self._in_use.keep(objects, done)

    @contextmanager
    def stream(self, number: int | None) -> Iterator[None]:
        """See `Device`; None, 0 and 1 are the default stream."""
        inside: Any = nullcontext()
        if number in (None, 0, 1):
            inside = torch.cuda.stream(torch.cuda.default_stream(self._place))
        elif number != -1:
            inside = torch.cuda.stream(torch.cuda.ExternalStream(number, device=self._place))  # type: ignore[no-untyped-call]
        with torch.cuda.device(self.number), inside:
            yield

    def bound(self, most: int) -> None:
        """See `Device`."""
        self._in_use.bound(most)

    def drain(self) -> None:
        """See `Device`."""
        self._in_use.drain()

    def free_memory(self) -> None:
        """See `Device`."""
        with torch.cuda.device(self.number):
            torch.cuda.empty_cache()


def open_device(number: int) -> Device:
    """That GPU, for one loader."""
    return CudaDevice(number)
