"""The compiled library, loaded once, or None; and its loops over rows of bytes and over pixels, as Python calls them.

The law: what C is told lies inside the memory that it is told of, however wrong a source's numbers are. Every row is
checked against the memory that it lies in, or goes to, before anything is copied, here and in the Python way alike; of
an image it is the address, shape and strides of a tensor.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

SWITCH = "DALI_FEED_NATIVE"  # in the environment: 0 leaves the library alone
VERSION = 8  # of native.h


@cache
def library() -> ctypes.CDLL | None:
    """The library; None where it was not compiled, was switched off, or is one of other sources than this file.

    Asked for once in a process: the environment counts as it was then.
    """
    if os.environ.get(SWITCH) == "0":
        return None
    for path in sorted(Path(__file__).parent.glob("_native*.so")):
        try:
            loaded = ctypes.CDLL(str(path))
            version = loaded.dali_feed_native()
        except (OSError, AttributeError):  # of another machine
            continue
        if version == VERSION:
            return loaded
        warnings.warn(
            f"{path.name} was compiled from other sources (version {version}, needed {VERSION}) and is not used: all "
            "works without it, slower; install dali_feed again (pip install -e .)",
            RuntimeWarning,
            stacklevel=2,
        )
    return None


def used() -> str:
    """Whether this process uses the library, for people: "yes", "no" (not compiled) or "switched off"."""
    if library() is not None:
        return "yes"
    return "switched off" if os.environ.get(SWITCH) == "0" else "no"


# Rows that lie anywhere, in memories or in files, put side by side into one output: a batch in one call, with the lock
# released.


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


class Filled(NamedTuple):
    """What came of reads: how many there were, the bytes of all rows that came whole, and the rows that did not."""

    reads: int
    bytes: int
    late: Int64s


def fill(
    fds: NDArray[np.int32], file: Int64s, at: Int64s, size: Int64s, to: Int64s, out: Bytes, order: Int64s | None = None
) -> Filled | None:
    """Row k, `size[k]` bytes from byte `at[k]` of the file that `fds[file[k]]` has open, is read to `out[to[k]:]`.

    fds    of each file; below 0: none, and its rows are late
    out    uint8 (bytes,)
    order  rows, int64: those are read, and neighbours in a file should follow each other; None: all, as they are

    Reads of up to 1 MiB take what the page cache has. None, and nothing has been read, where there is no library.
    ValueError where a row lies in none of the files, does not lie in `out`, or has fewer than 0 bytes.
    """
    file, at, size, to = _rows(file, at, size, to)
    target, calls = _written(out, np.uint8), _calls()
    if calls is None:
        return None
    fds, count = np.ascontiguousarray(fds, np.int32), len(file)
    (order,) = (None,) if order is None else _rows(order)
    late, done = np.empty(count if order is None else len(order), np.int64), np.zeros(3, np.int64)
    way = None if order is None else order.ctypes.data
    places = _pointers(file, at, size, to)
    wrong = calls.dali_feed_rows_fill(
        *(fds.ctypes.data, len(fds), *places, count, way, len(late), target, len(out)), *_pointers(late, done)
    )
    if wrong >= 0:
        row = wrong if order is None else int(order[wrong])
        known = f"one of {count} rows, lie in one of {len(fds)} files and go to one of {len(out)} bytes"
        what = ", ".join(f"{each[row]}" for each in (file, at, size, to) if 0 <= row < count)
        raise ValueError(f"rows: each must be {known}; found file, place, size and place there {what} for row {row}")
    reads, size_of_all, missing = done.tolist()
    return Filled(reads, size_of_all, late[:missing])


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
    filled = (_ADDRESS, _NUMBER, *(_ADDRESS,) * 4, _NUMBER, *(_ADDRESS, _NUMBER) * 2, _ADDRESS, _ADDRESS)
    known.dali_feed_rows_fill.argtypes, known.dali_feed_rows_fill.restype = filled, _NUMBER
    return known


# One image of bytes into its place in a batch, in one pass over memory: `pixels.c`.


FAR = 1 << 17  # bytes of an image in the batch; from here on past the caches, which a batch of such images fills

_CHANNELS_LAST, _PAST_CACHES = 1, 2  # of pixels.c

_ARGUMENTS = (
    *(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t, ctypes.c_ssize_t),  # the image
    *(ctypes.c_size_t, ctypes.c_size_t),
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
)


class PixelWriter:
    """Writes images. Used by many threads at once.

    table          what each of 256 levels becomes, (3, 256) of values of 1, 2 or 4 bytes; None: what it was
    steps          a scale, three means and three divisors that make the floats of the table, if any do: `steps_of`
    channels_last  a place is (height, width, 3), and (3, height, width) otherwise
    """

    def __init__(
        self,
        loaded: ctypes.CDLL,
        table: NDArray[Any] | None,
        *,
        steps: NDArray[np.float32] | None = None,
        channels_last: bool,
    ) -> None:
        function = loaded.dali_feed_pixels
        function.argtypes, function.restype = _ARGUMENTS, None
        self._function = function
        self._table = None if table is None else np.ascontiguousarray(table)  # kept: the C is told its address
        self._size = 1 if self._table is None else self._table.itemsize
        self._address = None if self._table is None else self._table.ctypes.data
        self._steps = None if steps is None else np.ascontiguousarray(steps, np.float32)
        self._steps_address = None if self._steps is None else self._steps.ctypes.data
        self._last = channels_last
        if self._steps is not None and self._steps.shape != (7,):
            raise ValueError(f"Pixels: steps must be (7,); found {self._steps.shape}")
        if self._table is not None and (self._table.shape != (3, 256) or self._size not in (1, 2, 4)):
            msg = f"Pixels: table must be (3, 256) of 1, 2 or 4 bytes; found {self._table.shape} of {self._size}"
            raise ValueError(msg)

    def write(self, image: Any, out: Any, *, mirrored: bool = False, upside_down: bool = False) -> bool:
        """`image` (3 or 1, height, width) into `out`; False, and nothing done, where shapes or strides are others.

        Both are tensors in this machine's memory: uint8 of any strides, and values of the table's size.
        """
        if image.dim() != 3:
            return False
        channels, height, width = image.shape
        wanted = (height, width, 3) if self._last else (3, height, width)
        if out.shape != wanted or channels not in (1, 3) or not out.is_contiguous() or out.itemsize != self._size:
            return False
        channel, row, pixel = image.stride()
        first = image.data_ptr()
        if channels == 1:
            channel = 0
        if mirrored:
            first, pixel = first + (width - 1) * pixel, -pixel
        if upside_down:
            first, row = first + (height - 1) * row, -row
        how = _CHANNELS_LAST if self._last else 0
        if height * width * 3 * self._size >= FAR:
            how |= _PAST_CACHES
        to, table, steps = out.data_ptr(), self._address, self._steps_address
        self._function(first, row, pixel, channel, height, width, to, table, steps, self._size, how)
        return True


def steps_of(scale: float, mean: tuple[float, ...], std: tuple[float, ...], table: NDArray[Any]) -> Any:
    """`steps` of `PixelWriter`, where (level * scale - mean) / std in float32 has the bits of the table; else None."""
    steps = np.array([scale, *np.broadcast_to(mean, 3), *np.broadcast_to(std, 3)], np.float32)
    with np.errstate(all="ignore"):
        floats = (np.arange(256, dtype=np.float32) * steps[0] - steps[1:4, None]) / steps[4:, None]
    return steps if np.array_equal(floats.view(np.int32), table) else None


def writer(
    table: NDArray[Any] | None, *, steps: NDArray[np.float32] | None = None, channels_last: bool
) -> PixelWriter | None:
    """What writes by that table; None where there is no library."""
    loaded = library()
    return None if loaded is None else PixelWriter(loaded, table, steps=steps, channels_last=channels_last)
