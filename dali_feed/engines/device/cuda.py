"""A GPU by torch: all that the product does there, but to launch a kernel, is a method of `Device`.

Nothing else in the product but `kernels/launch.py` and the bench names `torch.cuda` or CuPy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch

from dali_feed.errors import EngineError
from dali_feed.records.gauges import GpuStats


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


class InUse:
    """What work on a GPU, enqueued and not yet done, still reads, oldest first, with the event behind the work.

    One for each loader: to close it waits for no other's work. Used by its feed thread and by whoever takes batches.
    """

    def __init__(self) -> None:
        self._in_use: list[tuple[Any, Any]] = []
        self._lock = threading.RLock()  # guards the list; a destructor that runs in here may call it again

    def __len__(self) -> int:
        return len(self._in_use)

    def keep(self, what: Any, until: Any) -> None:
        """Hold `what` until that event has passed. Let go of what other work is done with, in any order."""
        with self._lock:
            before = self._in_use  # dropped outside the lock
            self._in_use = [*((each, done) for each, done in before if not done.query()), (what, until)]

    def bound(self, most: int) -> None:
        """Let go of what is done with; wait, oldest first, until no more than `most` are held."""
        with self._lock:
            before = self._in_use
            self._in_use = [(each, done) for each, done in before if not done.query()]
            over = self._in_use[: max(0, len(self._in_use) - most)]
        for _, done in over:
            done.synchronize()

    def drain(self) -> None:
        """Wait for all the work, and let go of what it reads."""
        with self._lock:
            before, self._in_use = self._in_use, []
        for _, done in before:
            with suppress(RuntimeError):  # a GPU that has failed for good has ended the work as well
                done.synchronize()


# One copy stream for each GPU and process, at high priority: torch has 32 others for everybody, and wraps. What was
# sent is of that stream's pool, where memory that is let go may be used again at once, by a copy behind those before.

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


def _refuse_capture(number: int) -> None:
    """Raise EngineError while this thread captures a CUDA graph."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        raise EngineError(
            f"loader on cuda:{number}: next() cannot be captured in a CUDA graph, as each batch has memory of its own;"
            " take the batch before torch.cuda.graph(), and copy it into the graph's input"
        )


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


class Device:
    """One GPU, for one loader. The feed thread sends, and waits once a batch; the loop's thread works within `hold`.

    The law: a batch that is handed over is complete, so the training loop waits for nothing. What the loop is given is
    new memory of torch's on its current stream, filled by one copy or one kernel there; nothing that was sent, and
    nothing of DALI's, leaves an item. What such work reads is held until the host has seen the event behind it, for
    neither torch's nor DALI's allocator knows of the other's streams.

    Every method makes it the thread's device by itself, so that nothing touches another: a thread begins with the
    first GPU, where a single call would open a context of hundreds of megabytes.

    Tests have a second one, on the CPU (tests/kit/recorded.py), which holds its callers to this order. Nothing is done
    on the GPU before the first call. To make one while a CUDA graph is captured raises EngineError, as `hold` does.
    """

    def __init__(self, number: int) -> None:
        _refuse_capture(number)
        self.number, self._place, self.in_use = number, torch.device("cuda", number), InUse()

    def enter(self) -> None:
        """Make it this thread's device from here on; a thread of ours, for its calls then break no capture."""
        torch.cuda.set_device(self.number)
        _relax()

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Page-locked memory of the host, which can be sent without a wait. It too is of a context."""
        with torch.cuda.device(self.number):
            return torch.empty(shape, dtype=dtype, pin_memory=True)

    def send(self, here: torch.Tensor) -> torch.Tensor:
        """Begin to copy page-locked memory, which may be let go at once: torch uses it again when the copy is done.

        What arrives may be read after `wait`.
        """
        with self.sending():
            return here.to(self._place, non_blocking=True)

    @contextmanager
    def sending(self) -> Iterator[torch.cuda.Stream]:
        """Work in here is enqueued behind what was sent, on the copy stream, and `wait` waits for it as well."""
        with torch.cuda.device(self.number), torch.cuda.stream(_copy_stream(self.number)):
            yield _copy_stream(self.number)

    def wait(self) -> None:
        """Wait, asleep and without the interpreter's lock, until all that was sent by now has arrived."""
        with self.sending() as stream:
            arrived = _event()
            arrived.record(stream)
            arrived.synchronize()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of torch's, of its current stream there."""
        with torch.cuda.device(self.number):
            return torch.empty(shape, dtype=dtype, device=self._place)

    def copy(self, there: Any) -> torch.Tensor:
        """A copy of what lies there, torch's or DALI's, on the current stream."""
        with torch.cuda.device(self.number):
            return self.view(there).clone()

    def view(self, images: Any) -> torch.Tensor:
        """Images that lie there, torch's or DALI's, as they lie: whoever reads them holds them.

        Not through DLPack: DALI would wait for the whole GPU to release what it has handed over so.
        """
        if isinstance(images, torch.Tensor):
            return images
        with torch.cuda.device(self.number):
            return torch.as_tensor(shown(images), device=self._place)

    def launch(self, kernel: Callable[..., None], *arrays: Any, **settings: Any) -> None:
        """Launch a kernel of `dali_feed.kernels` on the current stream, under torch's device, where CuPy finds it."""
        with torch.cuda.device(self.number):
            kernel(*arrays, **settings, stream=torch.cuda.current_stream())

    @contextmanager
    def hold(self, *objects: Any) -> Iterator[None]:
        """Keep `objects` until all that is enqueued in here on the current stream is done, also where that raises.

        Raises EngineError while a CUDA graph is captured, of which a batch cannot be a part.
        """
        with torch.cuda.device(self.number):
            _refuse_capture(self.number)
            stream = torch.cuda.current_stream()
            try:
                yield
            finally:
                try:
                    done = _event()
                    done.record(stream)
                except BaseException:  # no event will say when the work is done, and what it reads is let go here
                    with suppress(RuntimeError):
                        stream.synchronize()
                    raise
                self.in_use.keep(objects, done)

    @contextmanager
    def stream(self, number: int | None) -> Iterator[None]:
        """Within, the current stream is the one that a consumer names to `__dlpack__`.

        None, 0 and 1 are the default stream; -1: it stays as it is.
        """
        inside: Any = nullcontext()
        if number in (None, 0, 1):
            inside = torch.cuda.stream(torch.cuda.default_stream(self._place))
        elif number != -1:
            inside = torch.cuda.stream(torch.cuda.ExternalStream(number, device=self._place))  # type: ignore[no-untyped-call]
        with torch.cuda.device(self.number), inside:
            yield

    def bound(self, most: int) -> None:
        """Let go of what is done with; wait until no more than `most` batches are held."""
        with torch.cuda.device(self.number):
            self.in_use.bound(most)

    def drain(self) -> None:
        """Wait for all the work that reads what is held, and let that go."""
        with suppress(RuntimeError), torch.cuda.device(self.number):  # it may have failed for good
            self.in_use.drain()

    def free_memory(self) -> None:
        """Give back the memory that torch keeps there and nobody uses."""
        with torch.cuda.device(self.number):
            torch.cuda.empty_cache()
