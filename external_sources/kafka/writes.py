"""What of a source's record becomes a Kafka record: the contract, and the kinds that come along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, cast

from dali_feed.columns import Image
from dali_feed.errors import ConfigError, FormatError
from dali_feed.external_sources.kafka.rows import PAIRS
from dali_feed.external_sources.kafka.topic import KafkaTopic
from dali_feed.formats.format import Format
from dali_feed.formats.paths import steps_of
from dali_feed.formats.written import Encode, encoder, has_paths, plain, told_of
from dali_feed.records.source import LABEL, Source

__all__ = ["WHERE", "Copied", "Payload", "Values", "Writes", "Written"]

Fields = Mapping[str, Any]
TOMBSTONE = "$tombstone"  # a field of a record that is copied: None where it has no value
WHERE = "$where"  # no member of anybody: the record's coordinates, `train-0007.tar#118`
_NAMES = frozenset(".[]$\"'")  # a member's name is a path where it is read


class Written(NamedTuple):
    """A Kafka record, and how many bytes of its payload lie elsewhere. Without a value it is a tombstone."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes]]
    elsewhere: int = 0


class Writes:
    """What becomes of a record. Frozen, and called by several threads at once."""

    __slots__ = ()
    payload: ClassVar[bool] = True  # whether it wants the source's payload, and its fields

    @property
    def members(self) -> tuple[str, ...]:
        """The members (`source.members()`) that it wants beside; WHERE, the coordinates, may be among them."""
        return ()

    def of(self, source: Source) -> Source:
        """What is read: the source itself, or one like it."""
        return source

    def reads(self, source: Source) -> tuple[str | None, dict[str, str]]:
        """The member that is the payload, None where none is wanted, and what each of the fields is made from.

        They are those of the source's preset. ConfigError where that has no image.
        """
        if not self.payload:
            return None, {}
        preset = source.preset
        image = next((column for column in preset.values() if isinstance(column, Image)), None)
        if image is None:
            msg = f"{self!r}: the source must have an image, which is the value; {source!r} has none; give Values(...)"
            raise ConfigError(msg)
        return source.image_of(image.member), {LABEL: preset[LABEL].member} if LABEL in preset else {}

    def record(self, payload: bytes, fields: Fields, members: Fields) -> Written:
        """The record. What it raises is the fault of this one."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """All that decides what it writes, as plain JSON: a run goes on with the same alone."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Payload(Writes):
    """The payload as it is, as the value; the label in a header, where `KafkaTopic` looks for it.

    key      the member that is the key, or "$where", the record's coordinates; None: records have none
    headers  members that become headers of their names
    label    the header that the source's label becomes, in decimal text; None: no such header

    A key or a header is a member's bytes, its text in UTF-8, or its number in decimal text; a record that lacks the
    member has no such header, and no key.
    """

    key: str | None = None
    headers: tuple[str, ...] = ()
    label: str | None = LABEL

    def __post_init__(self) -> None:
        _names("headers", self.headers)
        if self.label in self.headers:
            msg = f"Payload: each header is written once; found label={self.label!r} and headers={self.headers!r}"
            raise ConfigError(msg)

    @property
    def members(self) -> tuple[str, ...]:
        """The key's, and the headers'."""
        return _once(self.key, self.headers)

    def record(self, payload: bytes, fields: Fields, members: Fields) -> Written:
        """See `Writes`."""
        headers = _headers(self.headers, members)
        if self.label is not None and LABEL in fields:
            headers.append((self.label, b"%d" % fields[LABEL]))
        return Written(payload, _key(self.key, members), headers)

    def to_json(self) -> dict[str, Any]:
        """See `Writes`."""
        return {"writes": "payload", "key": self.key, "headers": list(self.headers), "label": self.label}


@dataclass(frozen=True, slots=True)
class Values(Writes):
    """Several members in one value, which `KafkaTopic(format=...)` reads.

    format   "json", "msgpack" or "npy"; or the format that it is to be read with: Avro(schema), Protobuf(message), ...
    values   member of the source by the name that it has in the value; or names that are both
    base64   names whose bytes become base64 text, in JSON; bytes of other names are text in UTF-8
    key      the member that is the key, or "$where", the record's coordinates; None: records have none
    headers  members that become headers of their names

    Of .npy the one name is `array`. With Avro and Protobuf names are paths of the schema's fields, `body.label`; a
    number may be decimal text, several in a row the bytes of a .npy file.

    A member that a record lacks is a null; in Protobuf its field is not set.
    """

    format: Format | str
    values: Mapping[str, str] | tuple[str, ...]
    base64: tuple[str, ...] = ()
    key: str | None = None
    headers: tuple[str, ...] = ()
    payload: ClassVar[bool] = False
    _encode: Encode = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _names("headers", self.headers)
        if not isinstance(self.values, Mapping):
            _names("values", self.values)
            object.__setattr__(self, "values", dict(zip(self.values, self.values, strict=True)))
        odd = [name for name in self._by_name if not self._fits(name)]
        if odd or not self._by_name:
            msg = f"Values: values must be names without any of . [ ] $ \" and '; found {odd}; give {{name: member}}"
            raise ConfigError(msg)
        if lacking := [name for name in self.base64 if name not in self._by_name]:
            msg = f"Values: base64 must name values; found {lacking[0]!r} where there are {', '.join(self._by_name)}"
            raise ConfigError(msg)
        object.__setattr__(self, "_encode", encoder(self.format, tuple(self._by_name), self.base64))

    def _fits(self, name: str) -> bool:
        if has_paths(self.format):
            return isinstance(name, str) and all(isinstance(step, str) for step in steps_of(name))
        return bool(name) and not _NAMES.intersection(name)

    @property
    def _by_name(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self.values)

    @property
    def members(self) -> tuple[str, ...]:
        """The values', the key's and the headers'."""
        return _once(self.key, (*self._by_name.values(), *self.headers))

    def record(self, payload: bytes, fields: Fields, members: Fields) -> Written:
        """See `Writes`."""
        value = self._encode({name: members[member] for name, member in self._by_name.items()})
        return Written(value, _key(self.key, members), _headers(self.headers, members))

    def to_json(self) -> dict[str, Any]:
        """See `Writes`."""
        return {
            "writes": told_of(self.format),
            "values": dict(self._by_name),
            "base64": list(self.base64),
            "key": self.key,
            "headers": list(self.headers),
        }


@dataclass(frozen=True, slots=True)
class Copied(Writes):
    """Records of another topic without change: value, key, all headers; payloads that are stored elsewhere stay there.

    A record without a value, which deletes its key in a compacted topic, has none in the new topic either.
    """

    def of(self, source: Source) -> Source:
        """The topic, with keys and headers. ConfigError where it is none."""
        if not isinstance(source, KafkaTopic):
            msg = f"Copied: the source must be a KafkaTopic, whose records have keys and headers; found {source!r}"
            raise ConfigError(msg)
        return source.as_stored()

    def reads(self, source: Source) -> tuple[str | None, dict[str, str]]:
        """All of a record."""
        return "value", {TOMBSTONE: "value", "key": "key", "headers": PAIRS}

    def record(self, payload: bytes, fields: Fields, members: Fields) -> Written:
        """See `Writes`."""
        key = None if fields["key"] is None else bytes(fields["key"])
        return Written(None if fields[TOMBSTONE] is None else payload, key, fields["headers"])

    def to_json(self) -> dict[str, Any]:
        """See `Writes`."""
        return {"writes": "copied"}


def _once(key: str | None, others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*(() if key is None else (key,)), *others)))


def _names(what: str, names: object) -> None:
    fits = isinstance(names, tuple) and all(isinstance(name, str) and name for name in names)
    if fits and isinstance(names, tuple) and len(set(names)) == len(names):
        return
    msg = f"{what}: must be a tuple of different names of members; found {names!r}"
    raise ConfigError(msg)


def _key(name: str | None, members: Fields) -> bytes | None:
    return None if name is None else _text(name, members[name])


def _headers(names: tuple[str, ...], members: Fields) -> list[tuple[str, bytes]]:
    found = [(name, _text(name, members[name])) for name in names]
    return [(name, text) for name, text in found if text is not None]


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
