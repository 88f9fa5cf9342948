"""Where the rows of array files lie: `.npy` files by their header, raw files by what they are told to hold.

The law: a file holds the rows that it promises, whole, or it is refused before anything is read of it. Nothing in a
file is evaluated; objects are refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dali_feed.errors import ConfigError, DataLostError, FormatError, SourceError
from dali_feed.formats.npy import MAGIC, header_of
from dali_feed.records.extents import MAX_POSITION
from dali_feed.storage.local import LOCAL
from dali_feed.storage.store import Stamp, read_at

__all__ = ["ArrayFile", "RowForm", "array_file", "check_rows", "form_of", "told_form"]

_HEAD = 4096 + 12  # bytes of the longest header that is taken


@dataclass(frozen=True, slots=True)
class RowForm:
    """What a row is: its dtype, little-endian, and its shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name} {self.shape}"

    @property
    def pixels(self) -> bytes | None:
        """The header of PPM or PGM that makes an image of a row's bytes; None where it is no image."""
        color = len(self.shape) == 3 and self.shape[2] in {1, 3}
        if self.dtype != np.uint8 or not (color or len(self.shape) == 2):
            return None
        height, width = self.shape[:2]
        return b"P%d\n%d %d\n255\n" % (6 if self.shape[2:] == (3,) else 5, width, height)


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """A file of `rows` rows, of which the first begins at byte `at`."""

    path: str
    stamp: Stamp
    at: int
    rows: int


def told_form(dtype: DTypeLike | None, shape: Sequence[int] | None) -> tuple[np.dtype[Any] | None, Any]:
    """What a user told of rows. ConfigError for what cannot be."""
    found: np.dtype[Any] | None = None
    if dtype is not None:
        try:
            found = np.dtype(dtype)
        except TypeError:
            found = np.dtype("O")
        _check_dtype(found, "dtype", repr(dtype), ConfigError)
    if shape is None:
        return found, None
    sides = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(side, int | np.integer) and side > 0 for side in sides):
        msg = f"ArrayShards: shape must be that of one row, positive ints; found {shape!r}"
        raise ConfigError(msg)
    return found, tuple(int(side) for side in sides)


def form_of(array: NDArray[Any], told: str) -> RowForm:
    """Of the rows of an array in memory. ConfigError for one that has none, or rows that are no numbers."""
    _check_dtype(array.dtype, told, str(array.dtype), ConfigError)
    if not array.ndim or 0 in array.shape[1:]:
        msg = f"ArrayShards: an array must have at least one row, and numbers in it; found the shape {array.shape}"
        raise ConfigError(msg)
    return _checked(RowForm(array.dtype, tuple(array.shape[1:])), told)


def array_file(path: str, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> tuple[ArrayFile, RowForm]:
    """A file, and what its rows are: a `.npy` file's own, or raw rows of `dtype` and `shape`.

    Raises:
        ConfigError: a raw file whose rows nobody told; a `.npy` file that holds others than were told; rows that are
            larger than this machine's memory, or too many.
        SourceNotFoundError, SourceDeniedError: it cannot be opened.
        SourceError: its dtype or its order cannot be taken.
        DataLostError: it ends inside a row, or before the last that its header promises.
    """
    file = LOCAL.open(path)
    try:
        stamp, head = file.stamp(), read_at(file, _HEAD, 0)
    except OSError as error:
        msg = f"{path}: an array file must be readable; found: {error.strerror} (errno {error.errno})"
        raise SourceError(msg) from error
    finally:
        file.close()
    if head[: len(MAGIC)] == MAGIC:
        return _npy(path, stamp, head, dtype, shape)
    if path.endswith(".npy"):
        msg = f"{path}: a .npy file must begin with {MAGIC!r}; found {head[:8]!r} in {stamp.size} bytes; write it again"
        raise DataLostError(msg)
    if dtype is None or shape is None:
        msg = (
            f"{path}: where a file is not a .npy file, the dtype and shape of a row are needed; give dtype= and shape="
        )
        raise ConfigError(msg)
    form = _checked(RowForm(dtype, shape), path)
    rows, rest = divmod(stamp.size, form.size)
    if rest:
        msg = (
            f"{path}#{rows}: a file must hold whole rows of {form}, {form.size} bytes each; found only {rest} "
            "bytes of this row; fetch the file again, or correct dtype= and shape="
        )
        raise DataLostError(msg)
    return ArrayFile(path, stamp, 0, check_rows(rows, path)), form


def check_rows(rows: int, told: str) -> int:
    """The number of rows; ConfigError where there are more than ids can name."""
    if rows > MAX_POSITION + 1:
        msg = (
            f"{told}: an array may have at most {MAX_POSITION + 1} rows (2**40); found {rows}; give several arrays, "
            "or longer rows"
        )
        raise ConfigError(msg)
    return rows


def _npy(
    path: str, stamp: Stamp, head: bytes, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None
) -> tuple[ArrayFile, RowForm]:
    try:
        start, found, sides, order = header_of(head)
    except FormatError as error:
        msg = f"{path}: {error}; save an array of numbers: numpy.save(path, array)"
        raise SourceError(msg) from error
    _check_dtype(found, path, str(found), SourceError)
    if order == "F" and len(sides) > 1:
        msg = (
            f"{path}: rows must be stored one after the other (C order); found Fortran order; save "
            "numpy.ascontiguousarray(array)"
        )
        raise SourceError(msg)
    if not sides or 0 in sides[1:]:
        msg = f"{path}: an array must have at least one row, and numbers in it; found the shape {sides}"
        raise SourceError(msg)
    form = _checked(RowForm(found, sides[1:]), path)
    if (dtype or found) != found or (sides[1:] if shape is None else shape) != form.shape:
        told = f"{found if dtype is None else dtype} {form.shape if shape is None else shape}"
        msg = f"{path}: must hold rows of {told}, as dtype= and shape= say; found {form}; leave both out"
        raise ConfigError(msg)
    whole = (stamp.size - start) // form.size
    if whole < sides[0] or stamp.size != start + sides[0] * form.size:
        what = f"it ends at byte {stamp.size}" if whole < sides[0] else f"it has {stamp.size} bytes, which is more"
        msg = (
            f"{path}#{min(whole, sides[0])}: a file must hold the {sides[0]} rows of {form} that its header "
            f"says, {start + sides[0] * form.size} bytes in all; found that {what}; fetch or write it again"
        )
        raise DataLostError(msg)
    return ArrayFile(path, stamp, start, check_rows(sides[0], path)), form


def _check_dtype(dtype: np.dtype[Any], told: str, found: str, error: type[ConfigError | SourceError]) -> None:
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or dtype.byteorder == ">":
        cure = "; convert them: array.astype('<f4')" if dtype.byteorder == ">" else ""
        msg = f"{told}: rows must hold little-endian numbers of NumPy, or bool; found {found}{cure}"
        raise error(msg)


def _checked(form: RowForm, told: str) -> RowForm:
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if form.size > most:
        msg = (
            f"{told}: a row must fit into memory; found rows of {form}, {form.size} bytes each, and {most} bytes of "
            "memory"
        )
        raise ConfigError(msg)
    return form
