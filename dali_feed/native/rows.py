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

__all__ = ["Memories", "decimals", "fill", "padded", "together"]

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
        for row, (which, first) in enumerate(zip(of.tolist(), at.tolist(), strict=True)):
            stop = first + int(size[row])
            if not 0 <= which < len(self.arrays):
                msg = f"rows: each must lie in one of {len(self.arrays)} memories; found memory {which} for row {row}"
                raise ValueError(msg)
            if not 0 <= first <= stop <= len(self.arrays[which]):
                held = len(self.arrays[which])
                msg = f"rows: each must lie in its memory; found bytes {first} to {stop} of {held} for row {row}"
                raise ValueError(msg)


def together(memories: Memories, of: Int64s, at: Int64s, size: Int64s, out: Bytes) -> bool:
    """`out`, uint8 (bytes,) and contiguous, is the size[k] bytes from at[k] on of memory of[k], row after row.

    False, and nothing has been done, where there is no library. ValueError as `Memories.check`.
    """
    of, at, size = (np.ascontiguousarray(array, np.int64) for array in (of, at, size))
    memories.check(of, at, size)
    _check(out, int(size.sum()))
    if {len(at), len(size)} != {len(of)}:
        msg = f"rows: each of {len(of)} must say where it lies; found {len(at)} and {len(size)}"
        raise ValueError(msg)
    if (calls := _calls()) is None:
        return False
    pointers = (array.ctypes.data for array in (memories.addresses, of, at, size))
    calls[0](*pointers, len(of), out.ctypes.data)
    return True


def padded(memories: Memories, of: Int64s, at: Int64s, size: Int64s, out: Bytes) -> bool:
    """The same with size[k] bytes for row k and zeros behind, or none where of[k] is -1; what does not fit is left out.

    False, and nothing has been done, where there is no library. ValueError as `Memories.check`.
    """
    rows, width = out.shape
    of, at = np.ascontiguousarray(of, np.int64), np.ascontiguousarray(at, np.int64)
    size = np.ascontiguousarray(np.where(of < 0, 0, size).clip(0, width), np.int64)
    _check(out, len(of), len(at), len(size))
    if not rows or not width:
        return True
    there = np.flatnonzero(size)
    memories.check(of[there], at[there], size[there])
    if (calls := _calls()) is None:
        return False
    pointers = (array.ctypes.data for array in (memories.addresses, of, at, size))
    calls[1](*pointers, rows, width, out.ctypes.data)
    return True


def decimals(memories: Memories, of: Int64s, at: Int64s, size: Int64s, out: Int64s) -> bool | None:
    """Number k of `out`, int64 (rows,), is what the size[k] bytes from at[k] on of memory of[k] are in decimal digits.

    Of 18 digits at most. False where a row is anything else, and None where there is no library. ValueError as
    `Memories.check`.
    """
    of, at, size = (np.ascontiguousarray(array, np.int64) for array in (of, at, size))
    if not (out.flags.c_contiguous and out.flags.writeable and {len(of), len(at), len(size)} == {len(out)}):
        msg = f"rows: out must be a number for each of {len(of)} rows, that can be written; found {out.shape}"
        raise ValueError(msg)
    memories.check(of, at, size)
    if (calls := _calls()) is None:
        return None
    pointers = (array.ctypes.data for array in (memories.addresses, of, at, size))
    return bool(calls[2](*pointers, len(out), out.ctypes.data) == len(out))


def fill(fd: NDArray[np.int32], at: Int64s, size: Int64s, to: Int64s, out: Bytes) -> tuple[int, Int64s] | None:
    """Row k, `size[k]` bytes from byte `at[k]` of the open file `fd[k]`, is read to `out[to[k]:]`, uint8 (bytes,).

    Reads of up to 1 MiB take what the page cache has. Rows that are neighbours in a file should follow each other.
    Gives the number of reads, and of each row its size, or -1 where it did not come whole. None, and nothing has been
    read, where there is no library. ValueError where a row does not lie in `out`, or has fewer than 0 bytes.
    """
    fd = np.ascontiguousarray(fd, np.int32)
    at, size, to = (np.ascontiguousarray(array, np.int64) for array in (at, size, to))
    if out.dtype != np.uint8 or out.ndim != 1 or not (out.flags.c_contiguous and out.flags.writeable):
        msg = f"rows: out must be contiguous uint8 that can be written, of one side; found {out.dtype} {out.shape}"
        raise ValueError(msg)
    if {len(at), len(size), len(to)} != {len(fd)}:
        msg = f"rows: each of {len(fd)} must say where it lies and goes; found {len(at)}, {len(size)}, {len(to)}"
        raise ValueError(msg)
    wrong = (at < 0) | (size < 0) | (to < 0) | (to > len(out) - size)
    if wrong.any():
        row = int(wrong.argmax())
        msg = (
            f"rows: each must lie in a file, and go to one of {len(out)} bytes; found {int(size[row])} bytes from "
            f"{int(at[row])}, to {int(to[row])}, for row {row}"
        )
        raise ValueError(msg)
    if (calls := _calls()) is None:
        return None
    got = np.empty(len(fd), np.int64)
    pointers = (array.ctypes.data for array in (fd, at, size, to))
    return calls[3](*pointers, len(fd), out.ctypes.data, got.ctypes.data), got


def _check(out: Bytes, *rows: int) -> None:
    """ValueError where `out` cannot be written as one piece, or does not have as many rows as there are."""
    flags = out.flags
    if out.dtype != np.uint8 or not (flags.c_contiguous and flags.writeable) or {*rows} != {len(out)}:
        msg = f"rows: out must be contiguous uint8 that can be written, a row for each of {rows[0]}; found {out.shape}"
        raise ValueError(msg)


@cache
def _calls() -> tuple[Any, Any, Any, Any] | None:
    """The functions of the library; None where there is none."""
    found = library()
    if found is None:
        return None
    together, padded, decimals, filled = (
        getattr(found, f"dali_feed_rows_{name}") for name in ("together", "padded", "decimals", "fill")
    )
    together.argtypes = (*(_ADDRESS,) * 4, _NUMBER, _ADDRESS)
    padded.argtypes = (*(_ADDRESS,) * 4, *(_NUMBER,) * 2, _ADDRESS)
    decimals.argtypes = (*(_ADDRESS,) * 4, _NUMBER, _ADDRESS)
    filled.argtypes = (*(_ADDRESS,) * 4, _NUMBER, *(_ADDRESS,) * 2)
    together.restype = padded.restype = None
    decimals.restype = filled.restype = _NUMBER
    return together, padded, decimals, filled
