"""How TFRecord files are framed.

As tensorflow/core/lib/io/record_writer.h has it, all numbers little-endian:

    uint64 length | uint32 masked CRC-32C of the length | the record | uint32 masked CRC-32C of the record

The law: no length is believed before its CRC is right, and no record is given whose CRC is wrong.
"""

from __future__ import annotations

import shlex
import struct

import numpy as np

from dali_feed.external_sources.record_files.crc32c import crc32c, crc32c_rows, masked
from dali_feed.external_sources.record_files.frames import BrokenError, Frames, Framing, Pread, Window

__all__ = ["TFRECORD"]

_HEAD, _TAIL = 12, 4
_AT_ONCE = 4096  # lengths whose CRCs are checked together: of one alone most of the time is the call's
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def _frames(pread: Pread, end: int) -> Frames:
    piece, unpack = Window(pread).piece, _LENGTH.unpack_from
    starts: list[int] = []
    sizes: list[int] = []
    heads: list[bytes] = []
    at = 0
    while at < end:
        head = piece(at, _HEAD)
        if len(head) == _HEAD:
            (size,) = unpack(head)
            heads.append(head)
            starts.append(at)
            sizes.append(size)
        whole = len(head) == _HEAD and size <= end - at - _HEAD - _TAIL
        if len(heads) == _AT_ONCE or not whole:
            _check(heads, starts)
            heads = []
        if not whole:
            there = end - at - _HEAD
            found = (
                f"{there} of {size + _TAIL} bytes of a record"
                if there >= 0
                else f"{end - at} of {_HEAD} bytes of a header"
            )
            raise BrokenError(len(starts) - (there >= 0), at, found)
        at += _HEAD + size + _TAIL
    _check(heads, starts)
    return np.array(starts, np.int64) + _HEAD, np.array(sizes, np.int64) + _TAIL


def _check(heads: list[bytes], starts: list[int]) -> None:
    """BrokenError for the first of the last lengths that is not what was written."""
    rows = np.frombuffer(b"".join(heads), np.uint8).reshape(-1, _HEAD)
    crc = crc32c_rows(rows[:, : _LENGTH.size])
    right = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    wrong = np.flatnonzero(right != rows[:, _LENGTH.size :].copy().view("<u4")[:, 0])
    if len(wrong):
        record = len(starts) - len(heads) + int(wrong[0])
        raise BrokenError(record, starts[record], "a length whose CRC is wrong")


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
