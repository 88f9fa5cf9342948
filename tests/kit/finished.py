"""What `finish` makes of arrays on the host, by torch: the judge of the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.engines.finish import DTYPES, by_torch

__all__ = ["finish_reference"]


def finish_reference(
    images: NDArray[np.uint8], *, dtype: str = "float32", layout: str = "NCHW", mix: Any = None, **case: Any
) -> NDArray[Any]:
    """(n, h, w, 3) uint8 in, (n, 3, h, w) or (n, h, w, 3) out, bfloat16 as its bits in uint16; else as `finish`."""
    n, height, width, _ = images.shape
    out = torch.empty((n, 3, height, width) if layout == "NCHW" else (n, height, width, 3), dtype=DTYPES[dtype])
    for name in {"flip_x", "flip_y", "erase"} & case.keys():
        case[name] = None if case[name] is None else torch.from_numpy(np.array(case[name]))
    by_torch(torch.from_numpy(np.array(images)), out, mix=mix, layout=layout, **case)
    return np.asarray((out.view(torch.uint16) if dtype == "bfloat16" else out).numpy())
