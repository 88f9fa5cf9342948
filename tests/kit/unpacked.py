"""What the kernel `unpack` makes of records, by NumPy: its judge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from dali_feed.engines.finish import DTYPES


def unpack_reference(
    records: NDArray[np.uint8],
    *,
    shape: Sequence[int],
    bits: int = 8,
    order: str = "interleaved",
    endian: Any = "little",
    offset: int = 0,
    scale: ArrayLike = 1.0,
    bias: ArrayLike = 0.0,
    dtype: str = "float32",
    layout: str = "NCHW",
) -> NDArray[Any]:
    """(n, bytes) uint8 in, (n, c, h, w) or (n, h, w, c) out, bfloat16 as its bits in uint16; else as `unpack`."""
    height, width, channels = shape
    count = math.prod(shape)
    payload = records[:, offset : offset + -(-count * bits // 8)]
    digits = np.unpackbits(payload, axis=1, count=count * bits, bitorder=endian).reshape(-1, count, bits)
    weights = 1 << np.arange(bits, dtype=np.uint16)
    value = (digits @ (weights[::-1] if endian == "big" else weights)).astype(np.float32)
    if order == "planar":
        value = value.reshape(-1, channels, height, width)
    else:
        value = value.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)
    factors = (np.broadcast_to(np.asarray(each, np.float32), channels)[:, None, None] for each in (scale, bias))
    scales, biases = factors
    with np.errstate(over="ignore", invalid="ignore"):
        done = torch.from_numpy(value * scales + biases).to(DTYPES[dtype])
    done = done.contiguous() if layout == "NCHW" else done.permute(0, 2, 3, 1).contiguous()
    return np.asarray((done.view(torch.uint16) if dtype == "bfloat16" else done).numpy())
