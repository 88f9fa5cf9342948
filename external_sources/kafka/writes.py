"""What of a source's record becomes a Kafka record: its payload, members in one value, or a copy as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dali_feed.bad_records import place_of
from dali_feed.checks import name_of, of_kind
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


Item = Written | str | None  # a record, why there is none, or that there is none to be had


class Writing:
    """How a source is read, and what its records are written as; `Producer` documents the values. Threads share it.

    Raises ConfigError for values that do not go together, for a source that does not end, and for what its records
    cannot have.
    """

    def __init__(  # noqa: PLR0913, PLR0917  an option each
        self,
        subject: str,
        source: Source,
        columns: Mapping[str, str] | Sequence[str] | None = None,
        format: Format | str | None = None,  # noqa: A002  what users call it
        copy: bool = False,
        key: str | None = None,
        headers: Sequence[str] = (),
        label: str | None = LABEL,
        map: Callable[[bytes], bytes] | None = None,  # noqa: A002
        claim: Claim | None = None,
    ) -> None:
        self.source, self.map, self.claim, self._copy, self._format = source, map, claim, copy, format
        self._key, self._headers, self._label = key, headers, label
        _check_names("headers", headers)
        for name, text in (("key", key), ("label", label)):
            of_kind(f"{subject}: {name}", text, str)
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
        if format is not None:
            self._encode = self._encoder(format)
        elif label in headers:
            raise ConfigError(f"headers: each is written once; found label={label!r} and headers={tuple(headers)!r}")
        if map is not None and not callable(map):
            raise ConfigError(f"{subject}: map must be a function of bytes, or None; found {map!r}")
        if map is not None and format is not None:
            raise ConfigError(f"{subject}: map= changes payloads, and format= writes none; leave one of them out")
        if not isinstance(source, Source):
            lacks = ", ".join(name for name in ("snapshot", "reader") if not hasattr(source, name))
            raise ConfigError(
                f"{subject}: the source must be one that ends, such as a ShardSet or a KafkaTopic; found {source!r}"
                f"{f', without {lacks}' if lacks else ''}; of a stream give what replay() makes of two states"
            )
        if copy and not isinstance(source, KafkaTopic):
            msg = f"{subject}: copy: the source must be a KafkaTopic, whose records have keys; found {source!r}"
            raise ConfigError(msg)
        self._payload: str | None = None
        self._class: str | None = None
        if not copy and format is None:
            self._payload, self._class = _payload_of(subject, source)
        named = dict.fromkeys((*names.values(), *filter(None, [key]), *headers))
        self._places, self._members = WHERE in named, [name for name in named if name != WHERE]
        Request(source, self._members, self._members)  # whether there are any such

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
        if self._format is not None and has_paths(self._format):
            return isinstance(name, str) and all(isinstance(step, str) for step in steps_of(name))
        return bool(name) and not _NAMES.intersection(name)

    def reader(self, stop: threading.Event) -> Reader:
        """A thread's own reader of what records are made of."""
        if self._copy and isinstance(self.source, KafkaTopic):
            return self.source.whole_reader(stop)
        own = {self._payload, self._class}
        names = dict.fromkeys(filter(None, (self._payload, self._class, *self._members)))
        return open_reader(self.source, tuple(names), stop, set(self._members) - own)

    def items(self, block: Block, rows: range) -> Iterator[Item]:
        """Of each of these rows the record that is sent, why there is none, or None where none is to be had.

        A record has memory of its own, and a value that is stored elsewhere is none of its parts.
        """
        absent = set(block.absent_rows())
        for row in rows:
            if row in absent:
                yield None
            elif row in block.faults:
                yield block.faults[row].reason
            else:
                yield self._item(block, row)

    def _item(self, block: Block, row: int) -> Written | str:
        stage: Any = self._copied if self._copy else self._record
        try:
            record: Written = stage(block, row)
            if self.map is not None and record.value is not None:  # of a tombstone there is nothing to map
                stage = self.map
                record = record._replace(value=_bytes(stage(record.value)))
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

    @staticmethod
    def _copied(block: Block, row: int) -> Written:
        whole: WholeRecord = block.values[WHOLE][row]
        return Written(whole.value, whole.key, list(whole.headers), whole.timestamp)

    def _record(self, block: Block, row: int) -> Written:
        """What it raises is the fault of this one."""
        value, label = b"", b""
        if self._payload is not None:
            value = _value(block, self._payload, row)
            if value is None:
                why = " (a tombstone)" if self._payload == "value" else ""
                raise FormatError(f"the record has no member {self._payload!r}{why}")
            label = b"" if self._class is None else _label(_value(block, self._class, row))
        members = {name: _value(block, name, row) for name in self._members}
        if self._places:
            members[WHERE] = self.source.where(*unpack_id(int(block.ids[row])))
        key = None if self._key is None else _text(self._key, members[self._key])
        texts = [(name, _text(name, members[name])) for name in self._headers]
        headers: list[Any] = [(name, text) for name, text in texts if text is not None]
        if self._format is not None:
            return Written(self._encode({name: members[each] for name, each in self._columns.items()}), key, headers)
        if label and self._label is not None:
            headers.append((self._label, label))
        return Written(bytes(value), key, headers)

    def to_json(self) -> dict[str, Any]:
        """All that decides what it writes, as plain JSON: a run goes on with the same."""
        others: dict[str, Any] = {"map": None if self.map is None else name_of(self.map)}
        others |= {} if self.claim is None else {"claim": self.claim.to_json()}
        if self._copy:
            return {"writes": "copied"} | others
        about: dict[str, Any] = {"key": self._key, "headers": list(self._headers), **others}
        if self._format is None:
            return {"writes": "payload", **about, "label": self._label}
        return {"writes": title_of(self._format), "values": dict(self._columns), **about}


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


def _value(block: Block, name: str, row: int) -> Any:
    """A member of a record, with memory of its own."""
    value = block.values[name][row]
    if isinstance(value, np.generic):
        value = value.item()
    return bytes(value) if isinstance(value, memoryview) else value


def _label(value: Any) -> bytes:
    """The number of a class, in decimal text."""
    faults: dict[int, str] = {}
    number = Number("label").read([value], faults)
    if value is None or faults:
        found = "a decimal number is needed; the record has none" if value is None else faults[0]
        raise FormatError(f"label: {found}")
    return b"%d" % int(number[0])


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
