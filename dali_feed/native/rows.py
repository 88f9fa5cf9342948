"""Rows that lie anywhere, in memories or in files, put side by side into one output: a batch in one call, with the lock
released.

The law: every row is checked against the memory that it lies in, or goes to, before anything is copied, here and in the
Python way alike; so C never touches what is outside of a memory, however wrong a source's numbers are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.native.library import library

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_NUMBER, _ADDRESS = ctypes.c_int64, ctypes.c_void_p


class Memories:
    """Memories of which rows are taken: where each lies and ends, looked up once for any number of calls.

    arrays  uint8 (bytes,) of each; they hold the memory, so it stays where it is
    """

    __slots__ = ("addresses", "arrays", "sizes")

    def __init__(self, arrays: list[Bytes], addresses: NDArray[np.uint64], sizes: Int64s) -> None:
        self.arrays, self.addresses, self.sizes = arrays, addresses, sizes

    @classmethod
    def of(cls, memories: Sequence[Any]) -> Memories:
        """Of contiguous memories that can be looked at as bytes, such as memoryviews."""
        arrays = [np.frombuffer(memory, np.uint8) for memory in memories]
        addresses = np.array([array.__array_interface__["data"][0] for array in arrays], np.uint64)
        return cls(arrays, addresses, np.array([len(array) for array in arrays], np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Memories]) -> Memories:
        """Those of the parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        arrays = [array for part in parts for array in part.arrays]
        addresses, sizes = (np.concatenate([getattr(part, name) for part in parts]) for name in ("addresses", "sizes"))
        return cls(arrays, addresses, sizes)

    def __len__(self) -> int:
        return len(self.arrays)

    def check(self, of: Int64s, at: Int64s, size: Int64s) -> None:
        """ValueError where a row does not lie in one of them."""
        if not len(of):
            return
        try:
            last = self.sizes[of] - size
        except IndexError:
            pass  # which row it was is found below
        else:  # no sign among them; at + size could be more than an int64 holds
            if np.minimum.reduce(of | at | size | last | (last - at)) >= 0:
                return
        for row, (which, first, count) in enumerate(zip(of.tolist(), at.tolist(), size.tolist(), strict=True)):
            if not 0 <= which < len(self):
                msg = f"rows: each must lie in one of {len(self)} memories; found memory {which} for row {row}"
                raise ValueError(msg)
            if not 0 <= first <= first + count <= self.sizes[which]:
                held = f"bytes {first} to {first + count} of {self.sizes[which]} for row {row}"
                raise ValueError(f"rows: each must lie in its memory; found {held}")


def together(memories: Memories, of: Int64s, at: Int64s, size: Int64s, out: Bytes) -> bool:
    """`out`, uint8 (bytes,) and contiguous, is the size[k] bytes from at[k] on of memory of[k], row after row.

    False, and nothing has been done, where there is no library. ValueError as `Memories.check`.
    """
    of, at, size = _rows(of, at, size)
    memories.check(of, at, size)
    to, calls = _written(out, np.uint8), _calls()
    if len(out) != size.sum():
        raise ValueError(f"rows: out must be contiguous uint8, the {size.sum()} bytes of all rows; found {len(out)}")
    if calls is None:
        return False
    calls.dali_feed_rows_together(*_pointers(memories.addresses, of, at, size), len(of), to)
    return True


def decimals(memories: Memories, of: Int64s, at: Int64s, size: Int64s, out: Int64s) -> bool | None:
    """Number k of `out`, int64 (rows,), is what the size[k] bytes from at[k] on of memory of[k] are in decimal digits.

    Of 18 digits at most. False where a row is anything else, and None where there is no library. ValueError as
    `Memories.check`.
    """
    to, calls = _written(out, np.int64), _calls()
    of, at, size, _ = _rows(of, at, size, out)
    memories.check(of, at, size)
    if calls is None:
        return None
    pointers = _pointers(memories.addresses, of, at, size)
    return bool(calls.dali_feed_rows_decimals(*pointers, len(out), to) == len(out))


def fill(fd: NDArray[np.int32], at: Int64s, size: Int64s, to: Int64s, out: Bytes) -> tuple[int, Int64s] | None:
    """Row k, `size[k]` bytes from byte `at[k]` of the open file `fd[k]`, is read to `out[to[k]:]`, uint8 (bytes,).

    Reads of up to 1 MiB take what the page cache has. Rows that are neighbours in a file should follow each other.
    Gives the number of reads, and of each row its size, or -1 where it did not come whole. None, and nothing has been
    read, where there is no library. ValueError where a row does not lie in `out`, or has fewer than 0 bytes.
    """
    at, size, to, _ = _rows(at, size, to, fd)
    wrong = (at < 0) | (size < 0) | (to < 0) | (to > len(out) - size)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"rows: each must lie in a file, and go to one of {len(out)} bytes; found {int(size[row])} bytes from "
            f"{int(at[row])}, to {int(to[row])}, for row {row}"
        )
    target, calls = _written(out, np.uint8), _calls()
    if calls is None:
        return None
    files, got = np.ascontiguousarray(fd, np.int32), np.empty(len(fd), np.int64)
    reads = calls.dali_feed_rows_fill(*_pointers(files, at, size, to), len(fd), target, got.ctypes.data)
    return reads, got


def _rows(*arrays: NDArray[Any]) -> list[Int64s]:
    """Numbers of the same rows, as C takes them; ValueError where they are of more than one length."""
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) != 1:
        raise ValueError(f"rows: each must say where it lies and goes; found numbers of {lengths} rows")
    return [np.ascontiguousarray(array, np.int64) for array in arrays]


def _written(out: NDArray[Any], dtype: type) -> int:
    """Where C writes to; ValueError where it cannot be written as one piece."""
    if out.dtype != dtype or out.ndim != 1 or not (out.flags.c_contiguous and out.flags.writeable):
        rule = f"out must be contiguous {np.dtype(dtype)} that can be written, of one side"
        raise ValueError(f"rows: {rule}; found {out.dtype} {out.shape}")
    return int(out.ctypes.data)


def _pointers(*arrays: NDArray[Any]) -> list[int]:
    return [array.ctypes.data for array in arrays]


@cache
def _calls() -> ctypes.CDLL | None:
    """The library, whose functions know what they take; None where there is none."""
    known = library()
    if known is None:
        return None
    rows = (*(_ADDRESS,) * 4, _NUMBER)
    known.dali_feed_rows_together.argtypes, known.dali_feed_rows_together.restype = (*rows, _ADDRESS), None
    known.dali_feed_rows_decimals.argtypes, known.dali_feed_rows_decimals.restype = (*rows, _ADDRESS), _NUMBER
    known.dali_feed_rows_fill.argtypes, known.dali_feed_rows_fill.restype = (*rows, _ADDRESS, _ADDRESS), _NUMBER
    return known
