"""What of a source's record becomes a Kafka record: its payload, members in one value, or a copy as it is.

A run reads a source here and nowhere else: `SourceRows` is one thread's way to what its records are made of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dali_feed.columns import Image, Number
from dali_feed.columns.request import Request, open_reader
from dali_feed.errors import ConfigError, FormatError
from dali_feed.external_sources.kafka.rows import WHOLE, WholeRecord
from dali_feed.external_sources.kafka.topic import KafkaTopic
from dali_feed.formats import Json
from dali_feed.formats.format import Format
from dali_feed.formats.paths import steps_of
from dali_feed.formats.written import Encode, encoder, has_paths, plain, told_of
from dali_feed.records.extents import Extents
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import LABEL, Block, Reader, Source, unpack_id

__all__ = ["WHERE", "Headers", "Row", "SourceRows", "Writing", "Written"]

Headers = Sequence[tuple[str, str | bytes | None]]
WHERE = "$where"  # no member of anybody: the record's coordinates, `train-0007.tar#118`
_NAMES = frozenset(".[]$\"'")  # a member's name is a path where it is read


class Written(NamedTuple):
    """A Kafka record, and how many bytes of its payload lie elsewhere. Without a value it is a tombstone.

    timestamp  milliseconds since 1970; 0: now
    """

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, str | bytes | None]]
    timestamp: int = 0
    elsewhere: int = 0


class Row(NamedTuple):
    """What a record is made of: its payload, its label (None: it has none) and the members that are wanted."""

    value: bytes
    label: int | None
    members: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Writing:
    """How records are written; `Producer.run` documents the values. Threads share it.

    Raises ConfigError for values that do not go together.
    """

    columns: Mapping[str, str] | Sequence[str] | None = None
    format: Format | str | None = None
    copy: bool = False
    key: str | None = None
    headers: Sequence[str] = ()
    label: str | None = LABEL
    _members: Mapping[str, str] = field(init=False, repr=False, compare=False)
    _encode: Encode | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        _check_names("headers", self.headers)
        if self.copy:
            given = {"columns": self.columns, "format": self.format, "key": self.key, "headers": self.headers or None}
            if odd := [f"{name}=" for name, value in given.items() if value is not None]:
                msg = f"copy: records are written as they are; found {', '.join(odd)} too; leave one of them out"
                raise ConfigError(msg)
        if (self.columns is None) != (self.format is None):
            there, lacks = ("format", "columns") if self.columns is None else ("columns", "format")
            msg = f"{lacks}: must be given with {there}=: a value holds the members that columns= names, in a format"
            raise ConfigError(msg)
        names = self.columns or ()
        if not isinstance(names, Mapping):
            _check_names("columns", names)
            names = dict(zip(names, names, strict=True))
        object.__setattr__(self, "_members", names)
        if self.format is None:
            if self.label in self.headers:
                msg = f"headers: each is written once; found label={self.label!r} and headers={tuple(self.headers)!r}"
                raise ConfigError(msg)
            return
        if self.label not in (LABEL, None):
            msg = f"label: names a header beside a payload; found {self.label!r} with format=; name it in headers="
            raise ConfigError(msg)
        odd = [name for name in names if not self._fits(name)]
        if odd or not names:
            msg = f"columns: must be names without any of . [ ] $ \" and '; found {odd}; give {{name: member}}"
            raise ConfigError(msg)
        if isinstance(self.format, Json) and (lost := [each for each in self.format.base64 if each not in names]):
            msg = f"Json: base64 must name columns; found {lost[0]!r} where there are {', '.join(names)}"
            raise ConfigError(msg)
        object.__setattr__(self, "_encode", encoder(self.format, tuple(names)))

    def _fits(self, name: str) -> bool:
        if self.format is not None and has_paths(self.format):
            return isinstance(name, str) and all(isinstance(step, str) for step in steps_of(name))
        return bool(name) and not _NAMES.intersection(name)

    @property
    def payload(self) -> bool:
        """Whether the source's payload is wanted, with its label."""
        return self._encode is None

    @property
    def members(self) -> tuple[str, ...]:
        """The members (`source.members()`) that are wanted beside; WHERE, the coordinates, may be among them."""
        key = () if self.key is None else (self.key,)
        return tuple(dict.fromkeys((*self._members.values(), *key, *self.headers)))

    def record(self, row: Row) -> Written:
        """The record. What it raises is the fault of this one."""
        value, label, members = row
        key = None if self.key is None else _text(self.key, members[self.key])
        texts = [(name, _text(name, members[name])) for name in self.headers]
        headers: list[Any] = [(name, text) for name, text in texts if text is not None]
        if self._encode is not None:
            return Written(self._encode({name: members[each] for name, each in self._members.items()}), key, headers)
        if self.label is not None and label is not None:
            headers.append((self.label, b"%d" % label))
        return Written(value, key, headers)

    def to_json(self) -> dict[str, Any]:
        """All that decides what it writes, as plain JSON: a run goes on with the same alone."""
        if self.copy:
            return {"writes": "copied"}
        about: dict[str, Any] = {"key": self.key, "headers": list(self.headers)}
        if self.format is None:
            return {"writes": "payload", **about, "label": self.label}
        return {"writes": told_of(self.format), "values": dict(self._members), **about}

    def rows_of(self, subject: str, source: Source) -> Callable[[threading.Event], SourceRows]:
        """What gives a thread its way to a source's rows, which a stop event ends.

        ConfigError for a source that does not end, and for what its records cannot have.
        """
        if not isinstance(source, Source):
            lacks = ", ".join(name for name in ("snapshot", "reader") if not hasattr(source, name))
            msg = (
                f"{subject}: the source must be one that ends, such as a ShardSet or a KafkaTopic; found {source!r}"
                f"{f', without {lacks}' if lacks else ''}; of a stream give what replay() makes of two states"
            )
            raise ConfigError(msg)
        if self.copy:
            if not isinstance(source, KafkaTopic):
                msg = f"{subject}: copy: the source must be a KafkaTopic, whose records have keys; found {source!r}"
                raise ConfigError(msg)
            return partial(SourceRows, source=source, writing=self)
        value, label = _payload_of(subject, source) if self.payload else (None, None)
        members = [name for name in self.members if name != WHERE]
        Request(source, members, members)  # whether there are any such
        return partial(SourceRows, source=source, writing=self, value=value, label=label)


def _payload_of(subject: str, source: Source) -> tuple[str, str | None]:
    """The members of a source's preset that are its image and its label. ConfigError where it has no image."""
    preset = source.preset
    image = next((column for column in preset.values() if isinstance(column, Image)), None)
    if image is None:
        msg = (
            f"{subject}: the source must have an image, which is the value; {source!r} has none; give columns= and"
            " format="
        )
        raise ConfigError(msg)
    return source.image_of(image.member), preset[LABEL].member if LABEL in preset else None


class SourceRows:
    """Reads what records are made of. Used by one thread, but for the rows that it has given.

    Args:
        stop: ends a read.
        source: whose records are read, and whose coordinates are told.
        writing: what is wanted.
        value: the member that is the payload; None: none is wanted.
        label: the member that is the label; None: there is none.
    """

    def __init__(
        self,
        stop: threading.Event,
        source: Source,
        writing: Writing,
        value: str | None = None,
        label: str | None = None,
    ) -> None:
        self._where = source.where if WHERE in writing.members else None
        self._value, self._label, self._slabs = value, label, SlabPool()
        self._members = [name for name in writing.members if name != WHERE]
        self._copies = writing.copy
        if writing.copy and isinstance(source, KafkaTopic):
            self._reader: Reader = source.whole_reader(stop)
        else:
            names = dict.fromkeys(filter(None, (value, label, *self._members)))
            self._reader = open_reader(source, tuple(names), stop, set(self._members) - {value, label})

    def read(self, extents: Extents) -> Iterator[Row | Written | str | None]:
        """The records: what each is made of, a whole one, why there is none, or None where there is none to be had."""
        lease = self._slabs.lease()
        try:
            block = self._reader.read(extents, lease)
        except BaseException:
            lease.release()
            raise
        return self._rows(block)

    def _rows(self, block: Block) -> Iterator[Row | Written | str | None]:
        """A row holds copies, so that it outlasts the block."""
        absent = set(block.absent_rows())
        try:
            if self._copies:
                records: Iterable[WholeRecord | None] = block.values[WHOLE]
                for whole in records:
                    yield whole and Written(whole.value, whole.key, list(whole.headers), whole.timestamp)
                return
            for row in range(len(block.ids)):
                if row in absent:
                    yield None
                elif row in block.faults:
                    yield block.faults[row].reason
                else:
                    yield self._row(block, row)
        finally:
            block.lease.release()

    def _row(self, block: Block, row: int) -> Row | str:
        value = b"" if self._value is None else _value(block, self._value, row)
        if value is None:
            return f"the record has no member {self._value!r}" + (" (a tombstone)" if self._value == "value" else "")
        label = None if self._label is None else _label(_value(block, self._label, row))
        if isinstance(label, str):
            return label
        members = {name: _value(block, name, row) for name in self._members}
        if self._where is not None:
            members[WHERE] = self._where(*unpack_id(int(block.ids[row])))
        return Row(bytes(value), label, members)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


def _value(block: Block, name: str, row: int) -> Any:
    """A member of a record, with memory of its own."""
    value = block.values[name][row]
    if isinstance(value, np.generic):
        value = value.item()
    return bytes(value) if isinstance(value, memoryview) else value


def _label(value: Any) -> int | str:
    """The number of a class, or why it is none."""
    faults: dict[int, str] = {}
    number = Number("label").read([value], faults)
    if value is None or faults:
        return f"label: {faults[0] if value is not None else 'a decimal number is needed; the record has none'}"
    return int(number[0])


def _check_names(what: str, names: object) -> None:
    fits = isinstance(names, tuple | list) and all(isinstance(name, str) and name for name in names)
    if fits and isinstance(names, tuple | list) and len(set(names)) == len(names):
        return
    msg = f"{what}: must be different names of members, in a tuple; found {names!r}"
    raise ConfigError(msg)


def _text(name: str, value: Any) -> bytes | None:
    """What stands in a header or a key."""
    value = plain(value)
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int | float):
        return repr(value).encode()
    msg = f"member {name!r}: a key or a header must be bytes, a text or a number; found {type(value).__name__}"
    raise FormatError(msg)
