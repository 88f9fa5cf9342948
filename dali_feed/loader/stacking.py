"""A field's values in a batch: one tensor where torch's default_collate makes one of such values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["stacked"]

_INT64 = 1 << 63
_NUMBERS = (int, float, np.number, np.bool_)  # a bool is an int


def stacked(values: list[Any]) -> Any:
    """Numbers as a tensor (n,), arrays or tensors of one shape and type as one (n, *shape); anything else as it is.

    Types are default_collate's: int64, float64 and bool of Python's numbers, and an array's own. Where some numbers are
    ints and some floats they are float64.
    """
    if not values:
        return values
    first = values[0]
    if isinstance(first, torch.Tensor):
        alike = all(isinstance(v, torch.Tensor) and (v.shape, v.dtype) == (first.shape, first.dtype) for v in values)
        return torch.stack(values) if alike else values
    if isinstance(first, np.ndarray):
        if not all(isinstance(v, np.ndarray) and (v.shape, v.dtype) == (first.shape, first.dtype) for v in values):
            return values
        array = np.stack(values)
    elif all(isinstance(value, _NUMBERS) for value in values):
        whole = all(isinstance(value, int) for value in values)
        if whole and not all(-_INT64 <= value < _INT64 for value in values):
            return values  # NumPy would make floats of them
        array = np.asarray(values)
    else:
        return values
    if array.dtype.kind not in "biufc":
        return values
    try:
        return torch.from_numpy(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))
    except TypeError:  # a type that torch does not have
        return values
