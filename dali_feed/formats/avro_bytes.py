"""Avro's bytes: numbers, lengths, counts, and arrays of numbers without a Python object for each.

The law of this file: what is announced is held to the bytes that are left before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import FormatError

__all__ = ["FLAT", "Read", "booleans", "count", "long", "longs", "reals", "span"]

Read = Callable[[memoryview, int], tuple[Any, int]]  # a value, and where the next one begins

FLAT = {"boolean", "float", "double", "int", "long"}  # kinds whose arrays are given as NumPy arrays
_FEW = 16  # numbers that Python reads sooner than NumPy
_LONGEST = 10  # bytes of a number of 64 bits


def long(buf: memoryview, at: int) -> tuple[int, int]:
    """A whole number: seven bits a byte, the lowest first, its sign in the lowest bit. IndexError at the end."""
    byte = buf[at]
    value, shift = byte & 127, 0
    while byte > 127:
        at += 1
        shift += 7
        byte = buf[at]
        value |= (byte & 127) << shift
        if shift == 63 and byte > 1:
            msg = f"avro: a number at byte {at - _LONGEST + 1} has more than 64 bits"
            raise FormatError(msg)
    return (value >> 1) ^ -(value & 1), at + 1


def span(buf: memoryview, at: int) -> tuple[int, int]:
    """Where bytes or a text with their length before them begin and end."""
    size, at = long(buf, at)
    if not 0 <= size <= len(buf) - at:
        msg = f"avro: at byte {at} it says that {size} bytes follow; found {len(buf) - at}"
        raise FormatError(msg)
    return at, at + size


def count(buf: memoryview, at: int, least: int) -> tuple[int, int, int]:
    """Of a block of an array or a map: how many items of at least so many bytes; its bytes, -1 if untold; its start."""
    items, at = long(buf, at)
    size = -1
    if items < 0:
        items = -items
        size, at = long(buf, at)
        if not 0 <= size <= len(buf) - at:
            msg = f"avro: at byte {at} it says that a block of {size} bytes follows; found {len(buf) - at}"
            raise FormatError(msg)
    if items * least > len(buf) - at:
        msg = f"avro: at byte {at} it says that {items} items follow; found {len(buf) - at} bytes"
        raise FormatError(msg)
    return items, size, at


def reals(kind: str) -> Read:
    """An array of floats or doubles: where it is one block, as writers make it, a view of the value."""
    size = 4 if kind == "float" else 8
    dtype = np.dtype(f"<f{size}")

    def read(buf: memoryview, at: int) -> tuple[NDArray[Any], int]:
        blocks: list[NDArray[Any]] = []
        while True:
            items, _, at = count(buf, at, size)
            if not items:
                return _joined(blocks, dtype), at
            blocks.append(np.frombuffer(buf, dtype, items, at))
            at += items * size

    return read


def booleans(buf: memoryview, at: int) -> tuple[NDArray[Any], int]:
    """An array of booleans."""
    blocks: list[NDArray[Any]] = []
    while True:
        items, _, at = count(buf, at, 1)
        if not items:
            return _joined(blocks, np.dtype(np.bool_)), at
        block = np.frombuffer(buf, np.uint8, items, at)
        if block.max() > 1:
            msg = f"avro: a boolean at or after byte {at} is neither 0 nor 1"
            raise FormatError(msg)
        blocks.append(block.view(np.bool_))
        at += items


def longs(buf: memoryview, at: int) -> tuple[NDArray[Any], int]:
    """An array of ints or longs, int64."""
    blocks: list[NDArray[Any]] = []
    while True:
        items, _, at = count(buf, at, 1)
        if not items:
            return _joined(blocks, np.dtype(np.int64)), at
        block, at = _few(buf, at, items) if items < _FEW else _many(buf, at, items)
        blocks.append(block)


def _joined(blocks: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    if len(blocks) == 1:
        return blocks[0]
    return np.concatenate(blocks) if blocks else np.empty(0, dtype)


def _few(buf: memoryview, at: int, items: int) -> tuple[NDArray[Any], int]:
    found = []
    for _ in range(items):
        value, at = long(buf, at)
        found.append(value)
    return np.array(found, np.int64), at


def _ends(buf: memoryview, at: int, items: int) -> NDArray[np.intp]:
    """The last byte of each of so many numbers, counted from `at`."""
    most = min(len(buf) - at, items * _LONGEST)
    ends = np.flatnonzero(np.frombuffer(buf, np.uint8, most, at) < 128)[:items]
    if len(ends) < items:
        raise IndexError
    return ends


def _many(buf: memoryview, at: int, items: int) -> tuple[NDArray[Any], int]:
    ends = _ends(buf, at, items)
    data = np.frombuffer(buf, np.uint8, int(ends[-1]) + 1, at)
    starts = np.empty_like(ends)
    starts[0], starts[1:] = 0, ends[:-1] + 1
    sizes = ends - starts + 1
    longest = int(sizes.max())
    if longest > _LONGEST or (longest == _LONGEST and int(data[ends[sizes == _LONGEST]].max()) > 1):
        msg = f"avro: a number after byte {at} has more than 64 bits"
        raise FormatError(msg)
    value = (data[starts] & 127).astype(np.uint64)
    for k in range(1, longest):
        rows = np.flatnonzero(sizes > k)
        value[rows] |= (data[starts[rows] + k] & 127).astype(np.uint64) << np.uint64(7 * k)
    signed = (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64)
    return signed, at + len(data)
