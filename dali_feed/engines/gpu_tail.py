"""The finish step on the consumer's stream: DALI's dense uint8 batch into memory that torch owns."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from dali_feed.engines import Tail
from dali_feed.engines.dtypes import DTYPES
from dali_feed.kernels.finish import finish

__all__ = ["finished"]


def _on(device: torch.device, values: NDArray[Any] | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values).to(device, non_blocking=True)


def finished(images: Any, tail: Tail, device: torch.device) -> torch.Tensor:
    """One launch on torch's current stream; returns (n, 3, height, width), or what the recipe's layout says.

    `images` speaks __dlpack__: uint8 (n, height, width, 3) on `device`. Nothing waits on the host.
    """
    pixels = torch.utils.dlpack.from_dlpack(images)
    n, height, width, channels = pixels.shape
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
        layout=layout,
        stream=torch.cuda.current_stream(device),
    )
    return out
