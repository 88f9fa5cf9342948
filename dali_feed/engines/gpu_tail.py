"""The finish step on the consumer's stream: an engine's dense uint8 batch into memory that torch owns.

The law: nobody waits on the host, and the device as a whole is never waited for. DALI lets go of a batch that was
handed over through DLPack by waiting for the device; so its memory is read in place, and kept until an event says
that the finish is done with it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import torch
from numpy.typing import NDArray

from dali_feed.engines import Tail
from dali_feed.engines.dtypes import DTYPES
from dali_feed.engines.ranges import FINISH
from dali_feed.engines.uploads import Uploaded, consumers_stream
from dali_feed.kernels.finish import finish
from dali_feed.kernels.mix import Mix, mix
from dali_feed.mixing import Mixed

__all__ = ["exported", "finished", "let_go", "mixed_up"]

_lock = threading.Lock()  # loaders may be used in several threads
_kept: deque[tuple[torch.cuda.Event, Any]] = deque()  # what finishes that have been enqueued may still read


def _on(device: torch.device, values: NDArray[Any] | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values).to(device, non_blocking=True)


def _mix(device: torch.device, drawn: Mixed) -> Mix:
    return Mix(*(_on(device, each) for each in (drawn.partner, drawn.weight, drawn.box)))


def finished(images: Any, tail: Tail, device: torch.device, drawn: Mixed | None = None) -> torch.Tensor:
    """One launch on torch's current stream; returns (n, 3, height, width), or what the recipe's layout says.

    `images`: uint8 (n, height, width, 3) on `device`, ready for any stream: with __cuda_array_interface__, or Uploaded.
    """
    with FINISH:
        return _finished(images, tail, device, drawn)


def mixed_up(images: torch.Tensor, drawn: Mixed) -> torch.Tensor:
    """Finished images (n, 3, height, width) mixed into new memory, one launch on torch's current stream."""
    with FINISH:
        dense = images if images.is_contiguous(memory_format=torch.channels_last) else images.contiguous()
        out = torch.empty_like(dense)
        stream = torch.cuda.current_stream(images.device)
        mix(dense, out, _mix(images.device, drawn), stream=stream)
        return out


def _finished(images: Any, tail: Tail, device: torch.device, drawn: Mixed | None) -> torch.Tensor:
    stream = torch.cuda.current_stream(device)
    pixels = images.on(stream) if isinstance(images, Uploaded) else images
    n, height, width, channels = pixels.__cuda_array_interface__["shape"]
    layout = tail.finish.layout
    shape = (n, channels, height, width) if layout == "NCHW" else (n, height, width, channels)
    out = torch.empty(shape, dtype=DTYPES[tail.finish.dtype], device=device)
    whole = out.dtype == torch.uint8  # pixels as they are; only a float has a scale
    finish(
        pixels,
        out,
        scale=None if whole else tail.finish.scale,
        bias=None if whole else tail.finish.bias,
        flip_x=_on(device, tail.flip_x),
        flip_y=_on(device, tail.flip_y),
        erase=_on(device, tail.erase),
        erase_value=tail.finish.erase,
        mix=None if drawn is None else _mix(device, drawn),
        layout=layout,
        stream=stream,
    )
    if pixels is images:
        _keep(images, stream)
    return out


def exported(images: Any, tail: Tail, device: int, stream: int | None, options: dict[str, Any]) -> Any:
    """A DLPack capsule of the finished batch, ready on the consumer's `stream`; -1 is torch's current one."""
    there = torch.device("cuda", device)
    if stream == -1:
        return finished(images, tail, there).__dlpack__(stream=-1, **options)
    with torch.cuda.stream(consumers_stream(stream, there)):
        return finished(images, tail, there).__dlpack__(stream=-1, **options)


def _keep(images: Any, stream: torch.cuda.Stream) -> None:
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(stream)
    with _lock:
        _kept.append((done, images))
        while _kept and _kept[0][0].query():  # type: ignore[no-untyped-call]
            _kept.popleft()


def let_go() -> None:
    """Wait for the finishes that have been enqueued, and let go of what they read."""
    with _lock:
        while _kept:
            _kept.popleft()[0].synchronize()
