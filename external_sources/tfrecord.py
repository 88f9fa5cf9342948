"""TFRecord files: records of TensorFlow's writer, each a `tf.train.Example` or anything else that a format reads."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dali_feed.external_sources.file_source import (
    Frames,
    Framing,
    RecordFiles,
    files_of,
    images_and_labels,
    load,
    members_of,
)
from dali_feed.external_sources.index import DamageError, ReadWindow, RecordIndex
from dali_feed.formats import format_of
from dali_feed.formats.example import Example
from dali_feed.formats.format import Format
from dali_feed.packages import needed
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block, Fault, Member

# CRC-32C (Castagnoli; RFC 3720, appendix B.4), which guards TFRecords.


def masked(crc: int) -> int:
    """As TFRecords keep it: a text that holds its own CRC would have a CRC that says nothing."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes | memoryview) -> int:
    """The CRC of contiguous bytes. MissingPackageError where google-crc32c is not installed."""
    return _google_value()(bytes(data))  # it takes nothing else; a copy costs less than the CRC


@functools.cache
def _google_value() -> Callable[[bytes], int]:
    with needed():
        import google_crc32c
    value: Callable[[bytes], int] = google_crc32c.value
    return value


# How TFRecord files are framed.
#
# As tensorflow/core/lib/io/record_writer.h has it, all numbers little-endian:
#
#     uint64 length | uint32 masked CRC-32C of the length | the record | uint32 masked CRC-32C of the record
#
# The law: no length is believed before its CRC is right, and no record is given whose CRC is wrong.


_HEAD, _TAIL = 12, 4
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def _frames(piece: ReadWindow, end: int) -> Frames:
    unpack = _LENGTH.unpack_from
    starts: list[int] = []
    sizes: list[int] = []
    at = 0
    while at < end:
        head = piece(at, _HEAD)
        there = end - at - _HEAD
        if len(head) < _HEAD:
            raise DamageError(at, f"{end - at} of {_HEAD} bytes of a header", len(starts))
        if masked(crc32c(head[: _LENGTH.size])) != _CRC.unpack_from(head, _LENGTH.size)[0]:
            raise DamageError(at, "a length whose CRC is wrong", len(starts))
        (size,) = unpack(head)
        if size > there - _TAIL:
            raise DamageError(at, f"{there} of {size + _TAIL} bytes of a record", len(starts))
        starts.append(at)
        sizes.append(size)
        at += _HEAD + size + _TAIL
    return np.array(starts, np.int64) + _HEAD, np.array(sizes, np.int64) + _TAIL


TFRECORD = Framing("TFRecord", _frames)

AUTO, VALUE = "auto", "value"
IMAGES = ("image/encoded", "image", "image_raw", "jpeg", "jpg", "png")  # what people call them, the foremost counts
LABELS = ("image/class/label", "label", "class", "cls")


class TFRecords(RecordFiles):
    """Records of TFRecord files. A file is a partition, and a record's index in it is its position.

    paths      one pattern or path, or a sequence of them. Patterns may hold `*`, `?`, `[..]`, `{a,b}` and ranges like
               `{0000..0099}`. One pattern's files are sorted by name; a sequence keeps its order.
    image      the feature that is the image; "auto": `image/encoded`, `image`, ... whichever the records have; None:
               they have none, and are read with `columns=`
    label      the feature of one integer that is the label; "auto": `image/class/label`, `label`, ... or none; None
    format     what a record is: `tf.train.Example`, whose features are the members; another format ("json", or an
               object of `dali_feed.formats`), whose paths they are; None: bytes, the member `value`
    index_dir  where indexes are kept; None: beside each file, else in the user's cache

    Lengths are checked by their CRC when a file is indexed, records by theirs when they are read: a wrong one is a bad
    record. That takes `pip install google-crc32c`.

    Raises:
        ConfigError: an argument has a value that is not allowed, or a file is named twice.
        SourceNotFoundError: a pattern matches nothing, or a named file is not there.
    """

    kind = "TFRecords"
    inner = VALUE

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        image: str | None = AUTO,
        label: str | None = AUTO,
        format: Format | str | None = "tf-example",  # noqa: A002  what users call it
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(*files_of("TFRecords", paths))
        self._format = None if format is None else format_of(format)
        self._image, self._label, self._index_dir = image, label, index_dir

    @property
    def preset(self) -> Mapping[str, Any]:
        """`image`, and `label` where there is one; "auto" needs a look at some records.

        Raises:
            ConfigError: there is no image to give without `columns=`.
        """
        image, label = self._image, self._label
        known = {member.name for member in self.members()} if AUTO in {image, label} else set()
        if image == AUTO:
            image = VALUE if self._format is None else next((name for name in IMAGES if name in known), None)
        if label == AUTO:
            label = next((name for name in LABELS if name in known), None)
        return images_and_labels(self._title, image, label, self._label)

    def format_of(self, member: str) -> Format | None:
        """The records' own."""
        return self._format if member == VALUE else None

    def can_have(self, member: str) -> bool:
        """`value`; features are paths in it."""
        return member == VALUE

    def has_path(self, member: str, path: str) -> bool:
        """Whether some of the records that were looked at have the feature; of another format nobody knows."""
        return not isinstance(self._format, Example) or super().can_have(path.removesuffix("[]"))

    def lacks(self, member: str) -> str:
        """Features that a record has not are None, as empty ones are."""
        del member
        return "has no such member"

    def readable(self) -> Sequence[str]:
        """A record has no more."""
        return (VALUE,)

    def looked(self) -> tuple[Member, ...]:
        """`value`, or what the format finds in it; of records that cannot be read there are none."""
        block = self._looked(self.readable())
        values = [value for row, value in enumerate(block.values[VALUE]) if row not in block.faults]
        by_name: dict[str, list[Any]] = {}
        for value in values:
            for name, each in self._inside(value).items():
                by_name.setdefault(name, []).append(each)
        block.lease.release()
        return members_of(by_name, len(block.ids))

    def _inside(self, value: memoryview) -> Mapping[str, Any]:
        if self._format is None:
            return {VALUE: value}
        try:
            return self._format.members(value)
        except Exception:  # noqa: BLE001 - a format may raise anything; a record's reader will say so
            return {}

    def index(self, path: str) -> RecordIndex:
        """See `file_source.load`."""
        return load(path, TFRECORD, self._index_dir, self._store)

    def finish(self, block: Block, read: list[Pieces], members: tuple[str, ...]) -> None:
        """Records without their CRC, which each is held against."""
        (frames,) = read
        for row, frame in enumerate(frames.views()):
            record = frame[:-_TAIL] if frame is not None else b""
            if frame is None or masked(crc32c(record)) != _CRC.unpack_from(frame, len(record))[0]:
                block.faults[row] = Fault("source", "the record's CRC is wrong: its bytes are not what was written")
        records = Pieces(frames.memories, frames.of, frames.at, frames.size - _TAIL)
        block.values = dict.fromkeys(members, records)
