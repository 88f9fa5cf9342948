"""Arrays: rows of numbers of one dtype that lie in memory that they share; an array is made when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dali_feed.records.pieces import Pieces

__all__ = ["Arrays"]


class Arrays(Sequence[NDArray[Any] | None]):
    """Arrays that are views of `pieces`, None where a row has none; what is asked of all at once is asked of `pieces`.

    pieces  the bytes of each row, little-endian, in C order
    dtype   of all of them
    shape   of all of them; None: each is flat, as long as its bytes
    """

    __slots__ = ("dtype", "pieces", "shape")

    def __init__(self, pieces: Pieces, dtype: np.dtype[Any], shape: tuple[int, ...] | None = None) -> None:
        self.pieces, self.dtype, self.shape = pieces, dtype, shape

    def __len__(self) -> int:
        return len(self.pieces)

    def __iter__(self) -> Iterator[NDArray[Any] | None]:
        return map(self._array, self.pieces)

    @overload
    def __getitem__(self, rows: int) -> NDArray[Any] | None: ...

    @overload
    def __getitem__(self, rows: slice | NDArray[Any]) -> Arrays: ...

    def __getitem__(self, rows: int | slice | NDArray[Any]) -> NDArray[Any] | Arrays | None:
        if isinstance(rows, slice | np.ndarray):
            return Arrays(self.pieces[rows], self.dtype, self.shape)
        return self._array(self.pieces[rows])

    def are(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
        """Whether bytes of the right number are an array of that dtype and shape."""
        return self.dtype == dtype and (len(shape) == 1 if self.shape is None else self.shape == shape)

    def _array(self, view: memoryview | None) -> NDArray[Any] | None:
        if view is None:
            return None
        flat = np.frombuffer(view, self.dtype)
        return flat if self.shape is None else flat.reshape(self.shape)
