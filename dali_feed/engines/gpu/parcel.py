"""Parcel: the small arrays that go with a batch, end to end in one block of bytes, so that one copy moves them all.

The law: an unpacked array has the dtype, the shape and the bits of the packed one, wherever the block is unpacked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALIGNED", "Packing", "Part", "can_travel", "pack", "packing", "unpacked"]

ALIGNED = 16  # bytes: the widest that a thread of a GPU loads at once, and a multiple of every item's size

_DTYPES = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)


@dataclass(frozen=True, slots=True)
class Part:
    """Where an array lies in its block: `nbytes` from byte `start` on, C contiguous, in the machine's byte order."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array alone."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Packing:
    """Which array lies where in a block of `size` bytes. Parts begin at multiples of ALIGNED and do not overlap."""

    parts: Mapping[str, Part]
    size: int


def can_travel(values: object) -> bool:
    """Whether it is an array of numbers in the machine's byte order, of a dtype that torch has too."""
    return isinstance(values, np.ndarray) and values.dtype.isnative and np.dtype(values.dtype.str) in _DTYPES


def packing(arrays: Mapping[str, NDArray[Any]]) -> Packing:
    """How those arrays, of which each can travel, lie in a block, in their order."""
    parts, end = dict[str, Part](), 0
    for name, values in arrays.items():
        start = -(-end // ALIGNED) * ALIGNED
        parts[name] = Part(np.dtype(values.dtype.str), values.shape, start)
        end = start + values.nbytes
    return Packing(parts, end)


def pack(plan: Packing, arrays: Mapping[str, NDArray[Any]], block: NDArray[np.uint8]) -> None:
    """Write the arrays, of any strides, into `block`, uint8 (size,); bytes between them stay what they are."""
    for name, part in plan.parts.items():
        unpacked(part, block)[...] = arrays[name]


def unpacked(part: Part, block: NDArray[np.uint8]) -> NDArray[Any]:
    """An array of the block: a view."""
    return block[part.start : part.start + part.nbytes].view(part.dtype).reshape(part.shape)
