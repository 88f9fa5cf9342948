"""Arrays of numbers: raw little-endian bytes, or `.npy`, of one dtype and shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.columns.kind import Faults, Kind, check_member, missing
from dali_feed.errors import ConfigError

__all__ = ["Array"]


@dataclass(frozen=True)
class Array(Kind):
    """Numbers as raw little-endian bytes. Gives (n, *shape) on the device.

    dtype  of NumPy's: int8..int64, uint8..uint64, float16..float64, bool
    shape  of one record's array; None: flat, as long as the first record's, and then held
    """

    member: str
    dtype: str
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_member("Array", self.member)
        try:
            dtype = np.dtype(self.dtype)
        except TypeError:
            dtype = np.dtype("O")
        if dtype.kind not in "biuf" or dtype.byteorder == ">":
            msg = f"Array({self.member!r}): dtype must be a little-endian number of NumPy's; found {self.dtype!r}"
            raise ConfigError(msg)
        if self.shape is not None and not all(isinstance(n, int) and n > 0 for n in self.shape):
            msg = f"Array({self.member!r}): shape must be positive ints; found {self.shape!r}"
            raise ConfigError(msg)

    @property
    def nbytes(self) -> int:
        """Of one record's array."""
        return math.prod(self.shape or (0,)) * np.dtype(self.dtype).itemsize

    def settled(self, first: Any) -> Self:
        """With the shape of the first record's, where none was given."""
        if self.shape is not None:
            return self
        size, item = 0 if first is None else len(first), np.dtype(self.dtype).itemsize
        if not size or size % item:
            msg = (
                f"Array({self.member!r}): the first record must hold whole {self.dtype}s, {item} bytes each; found"
                f" {size} bytes. Give shape="
            )
            raise ConfigError(msg)
        return replace(self, shape=(size // item,))

    def read(self, values: list[Any], faults: Faults) -> list[Any]:
        """Views as they are."""
        missing(values, faults)
        size = self.nbytes
        for row, value in enumerate(values):
            if value is not None and len(value) != size:
                faults.setdefault(row, f"{size} bytes are needed, {self.shape} of {self.dtype}; found {len(value)}")
        return values

    def batch(self, values: list[Any]) -> NDArray[Any]:
        """One array, in memory of its own: each record's bytes are copied once."""
        whole = np.frombuffer(bytearray().join(values), self.dtype)
        return whole.reshape(len(values), *(self.shape or ()))
