"""How MXNet's RecordIO files are framed.

As dmlc-core/include/dmlc/recordio.h has it, all numbers little-endian:

    uint32 0xced7230a | uint32 part << 29 | length | the part | zeros up to a multiple of 4

A record that holds those four bytes at a multiple of 4 is cut there, and they are left out: its parts are numbered
1 (the first), 2, 2, ..., 3 (the last); 0 is a whole record. The law: every frame begins as it must, and parts are in
order. There is no checksum: a byte that is flipped inside a record is not seen here.
"""

from __future__ import annotations

import struct

import numpy as np

from dali_feed.external_sources.record_files.frames import BrokenError, Frames, Framing, Pread, Window

__all__ = ["RECORDIO"]

_MAGIC = 0xCED7230A
_MARK = struct.pack("<I", _MAGIC)
_HEAD = 8
_WHOLE, _FIRST, _LAST = 0, 1, 3
_WORDS = struct.Struct("<II")
_WORD = struct.Struct("<I")
_LENGTH = (1 << 29) - 1


def _frames(pread: Pread, end: int) -> Frames:
    piece = Window(pread).piece
    starts: list[int] = []
    stops: list[int] = []
    at, begun = 0, False
    while at < end:
        head = piece(at, _HEAD)
        if len(head) < _HEAD:
            raise BrokenError(len(stops), at, f"{len(head)} of {_HEAD} bytes of a header")
        mark, word = _WORDS.unpack(head)
        part, size = word >> 29, word & _LENGTH
        if mark != _MAGIC:
            raise BrokenError(len(stops), at, f"a frame that begins with {head[:4].hex()}, not with {_MARK.hex()}")
        if part > _LAST or (part in {_WHOLE, _FIRST}) == begun:
            raise BrokenError(len(stops), at, f"part {part} of a record, {'inside' if begun else 'outside'} of one")
        if at + _HEAD + size > end:
            raise BrokenError(len(stops), at, f"{end - at - _HEAD} of {size} bytes of a record")
        if not begun:
            starts.append(at + 4)
        begun = part in {_FIRST, 2}
        if not begun:
            stops.append(at + _HEAD + size)
        at += _HEAD + (size + 3) // 4 * 4
    if begun:
        raise BrokenError(len(stops), end, "the end of the file, and not the last part of a record")
    first = np.array(starts, np.int64)
    return first, np.array(stops, np.int64) - first


def _value(piece: memoryview) -> memoryview | str:
    """A whole record is a view; parts are put together, with the bytes at which they were cut."""
    if len(piece) >= 4 and _WORD.unpack_from(piece)[0] == len(piece) - 4:
        return piece[4:]
    parts, at, stop = [], 0, 0
    while at + 4 <= len(piece):
        stop = at + 4 + (_WORD.unpack_from(piece, at)[0] & _LENGTH)
        parts.append(piece[at + 4 : stop])
        at = (stop + 3) // 4 * 4 + 4  # past the next frame's mark, as the first one's was left out
    if stop != len(piece):
        return "the last part of the record does not end where the record ends: the file was not written to its end"
    return memoryview(_MARK.join(parts))


RECORDIO = Framing("RecordIO", _frames, lambda *_: "", _value)
