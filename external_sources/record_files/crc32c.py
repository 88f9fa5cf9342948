"""CRC-32C (Castagnoli; RFC 3720, appendix B.4), which guards TFRecords.

The law: it is the same number whoever computes it. Where google-crc32c is installed that does, at the speed of memory;
else NumPy does, at a hundredth of it: a CRC is linear, so that of 1024 bytes is the exclusive or of what each byte
contributes at its place, which tables hold, and a longer text's follows from those of its parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["by_numpy", "crc32c", "crc32c_rows", "masked"]

POLYNOMIAL = 0x82F63B78  # reflected
PART = 1024  # bytes that the tables cover: a MB, which stays in the CPU's own cache
_MOST = 1 << 20  # bytes whose indexes are made at once
_ALL = 0xFFFFFFFF


def masked(crc: int) -> int:
    """As TFRecords keep it: a text that holds its own CRC would have a CRC that says nothing."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _ALL


def crc32c(data: bytes | memoryview) -> int:
    """The CRC of contiguous bytes."""
    return _quickest()(data)


@functools.cache
def _quickest() -> Callable[[bytes | memoryview], int]:
    try:
        import google_crc32c
    except ImportError:
        return by_numpy
    if google_crc32c.implementation != "c":  # theirs in Python is the slowest of all
        return by_numpy
    value: Callable[[bytes], int] = google_crc32c.value
    return lambda data: value(bytes(data))  # it takes nothing else; a copy costs less than the CRC


@functools.cache
def _tables() -> NDArray[np.uint32]:
    """[k, b]: what byte b contributes to the register when k bytes follow it, uint32 (PART, 256)."""
    one = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one = np.where(one & 1, (one >> 1) ^ np.uint32(POLYNOMIAL), one >> 1)
    out = np.empty((PART, 256), np.uint32)
    out[0] = one
    for k in range(1, PART):
        out[k] = one[out[k - 1] & 0xFF] ^ (out[k - 1] >> 8)
    return out


@functools.cache
def _places() -> tuple[NDArray[np.uint32], NDArray[np.int32], tuple[list[int], ...]]:
    """The tables flat, where each byte of PART bytes looks, and what becomes of a register by PART bytes of zeros."""
    tables = _tables()
    first = np.arange(PART - 1, -1, -1, dtype=np.int32) * 256
    zeros = tuple(tables[PART - 1 - k].tolist() for k in range(4))
    return tables.reshape(-1), first, zeros


def by_numpy(data: bytes | memoryview) -> int:
    """The CRC without any package."""
    found = np.frombuffer(data, np.uint8)
    if len(found) < 4:  # the register's start is longer
        return _few(found.tobytes())
    flat, first, (z0, z1, z2, z3) = _places()
    begun = found[:4] ^ np.uint8(0xFF)
    short = -len(found) % PART  # zeros ahead of all contribute nothing
    register, at = 0, -short
    while at < len(found):
        stop = min(len(found), at + _MOST)
        piece = np.zeros(stop - at, np.uint8) if at < 0 else found[at:stop]
        if at < 0:
            piece[short:] = found[:stop]
            piece[short : short + 4] = begun
        elif at == 0:
            piece = piece.copy()
            piece[:4] = begun
        parts = np.bitwise_xor.reduce(flat[piece.reshape(-1, PART) + first], axis=1)
        for part in parts.tolist():
            register = (
                z0[register & 255] ^ z1[register >> 8 & 255] ^ z2[register >> 16 & 255] ^ z3[register >> 24] ^ part
            )
        at = stop
    return register ^ _ALL


def _few(data: bytes) -> int:
    one, register = _tables()[0], _ALL
    for byte in data:
        register = int(one[(register ^ byte) & 255]) ^ register >> 8
    return register ^ _ALL


def crc32c_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The CRC of each row, uint8 (n, width) with 4 <= width <= 1024: uint32 (n,)."""
    flat, first, _ = _places()
    begun = rows.copy()
    begun[:, :4] ^= np.uint8(0xFF)
    found = np.bitwise_xor.reduce(flat[begun + first[PART - rows.shape[1] :]], axis=1)
    return np.asarray(found ^ np.uint32(_ALL), np.uint32)
