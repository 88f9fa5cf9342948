"""The CUDA device of a thread: libraries use it wherever they do not name a device."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from dali_feed.records.gauges import GpuStats

__all__ = [
    "KEPT",
    "MemoryInUse",
    "Uploaded",
    "Uploads",
    "consumers_stream",
    "gpu_stats",
    "is_foreign",
    "keep",
    "owned",
    "shape_of",
    "size_of",
    "tensor_of",
    "use",
    "viewed",
]


def use(device: int | None) -> None:
    """Make `device`, if not None, this thread's CUDA device; each thread begins with the first GPU."""
    if device is not None:
        torch.cuda.set_device(device)


def gpu_stats(device: int) -> GpuStats:
    """How that GPU is now; NVML, which torch asks, says how busy it is."""
    about, busy = torch.cuda.get_device_properties(device), None
    free, total = torch.cuda.mem_get_info(device)
    with suppress(Exception):  # NVML is not there, or says nothing of a part of a GPU
        busy = torch.cuda.utilization(device) / 100
    return GpuStats(f"GPU-{about.uuid}", about.name, busy, total - free, total)


# Memory that work on a GPU, enqueued and not yet done, still reads.
#
# The law: it is released once the work's event has passed, and only `let_go`, which closing calls, waits for that.


class MemoryInUse:
    """Used by many threads: loaders may be."""

    def __init__(self) -> None:
        self._kept: list[tuple[Any, Any]] = []  # CUDA's event behind the work, and what it reads
        self._lock = threading.RLock()  # reentrant: a destructor that runs in here may call it again

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, what: Any, until: Any) -> None:
        """Hold `what` until then. Release whatever other work is done with, in any order."""
        with self._lock:
            before = self._kept  # dropped outside the lock
            self._kept = [*((done, held) for done, held in before if not done.query()), (until, what)]

    def let_go(self) -> None:
        """Wait for all the work, and release the memory that it reads."""
        with self._lock:
            before, self._kept = self._kept, []
        for done, _ in before:
            with suppress(RuntimeError):  # a GPU that has failed for good has ended the work as well
                done.synchronize()


KEPT = MemoryInUse()  # of this process

# Batches made on the CPU, on their way to a GPU: one asynchronous copy each, on a stream of its own.
#
# The law: no thread waits on the host. The consumer's stream waits for the copy, and torch's allocators keep both
# memories until the streams that use them are done.


def consumers_stream(stream: int | None, device: torch.device) -> torch.cuda.Stream:
    """The stream that a consumer names to __dlpack__: None, 0 and 1 are the default one, else a cudaStream_t."""
    if stream in (None, 0, 1):
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(stream, device=device)  # type: ignore[no-untyped-call]


class Uploaded:
    """A tensor whose copy to the GPU has been enqueued. It has `__dlpack__`."""

    def __init__(self, images: torch.Tensor, copied: torch.cuda.Event) -> None:
        self._images, self._copied = images, copied

    def on(self, stream: torch.cuda.Stream) -> torch.Tensor:
        """The tensor, for work that is enqueued on `stream` from here on."""
        stream.wait_event(self._copied)
        self._images.record_stream(stream)
        return self._images

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return tuple(self._images.shape)

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self._images.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """As the protocol says: -1 is no stream to wait, 1 or None the default stream, else a cudaStream_t."""
        if stream != -1:
            self.on(consumers_stream(stream, self._images.device))
        return self._images.__dlpack__(stream=-1, **options)


def shape_of(images: Any) -> tuple[int, ...]:
    """The shape of an engine's images: a tensor, Uploaded, or DALI's own type, whose `shape` is a method."""
    if isinstance(images, torch.Tensor | Uploaded):
        return tuple(images.shape)
    shown = getattr(images, "__cuda_array_interface__", None) or images.__array_interface__
    return tuple(shown["shape"])


def size_of(images: Any) -> tuple[int, int]:
    """Height and width of images (n, height, width, 3) that are not finished."""
    _, height, width, _ = shape_of(images)
    return height, width


class Uploads:
    """Copies to one GPU. Used by one thread."""

    def __init__(self, device: int) -> None:
        self._device = torch.device("cuda", device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def __call__(self, images: torch.Tensor) -> Uploaded:
        """Enqueue the copy of a page-locked batch."""
        with torch.cuda.stream(self._stream):
            there = images.to(self._device, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        return Uploaded(there, copied)


# DALI's outputs handed over as tensors of torch.
#
# The law: no thread waits on the host, and the device as a whole is never waited for. DALI releases memory that was
# handed over through DLPack by waiting for the device; so on a GPU it is copied, on the consumer's stream, into memory
# that torch owns, and kept until an event says that the copy is done with it.


_CUDA, _PINNED = 2, 3  # DLPack's numbers; torch does not take the latter, host memory that CUDA knows


class _Seen:
    """Memory as __cuda_array_interface__ shows it, and nothing else, so that torch looks at it in no other way."""

    def __init__(self, images: Any) -> None:
        shown = images.__cuda_array_interface__
        self.__cuda_array_interface__ = {
            "shape": tuple(shown["shape"]),
            "typestr": np.dtype(shown["typestr"]).str,  # DALI writes "=B" where others write "|u1"
            "data": (shown["data"][0], False),
            "strides": shown.get("strides"),
            "version": 2,
        }


def is_foreign(images: Any) -> bool:
    """Whether it is memory of a GPU that torch does not own: DALI's."""
    ours = isinstance(images, torch.Tensor | Uploaded)
    return not ours and int(images.__dlpack_device__()[0]) == _CUDA


def tensor_of(images: Any) -> torch.Tensor:
    """An output, ready for any stream, or Uploaded: on a GPU ready on torch's current stream there.

    On the CPU a view of its memory.
    """
    if isinstance(images, torch.Tensor):
        return images
    kind, number = images.__dlpack_device__()
    if int(kind) == _PINNED:
        return torch.from_numpy(np.asarray(images))
    if isinstance(images, Uploaded):
        return images.on(torch.cuda.current_stream(number))
    if int(kind) == _CUDA:
        return owned(images, torch.device("cuda", number))
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(images)
    return tensor


def owned(images: Any, device: torch.device) -> torch.Tensor:
    """A copy of an output on that GPU, in memory of torch's, enqueued on its current stream."""
    stream = torch.cuda.current_stream(device)
    copy = viewed(images, device).clone()
    keep(images, stream)
    return copy


def viewed(images: Any, device: torch.device) -> torch.Tensor:
    """An output on that GPU, ready for any stream, as it lies there: whoever reads it has to `keep` the output."""
    return torch.as_tensor(_Seen(images), device=device)


def keep(images: Any, stream: torch.cuda.Stream) -> None:
    """Hold the memory until what has been enqueued on `stream` by now is done."""
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(stream)
    KEPT.keep(images, done)
