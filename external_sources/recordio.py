"""RecordIO files, as MXNet's im2rec and `mxnet.recordio` write them."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.external_sources.file_source import (
    Frames,
    Framing,
    RecordFiles,
    files_of,
    images_and_labels,
    load,
)
from dali_feed.external_sources.index import DamageError, ReadWindow, RecordIndex
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block, Fault

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


def _frames(piece: ReadWindow, end: int) -> Frames:
    starts: list[int] = []
    stops: list[int] = []
    at, begun = 0, False
    while at < end:
        head = piece(at, _HEAD)
        if len(head) < _HEAD:
            raise DamageError(at, f"{len(head)} of {_HEAD} bytes of a header", len(stops))
        mark, word = _WORDS.unpack(head)
        part, size = word >> 29, word & _LENGTH
        if mark != _MAGIC:
            raise DamageError(at, f"a frame that begins with {head[:4].hex()}, not with {_MARK.hex()}", len(stops))
        if part > _LAST or (part in {_WHOLE, _FIRST}) == begun:
            raise DamageError(at, f"part {part} of a record, {'inside' if begun else 'outside'} of one", len(stops))
        if at + _HEAD + size > end:
            raise DamageError(at, f"{end - at - _HEAD} of {size} bytes of a record", len(stops))
        if not begun:
            starts.append(at + 4)
        begun = part in {_FIRST, 2}
        if not begun:
            stops.append(at + _HEAD + size)
        at += _HEAD + (size + 3) // 4 * 4
    if begun:
        raise DamageError(end, "the end of the file, and not the last part of a record", len(stops))
    first = np.array(starts, np.int64)
    return first, np.array(stops, np.int64) - first


def joined(parts: memoryview) -> bytes | None:
    """A record that its file holds in parts, with the bytes at which it was cut; None where its last part is broken."""
    pieces, at, stop = [], 0, 0
    while at + 4 <= len(parts):
        stop = at + 4 + (_WORD.unpack_from(parts, at)[0] & _LENGTH)
        pieces.append(parts[at + 4 : stop])
        at = (stop + 3) // 4 * 4 + 4  # past the next frame's mark, as the first one's was left out
    return _MARK.join(pieces) if stop == len(parts) else None


RECORDIO = Framing("RecordIO", _frames)
MEMBERS = ("image", "label", "id", "id2")

# MXNet's `IRHeader` before what a record holds, as python/mxnet/recordio.py has it. Behind it come `flag` times
# float32, the labels where flag is not 0, and then the rest.

_HEADER = np.dtype([("flag", "<u4"), ("label", "<f4"), ("id", "<u8"), ("id2", "<u8")])
_UNENDED = "the last part of the record does not end where the record ends: the file was not written to its end"


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

    kind = "RecordIO"

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        label: bool = True,
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(*files_of("RecordIO", paths))
        self._label, self._index_dir = label, index_dir

    @property
    def preset(self) -> Mapping[str, Any]:
        """`image`, and `label` where it is given."""
        return images_and_labels(self._title, "image", "label" if self._label else None)

    def can_have(self, member: str) -> bool:
        """Whether it is one of the four."""
        return member in MEMBERS

    def readable(self) -> Sequence[str]:
        """All four."""
        return MEMBERS

    def index(self, path: str) -> RecordIndex:
        """See `file_source.load`."""
        return load(path, RECORDIO, self._index_dir, self._store)

    def finish(self, block: Block, read: list[Pieces], members: tuple[str, ...]) -> None:
        """Members of records, whose headers are read all at once. Only a record in parts is copied."""
        records = _records(block, read[0])
        head = records[records.of >= 0].padded(_HEADER.itemsize).view(_HEADER).reshape(-1)
        header = np.zeros(len(records), _HEADER)
        header[records.of >= 0] = head
        begin = _HEADER.itemsize + 4 * header["flag"].astype(np.int64)
        bad = (records.of >= 0) & (records.size < begin)
        for row in np.flatnonzero(bad).tolist():
            block.faults[row] = Fault("source", _short(int(records.size[row]), int(header["flag"][row])))
        of = np.where(bad, -1, records.of)
        values: dict[str, Any] = {"image": Pieces(records.memories, of, records.at + begin, records.size - begin)}
        if "label" in members:
            values["label"] = _labels(records, header, of >= 0)
        for name in ("id", "id2"):
            whole = header[name]
            values[name] = whole if (whole >> np.uint64(63)).any() else whole.astype(np.int64)
        block.values = {name: values[name] for name in members}


def _records(block: Block, frames: Pieces) -> Pieces:
    """What the frames hold: views of whole ones, parts put together; none, and a fault, where that cannot be."""
    word = frames.padded(4).view("<u4").reshape(-1).astype(np.int64)
    records = Pieces(frames.memories, frames.of.copy(), frames.at + 4, frames.size - 4)
    for row in np.flatnonzero((word != frames.size - 4) | (frames.size < 4)).tolist():
        part = frames[row]
        whole = None if part is None else joined(part)
        records[row] = view = None if whole is None else block.lease.room(len(whole))
        if whole is None:
            block.faults[row] = Fault("source", _UNENDED)
        elif view is not None:
            view[:] = whole
    return records


def _labels(records: Pieces, header: NDArray[Any], good: NDArray[np.bool_]) -> Any:
    """The labels in the headers, float32 (n,); a list where a record has several, which are an array."""
    flags = np.where(good, header["flag"], 0)
    if not flags.any():
        return header["label"]
    labels: list[Any] = header["label"].tolist()
    for row in np.flatnonzero(flags).tolist():
        labels[row] = np.frombuffer(records[row] or b"", "<f4", int(flags[row]), _HEADER.itemsize)
    return labels


def _short(size: int, flag: int) -> str:
    if size < _HEADER.itemsize:
        return f"RecordIO: a record must begin with a header of {_HEADER.itemsize} bytes; found {size}"
    return f"RecordIO: {flag} labels in its header, and {size - _HEADER.itemsize} bytes for them"
