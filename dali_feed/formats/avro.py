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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.avro_schemas import Schemas, parsed, written
from dali_feed.formats.format import Parse, Value
from dali_feed.formats.paths import SHOWN, WHOLE, MissingPathError, Steps, flatten, path_of, pick, steps_of

Read = Callable[[memoryview, int], tuple[Any, int]]  # a value, and where the next one begins

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
        parses: dict[int, Parse] = {}

        def parse(value: Value) -> tuple[Any, ...]:
            buf = memoryview(value)
            if len(buf) < _FRAME.size or buf[0]:
                raise FormatError(f"avro: must begin with a zero byte and a schema's id; found {bytes(buf[:5])!r}")
            number = _FRAME.unpack_from(buf)[1]
            if number not in parses:
                parses[number] = self._of(schemas, number, wanted)
            return parses[number](buf[_FRAME.size :])

        return parse

    def _of(self, schemas: Schemas, number: int, wanted: list[Steps]) -> Parse:
        """What reads values of that schema; an error that all of them give is found once."""
        named: dict[str, Any] = {}
        schema = schemas.get(number, named)
        try:
            return _parse(Types(named), schema, wanted)
        except (ConfigError, FormatError) as error:
            kind = MissingPathError if isinstance(error, ConfigError) else FormatError  # of `check`: no such member
            reason = f"{error}; schema {number}"

        def fail(value: Value) -> NoReturn:
            del value
            raise kind(reason)

        return fail

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
            why = f"cut off, or of another schema: its {len(buf)} bytes end before the value does"
            raise FormatError(f"avro: {why}") from None
        except RecursionError:
            raise FormatError("avro: values may be nested in a few hundred others of their type, not more") from None
        if end != len(buf):
            raise FormatError(
                f"avro: must be one value of the schema; {len(buf) - end} of {len(buf)} bytes are left over"
            )
        return tuple([pick(record, steps, "avro") for steps in wanted])

    return parse


_COMPLEX = {"record", "error", "enum", "array", "map", "fixed"}


class Types:
    """The types of one schema; `named` has its definitions by full name. Logical types are what they are stored as."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._records: dict[str, Read] = {}  # by their names

    def plain(self, schema: Any) -> tuple[str, Any]:
        """What kind a schema is of ("union", "record", "long", ...), and its definition."""
        while True:
            if isinstance(schema, list):
                return "union", schema
            kind = schema if isinstance(schema, str) else schema["type"]
            if isinstance(kind, str) and (kind in _SIMPLE or kind in _COMPLEX):
                if kind == "fixed" and not (isinstance(schema["size"], int) and schema["size"] >= 0):
                    raise FormatError(f"avro: a type 'fixed' must have a size of 0 or more; found {schema['size']!r}")
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
        raise ConfigError(f"avro: {path_of(steps[: done + 1])}: no such member; {has}")

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
        if name in self._records:
            return self._records[name]
        fields: list[tuple[str, Read]] = []  # known only below: a record may hold others of its own name

        def read(buf: memoryview, at: int) -> tuple[dict[str, Any], int]:
            record = {}
            for field, each in fields:
                record[field], at = each(buf, at)
            return record, at

        self._records[name] = read
        fields += [(each["name"], self.read(each["type"])) for each in about["fields"]]
        return read

    def _array(self, about: Any) -> Read:
        if self._empty(about["items"]):
            raise FormatError("avro: items of an array must take at least one byte each; found a type that takes none")
        flat = _FLAT.get(self.plain(about["items"])[0])
        if flat is not None:
            return flat
        item = self.read(about["items"])

        def read(buf: memoryview, at: int) -> tuple[list[Any], int]:
            values: list[Any] = []
            while True:
                items, at = _count(buf, at, 1)
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


def _within(buf: memoryview, end: int) -> int:
    if end > len(buf):
        raise IndexError
    return end


def _union(branches: list[Read]) -> Read:
    def read(buf: memoryview, at: int) -> tuple[Any, int]:
        branch, at = _long(buf, at)
        if not 0 <= branch < len(branches):
            raise FormatError(f"avro: a union of {len(branches)} has no branch {branch}, at byte {at - 1}")
        return branches[branch](buf, at)

    return read


def _map(item: Read) -> Read:
    def read(buf: memoryview, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        while True:
            items, at = _count(buf, at, 1)
            if not items:
                return values, at
            for _ in itertools.repeat(None, items):
                key, at = _text(buf, at)
                values[key], at = item(buf, at)

    return read


def _enum(symbols: tuple[str, ...]) -> Read:
    def read(buf: memoryview, at: int) -> tuple[str, int]:
        symbol, at = _long(buf, at)
        if not 0 <= symbol < len(symbols):
            raise FormatError(f"avro: an enum of {len(symbols)} symbols has no symbol {symbol}, at byte {at - 1}")
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
    at, end = _span(buf, at)
    return buf[at:end], end


def _text(buf: memoryview, at: int) -> tuple[str, int]:
    at, end = _span(buf, at)
    return str(buf[at:end], "utf-8"), end


def _boolean(buf: memoryview, at: int) -> tuple[bool, int]:
    if buf[at] > 1:
        raise FormatError(f"avro: a boolean at byte {at} is neither 0 nor 1")
    return buf[at] == 1, at + 1


# Avro's bytes: numbers, lengths, counts, and arrays of numbers without a Python object for each.
#
# The law: what is announced is held to the bytes that are left before anything is made of it.


_FEW = 16  # numbers that Python reads sooner than NumPy
_LONGEST = 10  # bytes of a number of 64 bits


def _long(buf: memoryview, at: int) -> tuple[int, int]:
    """A whole number: seven bits a byte, the lowest first, its sign in the lowest bit. IndexError at the end."""
    byte = buf[at]
    value, shift = byte & 127, 0
    while byte > 127:
        at += 1
        shift += 7
        byte = buf[at]
        value |= (byte & 127) << shift
        if shift == 63 and byte > 1:
            raise FormatError(f"avro: a number at byte {at - _LONGEST + 1} has more than 64 bits")
    return (value >> 1) ^ -(value & 1), at + 1


def _span(buf: memoryview, at: int) -> tuple[int, int]:
    """Where bytes or a text with their length before them begin and end."""
    size, at = _long(buf, at)
    if not 0 <= size <= len(buf) - at:
        raise FormatError(f"avro: at byte {at} it says that {size} bytes follow; found {len(buf) - at}")
    return at, at + size


def _count(buf: memoryview, at: int, least: int) -> tuple[int, int]:
    """Of a block of an array or a map: how many items of at least so many bytes it has, and where they begin."""
    items, at = _long(buf, at)
    if items < 0:
        items = -items
        size, at = _long(buf, at)
        if not 0 <= size <= len(buf) - at:
            raise FormatError(f"avro: at byte {at} it says that a block of {size} bytes follows; found {len(buf) - at}")
    if items * least > len(buf) - at:
        raise FormatError(f"avro: at byte {at} it says that {items} items follow; found {len(buf) - at} bytes")
    return items, at


def _flat(dtype: str, least: int, block: Callable[[memoryview, int, int], tuple[NDArray[Any], int]]) -> Read:
    """An array of numbers of at least so many bytes: where it is one block, as writers make it, what `block` gives."""

    def read(buf: memoryview, at: int) -> tuple[NDArray[Any], int]:
        blocks: list[NDArray[Any]] = []
        while True:
            items, at = _count(buf, at, least)
            if not items:
                return blocks[0] if len(blocks) == 1 else np.concatenate([np.empty(0, dtype), *blocks]), at
            numbers, at = block(buf, at, items)
            blocks.append(numbers)

    return read


def _reals(dtype: str, size: int) -> Read:
    """An array of floats or doubles: a view of the value."""
    return _flat(dtype, size, lambda buf, at, items: (np.frombuffer(buf, dtype, items, at), at + items * size))


def _booleans(buf: memoryview, at: int, items: int) -> tuple[NDArray[Any], int]:
    block = np.frombuffer(buf, np.uint8, items, at)
    if block.max() > 1:
        raise FormatError(f"avro: a boolean at or after byte {at} is neither 0 nor 1")
    return block.view(np.bool_), at + items


def _longs(buf: memoryview, at: int, items: int) -> tuple[NDArray[Any], int]:
    """Ints or longs, int64."""
    return _few(buf, at, items) if items < _FEW else _many(buf, at, items)


def _few(buf: memoryview, at: int, items: int) -> tuple[NDArray[Any], int]:
    values = []
    for _ in range(items):
        value, at = _long(buf, at)
        values.append(value)
    return np.array(values, np.int64), at


def _many(buf: memoryview, at: int, items: int) -> tuple[NDArray[Any], int]:
    most = min(len(buf) - at, items * _LONGEST)
    ends = np.flatnonzero(np.frombuffer(buf, np.uint8, most, at) < 128)[:items]  # the last byte of each, from `at` on
    if len(ends) < items:
        raise IndexError
    data = np.frombuffer(buf, np.uint8, int(ends[-1]) + 1, at)
    starts = np.empty_like(ends)
    starts[0], starts[1:] = 0, ends[:-1] + 1
    sizes = ends - starts + 1
    longest = int(sizes.max())
    if longest > _LONGEST or (longest == _LONGEST and int(data[ends[sizes == _LONGEST]].max()) > 1):
        raise FormatError(f"avro: a number after byte {at} has more than 64 bits")
    value = (data[starts] & 127).astype(np.uint64)
    for k in range(1, longest):
        rows = np.flatnonzero(sizes > k)
        value[rows] |= (data[starts[rows] + k] & 127).astype(np.uint64) << np.uint64(7 * k)
    signed = (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64)
    return signed, at + len(data)


_FLAT = {  # kinds whose arrays are given as NumPy arrays
    "boolean": _flat("?", 1, _booleans),
    "float": _reals("<f4", 4),
    "double": _reals("<f8", 8),
    "int": _flat("<i8", 1, _longs),
    "long": _flat("<i8", 1, _longs),
}

_SIMPLE: dict[str, Read] = {
    "null": lambda _buf, at: (None, at),
    "boolean": _boolean,
    "int": _long,
    "long": _long,
    "float": _real("f"),
    "double": _real("d"),
    "bytes": _bytes,
    "string": _text,
}
