"""`Avro`: values in Avro's binary encoding, with a schema that is known or that each value names.

Schemas are fastavro's business, values are not: its reader copies what it reads, makes an object of each number and
trusts the bytes. Five of them that announce a hundred million nulls keep it busy for seconds, and a value nested deeply
enough ends the process. Here a schema becomes functions, one for each of its types, that read a value whole: bytes and
numbers in a row are views of it, so what nobody asked for costs little.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.avro_bytes import FLAT, Read, booleans, count, long, longs, reals, span
from dali_feed.formats.avro_schemas import Schemas, parsed, written
from dali_feed.formats.format import Parse, Value
from dali_feed.formats.paths import SHOWN, WHOLE, Steps, flatten, path_of, pick, steps_of

__all__ = ["Avro", "Types"]

_FRAME = struct.Struct(">BI")  # a zero and the schema's id, as Confluent's serializers write them


@dataclass(frozen=True, slots=True)
class Avro:
    """Avro's binary encoding. Give one of the two.

    schema   that all values are of: a dict or list, JSON text, or the path of an `.avsc` file
    schemas  values begin with a zero byte and four of their schema's id, as Confluent's serializers write them; this
             says where the schemas are: a folder of ID.avsc files, a schema registry client (confluent_kafka's, or
             what has its `get_schema` and, for references, `get_version`), or a function of an id that gives a schema

    Bytes and fixed are given as views, arrays of numbers and booleans as NumPy arrays (of floats and doubles: views
    too, where they were written in one block; ints and longs as int64), an enum as its symbol. A logical type is
    given as what it is stored as. There is no reader's schema: a member that a value's own schema lacks is missing.
    """

    schema: str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any] | None = None
    schemas: Any = None

    def __post_init__(self) -> None:
        if (self.schema is None) == (self.schemas is None):
            msg = "Avro: must have either schema= (one for all values) or schemas= (a folder or a registry); found " + (
                "none" if self.schema is None else "both"
            )
            raise ConfigError(msg)

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads these members: paths through records, maps, arrays and unions.

        Raises:
            ConfigError: the schema cannot be read, or has no such member; where values name their schemas, that is an
                error of the values.
            MissingPackageError: fastavro is not installed.
        """
        wanted = [steps_of(path) for path in members]
        if self.schemas is None:
            named: dict[str, Any] = {}
            return _parse(Types(named), parsed(written(self.schema), named), wanted)
        schemas = Schemas(self.schemas)
        made: dict[int, Parse] = {}

        def parse(value: Value) -> tuple[Any, ...]:
            buf = memoryview(value)
            if len(buf) < _FRAME.size or buf[0]:
                msg = f"avro: must begin with a zero byte and a schema's id; found {bytes(buf[:5])!r}"
                raise FormatError(msg)
            number = _FRAME.unpack_from(buf)[1]
            if number not in made:
                made[number] = self._of(schemas, number, wanted)
            return made[number](buf[_FRAME.size :])

        return parse

    def _of(self, schemas: Schemas, number: int, wanted: list[Steps]) -> Parse:
        named: dict[str, Any] = {}
        schema = schemas.get(number, named)
        try:
            return _parse(Types(named), schema, wanted)
        except (ConfigError, FormatError) as error:
            msg = f"{error}; schema {number}"
            raise FormatError(msg) from None

    def members(self, value: Value) -> dict[str, Any]:
        """All members by path."""
        return flatten(self.bind((WHOLE,))(value)[0])


def _parse(types: Types, schema: Any, wanted: list[Steps]) -> Parse:
    for steps in wanted:
        types.check(schema, steps)
    read = types.read(schema)

    def parse(value: Value) -> tuple[Any, ...]:
        buf = memoryview(value)
        try:
            record, end = read(buf, 0)
        except IndexError:
            msg = f"avro: cut off, or of another schema: its {len(buf)} bytes end before the value does"
            raise FormatError(msg) from None
        except RecursionError:
            msg = "avro: values may be nested in a few hundred others of their type, not more"
            raise FormatError(msg) from None
        if end != len(buf):
            msg = f"avro: must be one value of the schema; {len(buf) - end} of {len(buf)} bytes are left over"
            raise FormatError(msg)
        return tuple([pick(record, steps, "avro") for steps in wanted])

    return parse


_COMPLEX = {"record", "error", "enum", "array", "map", "fixed"}


class Types:
    """The types of one schema; `named` has its definitions by full name. Logical types are what they are stored as."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._records: dict[str, Read] = {}  # a record may hold others of its own name

    def plain(self, schema: Any) -> tuple[str, Any]:
        """What kind a schema is of ("union", "record", "long", ...), and its definition."""
        while True:
            if isinstance(schema, list):
                return "union", schema
            kind = schema if isinstance(schema, str) else schema["type"]
            if isinstance(kind, str) and (kind in _SIMPLE or kind in _COMPLEX):
                if kind == "fixed" and not (isinstance(schema["size"], int) and schema["size"] >= 0):
                    msg = f"avro: a type 'fixed' must have a size of 0 or more; found {schema['size']!r}"
                    raise FormatError(msg)
                return ("record" if kind == "error" else kind), schema
            schema = self._named[kind] if isinstance(kind, str) else kind

    def check(self, schema: Any, steps: Steps, done: int = 0) -> None:
        """ConfigError where no value of the schema can have such a member."""
        if done == len(steps):
            return None
        kind, about = self.plain(schema)
        step = steps[done]
        if kind == "union":
            errors = []
            for each in about:
                try:
                    return self.check(each, steps, done)
                except ConfigError as error:  # of a null, say: another branch may have it
                    errors.append(error)
            raise errors[-1]
        if kind == "record":
            fields = {each["name"]: each["type"] for each in about["fields"]}
            if step in fields:
                return self.check(fields[step], steps, done + 1)
            more = f" and {len(fields) - SHOWN} more" if len(fields) > SHOWN else ""
            has = f"{about['name']} has {', '.join(list(fields)[:SHOWN])}{more}"
        elif (kind == "map" and isinstance(step, str)) or (kind == "array" and isinstance(step, int)):
            return self.check(about["values" if kind == "map" else "items"], steps, done + 1)
        else:
            has = f"{path_of(steps[:done])} is of type {kind}"
        msg = f"avro: {path_of(steps[: done + 1])}: no such member; {has}"
        raise ConfigError(msg)

    def read(self, schema: Any) -> Read:
        """What reads a value of the schema."""
        kind, about = self.plain(schema)
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        if kind == "record":
            return self._record(about)
        if kind == "union":
            return _union([self.read(each) for each in about])
        if kind == "array":
            return self._array(about)
        if kind == "map":
            return _map(self.read(about["values"]))
        return _enum(tuple(about["symbols"])) if kind == "enum" else _fixed(about["size"])

    def _record(self, about: Any) -> Read:
        name = about["name"]
        known = self._records.get(name)
        if known is not None:
            return known if known is not _cut else self._named_record(name)
        self._records[name] = _cut
        fields = [(each["name"], self.read(each["type"])) for each in about["fields"]]

        def read(buf: memoryview, at: int) -> tuple[dict[str, Any], int]:
            record = {}
            for field, each in fields:
                record[field], at = each(buf, at)
            return record, at

        self._records[name] = read
        return read

    def _named_record(self, name: str) -> Read:
        """Of a record inside a record of its own type: what reads it is not made yet."""

        def read(buf: memoryview, at: int) -> tuple[Any, int]:
            return self._records[name](buf, at)

        return read

    def _array(self, about: Any) -> Read:
        if self._empty(about["items"]):
            msg = "avro: items of an array must take at least one byte each; found a type that takes none"
            raise FormatError(msg)
        flat = self.plain(about["items"])[0]
        if flat in FLAT:
            return booleans if flat == "boolean" else longs if flat in {"int", "long"} else reals(flat)
        item = self.read(about["items"])

        def read(buf: memoryview, at: int) -> tuple[list[Any], int]:
            values: list[Any] = []
            while True:
                items, _, at = count(buf, at, 1)
                if not items:
                    return values, at
                for _ in itertools.repeat(None, items):
                    value, at = item(buf, at)
                    values.append(value)

        return read

    def _empty(self, schema: Any, seen: frozenset[str] = frozenset()) -> bool:
        """Whether values take no bytes: then five bytes could announce any number of them."""
        kind, about = self.plain(schema)
        if kind == "record" and about["name"] not in seen:
            inside = seen | {about["name"]}
            return all(self._empty(field["type"], inside) for field in about["fields"])
        return kind == "null" or (kind == "fixed" and not about["size"])


def _cut(_buf: memoryview, _at: int) -> tuple[Any, int]:
    raise IndexError


def _within(buf: memoryview, end: int) -> int:
    if end > len(buf):
        raise IndexError
    return end


def _union(branches: list[Read]) -> Read:
    def read(buf: memoryview, at: int) -> tuple[Any, int]:
        branch, at = long(buf, at)
        if not 0 <= branch < len(branches):
            msg = f"avro: a union of {len(branches)} has no branch {branch}, at byte {at - 1}"
            raise FormatError(msg)
        return branches[branch](buf, at)

    return read


def _map(item: Read) -> Read:
    def read(buf: memoryview, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        while True:
            items, _, at = count(buf, at, 1)
            if not items:
                return values, at
            for _ in itertools.repeat(None, items):
                key, at = _text(buf, at)
                values[key], at = item(buf, at)

    return read


def _enum(symbols: tuple[str, ...]) -> Read:
    def read(buf: memoryview, at: int) -> tuple[str, int]:
        symbol, at = long(buf, at)
        if not 0 <= symbol < len(symbols):
            msg = f"avro: an enum of {len(symbols)} symbols has no symbol {symbol}, at byte {at - 1}"
            raise FormatError(msg)
        return symbols[symbol], at

    return read


def _fixed(size: int) -> Read:
    def read(buf: memoryview, at: int) -> tuple[memoryview, int]:
        return buf[at : _within(buf, at + size)], at + size

    return read


def _real(code: str) -> Read:
    one = struct.Struct(f"<{code}")

    def read(buf: memoryview, at: int) -> tuple[float, int]:
        return one.unpack_from(buf, _within(buf, at + one.size) - one.size)[0], at + one.size

    return read


def _bytes(buf: memoryview, at: int) -> tuple[memoryview, int]:
    at, end = span(buf, at)
    return buf[at:end], end


def _text(buf: memoryview, at: int) -> tuple[str, int]:
    at, end = span(buf, at)
    return str(buf[at:end], "utf-8"), end


def _boolean(buf: memoryview, at: int) -> tuple[bool, int]:
    if buf[at] > 1:
        msg = f"avro: a boolean at byte {at} is neither 0 nor 1"
        raise FormatError(msg)
    return buf[at] == 1, at + 1


_SIMPLE: dict[str, Read] = {
    "null": lambda _buf, at: (None, at),
    "boolean": _boolean,
    "int": long,
    "long": long,
    "float": _real("f"),
    "double": _real("d"),
    "bytes": _bytes,
    "string": _text,
}
