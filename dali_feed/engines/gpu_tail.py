"""The finish step on the consumer's stream: DALI's dense uint8 batch into memory that torch owns."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import torch

from dali_feed.engines import Tail
from dali_feed.kernels.finish import finish

__all__ = ["finished"]

_DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def _on_device(values: Any) -> Any:
    return None if values is None else cupy.asarray(np.ascontiguousarray(values, np.int32))


def finished(images: Any, tail: Tail, device: torch.device) -> torch.Tensor:
    """One launch on torch's current stream; returns (n, 3, height, width) of the recipe's dtype.

    `images` speaks __dlpack__: uint8 (n, height, width, 3) on `device`. Nothing waits on the host.
    """
    stream = torch.cuda.current_stream(device)
    with cupy.cuda.Device(device.index), cupy.cuda.ExternalStream(stream.cuda_stream):
        pixels = cupy.from_dlpack(images)
        n, height, width, channels = pixels.shape
        out = torch.empty((n, channels, height, width), dtype=_DTYPES[tail.finish.dtype], device=device)
        target = out.view(torch.uint16) if out.dtype == torch.bfloat16 else out
        finish(
            pixels,
            cupy.asarray(target),
            flip_x=_on_device(tail.flip_x),
            flip_y=_on_device(tail.flip_y),
            scale=None if out.dtype == torch.uint8 else tail.finish.scale,
            bias=None if out.dtype == torch.uint8 else tail.finish.bias,
            dtype=tail.finish.dtype,
        )
    return out
