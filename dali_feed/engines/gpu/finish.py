"""The finish step on the consumer's stream: an engine's dense uint8 batch into memory that torch owns.

The law: no thread waits on the host, and the device as a whole is never waited for. DALI releases a batch that was
handed over through DLPack by waiting for the device; so its memory is read in place, and kept until an event says
that the finish is done with it.
"""

from __future__ import annotations

from typing import Any

import torch

from dali_feed.compiler.program import Tail
from dali_feed.engines.gpu.device import Uploaded, consumers_stream, keep, owned
from dali_feed.engines.gpu.parcel import there
from dali_feed.engines.no_images import DTYPES
from dali_feed.engines.ranges import FINISH
from dali_feed.kernels.finish import MixArrays, finish
from dali_feed.kernels.jitter import jitter

__all__ = ["exported", "finished", "mixed_up"]


def _mix(mixing: MixArrays, stream: torch.cuda.Stream) -> MixArrays:
    return MixArrays(*(there(each, stream) for each in (mixing.partner, mixing.weight, mixing.box)))


def finished(images: Any, tail: Tail, device: torch.device, mixing: MixArrays | None = None) -> torch.Tensor:
    """One launch on torch's current stream; returns (n, 3, height, width), or the recipe's layout.

    `images`: uint8 (n, height, width, 3) on `device`, ready for any stream: with __cuda_array_interface__, or Uploaded.
    Rows of `tail` and `mixing` are arrays of NumPy's, or `Sent`.
    """
    with FINISH:
        return _finished(images, tail, device, mixing)


def mixed_up(images: torch.Tensor, mixing: MixArrays) -> torch.Tensor:
    """Finished images (n, 3, height, width) mixed into new memory, by torch: a graph of the user's made them.

    Rows of `mixing` as in `finished`; the arithmetic is that of `finish_reference`, whatever device they are on.
    """
    with FINISH:
        if images.is_cuda:
            mixing = _mix(mixing, torch.cuda.current_stream(images.device))
        partner = torch.as_tensor(mixing.partner, device=images.device)
        given = (mixing.weight, mixing.box)
        weight, box = (None if each is None else torch.as_tensor(each, device=images.device) for each in given)
        n, _, height, width = images.shape
        row, mine = torch.arange(n, device=images.device), images.float()
        other = mine[torch.where((partner < 0) | (partner >= n), row, partner.long())]
        share = torch.ones(n, 1, 1, 1, device=images.device) if weight is None else weight.view(-1, 1, 1, 1)
        if box is not None:
            y, x = (torch.arange(size, device=images.device) for size in (height, width))
            top, left, tall, wide = box.long().T[..., None]
            rows, columns = (y >= top) & (y < top + tall), (x >= left) & (x < left + wide)
            share = torch.where((rows[:, :, None] & columns[:, None, :])[:, None], 0.0, share)
        both = mine * share + other * (1 - share)
        return torch.where(share == 1, mine, torch.where(share == 0, other, both)).to(images.dtype)


def _finished(images: Any, tail: Tail, device: torch.device, mixing: MixArrays | None) -> torch.Tensor:
    stream = torch.cuda.current_stream(device)
    pixels = images.on(stream) if isinstance(images, Uploaded) else images
    n, height, width, channels = pixels.__cuda_array_interface__["shape"]
    layout = tail.finish.layout
    shape = (n, channels, height, width) if layout == "NCHW" else (n, height, width, channels)
    out = torch.empty(shape, dtype=DTYPES[tail.finish.dtype], device=device)
    whole = out.dtype == torch.uint8  # pixels as they are; only a float has a scale
    finish(
        pixels if tail.adjust is None else _adjusted(pixels, there(tail.adjust, stream), stream),
        out,
        scale=None if whole else tail.finish.scale,
        bias=None if whole else tail.finish.bias,
        flip_x=there(tail.flip_x, stream),
        flip_y=there(tail.flip_y, stream),
        erase=there(tail.erase, stream),
        erase_value=tail.finish.erase,
        mix=None if mixing is None else _mix(mixing, stream),
        layout=layout,
        stream=stream,
    )
    if pixels is images:
        keep(images, stream)
    return out


def _adjusted(pixels: Any, steps: Any, stream: torch.cuda.Stream) -> torch.Tensor:
    """The batch after its colour steps, in new memory: DALI's memory may belong to another view too."""
    out = torch.empty(pixels.__cuda_array_interface__["shape"], dtype=torch.uint8, device=stream.device)
    jitter(pixels, out, steps, stream=stream)
    return out


def exported(images: Any, tail: Tail | None, device: int, stream: int | None, options: dict[str, Any]) -> Any:
    """A DLPack capsule of the finished batch, ready on the consumer's `stream`; -1 is torch's current one.

    Without a `tail` it is a copy of the images.
    """
    place = torch.device("cuda", device)
    with torch.cuda.stream(None if stream == -1 else consumers_stream(stream, place)):
        made = owned(images, place) if tail is None else finished(images, tail, place)
        return made.__dlpack__(stream=-1, **options)
