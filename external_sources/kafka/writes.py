"""What of a source's record becomes a Kafka record: its payload, members in one value, or a copy as it is.

A run reads a source here and nowhere else: `SourceRows` is one thread's way to what its records are made of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dali_feed.bad_records import place_of
from dali_feed.checks import name_of
from dali_feed.columns import Image, Number
from dali_feed.columns.request import Request, open_reader
from dali_feed.errors import ConfigError, DaliFeedError, FormatError, MissingPackageError
from dali_feed.external_sources.kafka.claims import Claim
from dali_feed.external_sources.kafka.rows import WHOLE, WholeRecord
from dali_feed.external_sources.kafka.topic import KafkaTopic
from dali_feed.formats import Json
from dali_feed.formats.format import Format
from dali_feed.formats.paths import steps_of
from dali_feed.formats.written import Encode, encoder, has_paths, plain, title_of
from dali_feed.records.extents import Extents
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import LABEL, Block, Reader, Source, unpack_id

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


Item = Written | str | None  # a record, why there is none, or that there is none to be had


class Writing:
    """How records are written; `Producer` and its `run` document the values. Threads share it.

    payload  whether the source's payload is wanted, with its label
    members  what is wanted beside, by names of `source.members()`; WHERE, the coordinates, may be among them

    Raises ConfigError for values that do not go together.
    """

    def __init__(
        self,
        columns: Mapping[str, str] | Sequence[str] | None = None,
        format: Format | str | None = None,  # noqa: A002  what users call it
        copy: bool = False,
        key: str | None = None,
        headers: Sequence[str] = (),
        label: str | None = LABEL,
        map: Callable[[bytes], bytes] | None = None,  # noqa: A002
        claim: Claim | None = None,
    ) -> None:
        self.format, self.copy, self._key, self._headers, self._label = format, copy, key, headers, label
        self.map, self.claim, self.payload = map, claim, format is None
        _check_names("headers", headers)
        others = {"columns": columns, "format": format, "key": key, "headers": headers or None}
        if copy and (odd := [f"{name}=" for name, value in others.items() if value is not None]):
            msg = f"copy: records are written as they are; found {', '.join(odd)} too; leave one of them out"
            raise ConfigError(msg)
        if (columns is None) != (format is None):
            there, lacks = ("format", "columns") if columns is None else ("columns", "format")
            msg = f"{lacks}: must be given with {there}=: a value holds the members that columns= names, in a format"
            raise ConfigError(msg)
        names = columns or ()
        if not isinstance(names, Mapping):
            _check_names("columns", names)
            names = dict(zip(names, names, strict=True))
        self._columns = names
        self.members = tuple(dict.fromkeys((*names.values(), *filter(None, [key]), *headers)))
        if format is not None:
            self._encode = self._encoder(format)
        elif label in headers:
            raise ConfigError(f"headers: each is written once; found label={label!r} and headers={tuple(headers)!r}")

    def _encoder(self, form: Format | str) -> Encode:
        """What makes a value of members."""
        names = self._columns
        if self._label not in (LABEL, None):
            msg = f"label: names a header beside a payload; found {self._label!r} with format=; name it in headers="
            raise ConfigError(msg)
        odd = [name for name in names if not self._fits(name)]
        if odd or not names:
            msg = f"columns: must be names without any of . [ ] $ \" and '; found {odd}; give {{name: member}}"
            raise ConfigError(msg)
        if isinstance(form, Json) and (lost := [each for each in form.base64 if each not in names]):
            raise ConfigError(f"Json: base64 must name columns; found {lost[0]!r} where there are {', '.join(names)}")
        return encoder(form, tuple(names))

    def _fits(self, name: str) -> bool:
        if self.format is not None and has_paths(self.format):
            return isinstance(name, str) and all(isinstance(step, str) for step in steps_of(name))
        return bool(name) and not _NAMES.intersection(name)

    def make(self, row: Row | Item) -> Item:
        """The record that is sent for a row, without a value that is stored elsewhere; or why there is none."""
        if not isinstance(row, tuple):
            return row
        stage: Any = self.map
        try:
            if self.map is not None and row.value is not None:  # of a tombstone there is nothing to map
                row = row._replace(value=_bytes(self.map(row.value)))
            stage = self._record
            record = stage(row) if isinstance(row, Row) else row
        except (ConfigError, MissingPackageError, MemoryError):
            raise
        except (DaliFeedError, FormatError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  whatever a user's function raises is about this record
            place, name = place_of(error, stage), "map" if stage is self.map else "format"
            return f"{name}: {type(error).__name__}: {error}{f', at {place}' if place else ''}"
        if self.claim is None or not (claim := self.claim.stored(record.value)):
            return record
        size = len(record.value or b"")
        return record._replace(value=b"", headers=[*record.headers, *claim], elsewhere=size)

    def _record(self, row: Row) -> Written:
        """What it raises is the fault of this one."""
        value, label, members = row
        key = None if self._key is None else _text(self._key, members[self._key])
        texts = [(name, _text(name, members[name])) for name in self._headers]
        headers: list[Any] = [(name, text) for name, text in texts if text is not None]
        if not self.payload:
            return Written(self._encode({name: members[each] for name, each in self._columns.items()}), key, headers)
        if self._label is not None and label is not None:
            headers.append((self._label, b"%d" % label))
        return Written(value, key, headers)

    def to_json(self) -> dict[str, Any]:
        """All that decides what it writes, as plain JSON: a run goes on with the same. Of a function name and code."""
        changed = None if self.map is None else getattr(self.map, "told", None) or name_of(self.map)
        others = {"map": changed} | ({} if self.claim is None else {"claim": self.claim.to_json()})
        if self.copy:
            return {"writes": "copied"} | others
        about: dict[str, Any] = {"key": self._key, "headers": list(self._headers), **others}
        if self.format is None:
            return {"writes": "payload", **about, "label": self._label}
        return {"writes": title_of(self.format), "values": dict(self._columns), **about}

    def rows_of(self, subject: str, source: Source) -> Callable[[threading.Event], SourceRows]:
        """What gives a thread its way to a source's rows, which a stop event ends.

        ConfigError for a source that does not end, and for what its records cannot have.
        """
        if not isinstance(source, Source):
            lacks = ", ".join(name for name in ("snapshot", "reader") if not hasattr(source, name))
            raise ConfigError(
                f"{subject}: the source must be one that ends, such as a ShardSet or a KafkaTopic; found {source!r}"
                f"{f', without {lacks}' if lacks else ''}; of a stream give what replay() makes of two states"
            )
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
        raise ConfigError(
            f"{subject}: the source must have an image, which is the value; {source!r} has none; give columns= and"
            " format="
        )
    return source.image_of(image.member), preset[LABEL].member if LABEL in preset else None


class SourceRows:
    """Reads what records are made of: members `value` and `label`, where these are wanted, and those of `writing`.

    Used by one thread, but for the rows that it has given.
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

    def read(self, extents: Extents) -> Iterator[Row | Item]:
        """The records: what each is made of, a whole one, why there is none, or None where there is none to be had."""
        lease = self._slabs.lease()
        try:
            block = self._reader.read(extents, lease)
        except BaseException:
            lease.release()
            raise
        return self._rows(block)

    def _rows(self, block: Block) -> Iterator[Row | Item]:
        """A row holds copies, so that it outlasts the block."""
        absent = set(block.absent_rows())
        try:
            for row in range(len(block.ids)):
                if row in absent:
                    yield None
                elif row in block.faults:
                    yield block.faults[row].reason
                elif self._copies:
                    whole: WholeRecord = block.values[WHOLE][row]
                    yield Written(whole.value, whole.key, list(whole.headers), whole.timestamp)
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
    raise ConfigError(f"{what}: must be different names of members, in a tuple; found {names!r}")


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a value must be bytes; found {type(value).__name__}")
    return value


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
