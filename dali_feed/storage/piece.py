"""A piece of a file, kept in a file of its own: what it is a piece of, a checksum for each block, then its bytes.

The law: bytes that are given are those that were kept. Every read checks the head, and the blocks that it touches.
"""

from __future__ import annotations

import os
import struct
import zlib

__all__ = ["BLOCK", "HEAD", "DamagedError", "Name", "head_of", "load"]

BLOCK = 16 << 10  # bytes under one checksum: what is read and checked at least
HEAD = 4096  # bytes before the first block: a page, which has room for the checksums of 15 MiB

_FIXED = struct.Struct("<8s16sQQ")
_SUM = struct.Struct("<I")
_MAGIC = b"DFPIECE1"

Name = tuple[str, int]  # of a piece: its file's name of 32 hexadecimal digits, and its number


class DamagedError(Exception):
    """A kept piece is not what it was."""


def head_of(name: Name, data: memoryview) -> bytes:
    """The first HEAD bytes of the file of a piece with these bytes."""
    sums = [zlib.crc32(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    told = _FIXED.pack(_MAGIC, bytes.fromhex(name[0]), name[1], len(data)) + struct.pack(f"<{len(sums)}I", *sums)
    return (told + _SUM.pack(zlib.crc32(told))).ljust(HEAD, b"\0")


def load(fd: int, name: Name, length: int, at: int, view: memoryview) -> None:
    """Fill `view` from byte `at` of the piece of that name and length.

    Raises:
        DamagedError: the file is cut, or is not that piece, or bytes of it are others than were kept.
    """
    head = os.pread(fd, HEAD, 0)
    blocks = -(-length // BLOCK)
    end = _FIXED.size + 4 * blocks
    whole = len(head) == HEAD and _SUM.unpack_from(head, end)[0] == zlib.crc32(head[:end])
    if not whole or _FIXED.unpack_from(head) != (_MAGIC, bytes.fromhex(name[0]), name[1], length):
        msg = "its header is not that of the piece"
        raise DamagedError(msg)
    first, last = at // BLOCK, (at + len(view) - 1) // BLOCK
    begin, stop = first * BLOCK, min((last + 1) * BLOCK, length)
    exact = (begin, stop) == (at, at + len(view))
    room = view if exact else memoryview(bytearray(stop - begin))
    got = more = os.preadv(fd, (room,), HEAD + begin)
    while more and got < len(room):
        got += (more := os.preadv(fd, (room[got:],), HEAD + begin + got))
    sums = struct.unpack_from(f"<{last + 1 - first}I", head, _FIXED.size + 4 * first)
    for k, wanted in enumerate(sums):
        if got < len(room) or zlib.crc32(room[k * BLOCK : (k + 1) * BLOCK]) != wanted:
            msg = f"its block {first + k} has another checksum"
            raise DamagedError(msg)
    if not exact:
        view[:] = room[at - begin : at - begin + len(view)]
