"""The arithmetic of the kernels in NumPy: every operation rounded as it is there, so that references are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["cast", "fma"]


def fma(a: npt.NDArray[Any], b: npt.NDArray[Any], c: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return a * b + c of float32 arrays with one rounding, as fmaf does.

    The product is exact in float64 and the sum is rounded to odd (if anything was lost, the last bit is set), so the
    rounding to float32 that follows sees on which side of a tie the exact value lies.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        product, addend = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
        total = product + addend
        part = total - product
        lost = (product - (total - part)) + (addend - part)
        even = np.asarray(total).view(np.int64) & 1 == 0
        odd = np.nextafter(total, np.copysign(np.inf, lost))
        rounded: npt.NDArray[Any] = np.where(np.isfinite(total) & (lost != 0) & even, odd, total)
        return rounded.astype(np.float32)


def cast(value: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """To "float32", "float16", "bfloat16" (its bits in uint16) or "uint8", rounded to nearest, ties to even."""
    if dtype == "uint8":
        return np.rint(value).astype(np.uint8)
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(value).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(value), np.uint16(0x7FFF), rounded)
    with np.errstate(over="ignore"):  # beyond 65504 float16 is infinite, here as there
        return value.astype(dtype)
