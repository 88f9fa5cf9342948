"""How TFRecord files are framed.

As tensorflow/core/lib/io/record_writer.h has it, all numbers little-endian:

    uint64 length | uint32 masked CRC-32C of the length | the record | uint32 masked CRC-32C of the record

The law: no length is believed before its CRC is right, and no record is given whose CRC is wrong.
"""

from __future__ import annotations

import shlex
import struct

import numpy as np

from dali_feed.external_sources.record_files.crc32c import crc32c, masked
from dali_feed.external_sources.record_files.frames import BrokenError, Frames, Framing, Pread, Window

__all__ = ["TFRECORD"]

_HEAD, _TAIL = 12, 4
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def _frames(pread: Pread, end: int) -> Frames:
    piece, unpack = Window(pread).piece, _LENGTH.unpack_from
    starts: list[int] = []
    sizes: list[int] = []
    at = 0
    while at < end:
        head = piece(at, _HEAD)
        there = end - at - _HEAD
        if len(head) < _HEAD:
            raise BrokenError(len(starts), at, f"{end - at} of {_HEAD} bytes of a header")
        if masked(crc32c(head[: _LENGTH.size])) != _CRC.unpack_from(head, _LENGTH.size)[0]:
            raise BrokenError(len(starts), at, "a length whose CRC is wrong")
        (size,) = unpack(head)
        if size > there - _TAIL:
            raise BrokenError(len(starts), at, f"{there} of {size + _TAIL} bytes of a record")
        starts.append(at)
        sizes.append(size)
        at += _HEAD + size + _TAIL
    return np.array(starts, np.int64) + _HEAD, np.array(sizes, np.int64) + _TAIL


def _other(head: bytes, path: str) -> str:
    """A compressed file is what a TFRecordWriter with options writes."""
    name = shlex.quote(path)
    if head.startswith(b"\x1f\x8b"):
        return f"a file compressed by GZIP; unpack it: gzip -dc < {name} > {name}.plain"
    if len(head) > 1 and head[0] & 15 == 8 and (head[0] << 8 | head[1]) % 31 == 0:  # RFC 1950
        return f"a file compressed by ZLIB; unpack it: zlib-flate -uncompress < {name} > {name}.plain"
    return ""


def _value(piece: memoryview) -> memoryview | str:
    record = piece[:-_TAIL]
    if masked(crc32c(record)) != _CRC.unpack_from(piece, len(record))[0]:
        return "the record's CRC is wrong: its bytes are not what was written"
    return record


TFRECORD = Framing("TFRecord", _frames, _other, _value)
