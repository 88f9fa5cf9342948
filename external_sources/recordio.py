"""RecordIO files, as MXNet's im2rec and `mxnet.recordio` write them."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dali_feed.errors import ConfigError, FormatError
from dali_feed.external_sources.file_source import (
    BrokenError,
    Frames,
    Framing,
    RecordFiles,
    RecordIndex,
    files_of,
    load,
)
from dali_feed.external_sources.index import Pread, ReadWindow
from dali_feed.formats.format import Parse, Value, checked

__all__ = ["RECORDIO", "IRHeader", "RecordIO"]


# How MXNet's RecordIO files are framed.
#
# As dmlc-core/include/dmlc/recordio.h has it, all numbers little-endian:
#
#     uint32 0xced7230a | uint32 part << 29 | length | the part | zeros up to a multiple of 4
#
# A record that holds those four bytes at a multiple of 4 is cut there, and they are left out: its parts are numbered
# 1 (the first), 2, 2, ..., 3 (the last); 0 is a whole record. The law: every frame begins as it must, and parts are in
# order. There is no checksum: a byte that is flipped inside a record is not seen here.


_MAGIC = 0xCED7230A
_MARK = struct.pack("<I", _MAGIC)
_HEAD = 8
_WHOLE, _FIRST, _LAST = 0, 1, 3
_WORDS = struct.Struct("<II")
_WORD = struct.Struct("<I")
_LENGTH = (1 << 29) - 1


def _frames(pread: Pread, end: int) -> Frames:
    piece = ReadWindow(pread).piece
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

# MXNet's `IRHeader` before what a record of RecordIO holds.
#
# As python/mxnet/recordio.py has it, all little-endian:
#
# uint32 flag | float32 label | uint64 id | uint64 id2 | flag times float32: the labels, where flag is not 0 | the rest


_IR_HEAD = struct.Struct("<IfQQ")


@dataclass(frozen=True, slots=True)
class IRHeader:
    """What `mxnet.recordio.pack` and `pack_img` make. Members: `image`, the bytes after the header, a view; `label`, a
    float or a float32 array; `id` and `id2`, ints.
    """

    names: ClassVar[tuple[str, ...]] = ("image", "label", "id", "id2")

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads these members. ConfigError for any other."""
        for name in checked(members):
            if name not in self.names:
                msg = f"RecordIO: member {name!r}: a record has only {', '.join(self.names)}"
                raise ConfigError(msg)
        order = tuple(map(self.names.index, members))

        def parse(value: Value) -> tuple[Any, ...]:
            found = _parsed(memoryview(value))
            return tuple(found[place] for place in order)

        return parse

    def members(self, value: Value) -> dict[str, Any]:
        """All four."""
        return dict(zip(self.names, _parsed(memoryview(value)), strict=True))


def _parsed(value: memoryview) -> tuple[Any, ...]:
    if len(value) < _IR_HEAD.size:
        msg = f"RecordIO: a record must begin with a header of {_IR_HEAD.size} bytes; found {len(value)}"
        raise FormatError(msg)
    flag, label, first, second = _IR_HEAD.unpack_from(value)
    at = _IR_HEAD.size + 4 * flag
    if at > len(value):
        msg = f"RecordIO: {flag} labels in its header, and {len(value) - _IR_HEAD.size} bytes for them"
        raise FormatError(msg)
    labels = np.frombuffer(value, "<f4", flag, _IR_HEAD.size) if flag else label
    return value[at:], labels, first, second


class RecordIO(RecordFiles):
    """Records of `.rec` files with MXNet's header. A file is a partition, a record's index in it is its position.

    paths      one pattern or path, or a sequence of them; patterns as in `TFRecords`
    label      whether the header's label is given: a whole number, of which there is one. Vectors are read with
               `columns=`, as `Array("label", "float32", (k,))`
    index_dir  where indexes are kept; None: beside each file, else in the user's cache

    Members are `image` (the bytes after the header), `label`, `id` and `id2`. The `.idx` file is not needed: records
    come in the order in which they lie in the file. There is no checksum in the format.

    Raises:
        ConfigError: an argument has a value that is not allowed, or a file is named twice.
        SourceNotFoundError: a pattern matches nothing, or a named file is not there.
    """

    name = "RecordIO"

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        label: bool = True,
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        title, found, store = files_of("RecordIO", paths)
        super().__init__(title, found, store, RECORDIO.value, IRHeader())
        self._label, self._index_dir = label, index_dir

    def _index(self, path: str) -> RecordIndex:
        return load(path, RECORDIO, self._index_dir, self._store)

    def _chosen(self) -> tuple[str, str | None]:
        return "image", "label" if self._label else None
