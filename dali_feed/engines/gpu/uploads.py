"""Batches made on the CPU, on their way to a GPU: one asynchronous copy each, on a stream of its own.

The law: no thread waits on the host. The consumer's stream waits for the copy, and torch's allocators keep both
memories until the streams that use them are done.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Uploaded", "Uploads", "consumers_stream", "shape_of", "size_of"]


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
