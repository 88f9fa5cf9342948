"""`Avro`: values in Avro's binary encoding, with a schema that is known or that each value names.

Schemas are fastavro's business, values are not: its reader copies what it reads, makes an object of each number and
trusts the bytes. Five of them that announce a hundred million nulls keep it busy for seconds, and a value nested deeply
enough ends the process. Here a schema becomes functions, one for each of its types, that read a value whole: bytes and
numbers in a row are views of it, so what nobody asked for costs little. With a reader's schema they are made of both.
"""

from __future__ import annotations

import functools
import itertools
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.avro_schemas import Schemas, whole
from dali_feed.formats.format import Parse, Value
from dali_feed.formats.paths import SHOWN, WHOLE, MissingPathError, Steps, flatten, path_of, pick, steps_of

Read = Callable[[memoryview, int], tuple[Any, int]]  # a value, and where the next one begins

_FRAME = struct.Struct(">BI")  # a zero and the schema's id, as Confluent's serializers write them


@dataclass(frozen=True, slots=True)
class Avro:
    """Avro's binary encoding. Give one of the first two.

    schema         that all values were written with: a dict or list, JSON text, or the path of an `.avsc` file
    schemas        values begin with a zero byte and four of their schema's id, as Confluent's serializers write them;
                   this says where the schemas are: a folder of ID.avsc files, a schema registry client
                   (confluent_kafka's, or what has its `get_schema` and, for references, `get_version`), or a function
                   of an id that gives a schema
    reader_schema  that values are read as, by Avro's rules of schema resolution: aliases, promotions, defaults of
                   fields and enums. None: each as it was written; a member that its own schema lacks is missing

    Bytes and fixed are given as views, arrays of numbers and booleans as NumPy arrays (of floats and doubles: views
    too, where they were written in one block; ints and longs as int64), an enum as its symbol. A logical type is
    given as what it is stored as.
    """

    schema: str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any] | None = None
    schemas: Any = None
    reader_schema: str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any] | None = None

    def __post_init__(self) -> None:
        if (self.schema is None) == (self.schemas is None):
            msg = "Avro: must have either schema= (one for all values) or schemas= (a folder or a registry); found " + (
                "none" if self.schema is None else "both"
            )
            raise ConfigError(msg)

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads these members: paths through records, maps, arrays and unions.

        Raises:
            ConfigError: the schema cannot be read, has no such member, or cannot be read as the reader's; where values
                name their schemas, that is an error of the values.
            MissingPackageError: fastavro is not installed.
        """
        wanted = [steps_of(path) for path in members]
        reader = None if self.reader_schema is None else Types(*whole(self.reader_schema))
        if self.schemas is None:
            return _parse(Types(*whole(self.schema)), wanted, reader)
        if reader is not None:
            _parse(reader, wanted)  # for its errors, which are not the values'
        schemas = Schemas(self.schemas)
        parses: dict[int, Parse] = {}

        def parse(value: Value) -> tuple[Any, ...]:
            buf = memoryview(value)
            if len(buf) < _FRAME.size or buf[0]:
                raise FormatError(f"avro: must begin with a zero byte and a schema's id; found {bytes(buf[:5])!r}")
            number = _FRAME.unpack_from(buf)[1]
            if number not in parses:
                parses[number] = _parse_of(schemas, number, wanted, reader)
            return parses[number](buf[_FRAME.size :])

        return parse

    def members(self, value: Value) -> dict[str, Any]:
        """All members by path."""
        return flatten(self.bind((WHOLE,))(value)[0])


def _parse_of(schemas: Schemas, number: int, wanted: list[Steps], reader: Types | None) -> Parse:
    """What reads values of that schema; an error that all of them give is found once."""
    types = Types(*schemas.get(number))
    try:
        return _parse(types, wanted, reader)
    except (ConfigError, FormatError) as error:
        missing = isinstance(error, ConfigError) and reader is None  # of `check`: no such member
        return Failing(f"{error}; schema {number}", MissingPathError if missing else FormatError)


def _parse(types: Types, wanted: list[Steps], reader: Types | None = None) -> Parse:
    shown = types if reader is None else reader
    for steps in wanted:
        shown.check(shown.schema, steps)
    read = types.read(types.schema) if reader is None else Resolution(types, reader).read(types.schema, reader.schema)
    if isinstance(read, Failing):
        raise ConfigError(read.reason)

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


@dataclass(frozen=True, slots=True)
class Failing:
    """Stands where no value can be read: an error of each that comes to it."""

    reason: str
    kind: type[FormatError] = FormatError

    def __call__(self, *_: Any) -> NoReturn:
        """The error."""
        raise self.kind(self.reason)


class Types:
    """A schema; `named` has its types by full name. Logical types are what they are stored as."""

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        self.schema = schema
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
            items = self.items(about)
            return _FLAT.get(self.plain(items)[0]) or _array(self.read(items))
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

    def items(self, array: Any) -> Any:
        """The type of an array's items."""
        if self._empty(array["items"]):
            raise FormatError("avro: items of an array must take at least one byte each; found a type that takes none")
        return array["items"]

    def _empty(self, schema: Any, seen: frozenset[str] = frozenset()) -> bool:
        """Whether values take no bytes: then five bytes could announce any number of them."""
        kind, about = self.plain(schema)
        if kind == "record" and about["name"] not in seen:
            inside = seen | {about["name"]}
            return all(self._empty(field["type"], inside) for field in about["fields"])
        return kind == "null" or (kind == "fixed" and not about["size"])


_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_DTYPES = {"boolean": "?", "int": "<i8", "long": "<i8", "float": "<f4", "double": "<f8"}  # of arrays


class Resolution:
    """Reads what was written with one schema as the reader's has it, by Avro's rules of schema resolution.

    The law: what cannot fit is `Failing` when the schemas meet, and so is all around it up to a union with another
    branch. Only what a value chooses, a branch or a symbol, is an error of that value.
    """

    def __init__(self, writer: Types, reader: Types) -> None:
        self._writer, self._reader = writer, reader
        self._records: dict[tuple[str, str], Read] = {}  # by the names of both

    def read(self, writer: Any, reader: Any, path: Steps = ()) -> Read:
        """What reads a value of the writer's type as one of the reader's."""
        kind, written = self._writer.plain(writer)
        target, wanted = self._reader.plain(reader)
        if kind == "union" and written:
            reads = [self.read(each, reader, path) for each in written]
            return reads[-1] if all(isinstance(each, Failing) for each in reads) else _union(reads)
        if target == "union" and wanted:  # the first that fits
            reads = [self.read(writer, each, path) for each in wanted]
            return next((each for each in reads if not isinstance(each, Failing)), reads[-1])
        if kind == target == "array":
            return self._array(written, wanted, path)
        if kind == target == "map":
            item = self.read(written["values"], wanted["values"], path)
            return item if isinstance(item, Failing) else _map(item)
        if kind == target and (kind in _SIMPLE or _alike(written, wanted)):
            if kind == "record":
                return self._record(written, wanted, path)
            read = self._writer.read(writer)
            return _then(read, functools.partial(_symbol, wanted)) if kind == "enum" else read
        if target in _PROMOTIONS.get(kind, ()):
            return _then(_SIMPLE[kind], float) if target in {"float", "double"} else _SIMPLE[target]
        rule = " or ".join([_shown(written), *_PROMOTIONS.get(kind, ())])
        by = ", by name or alias" if kind == target else ""
        name = f"avro: reader_schema: {path_of(path)}"
        return Failing(f"{name}: must be {rule}{by}, or a union with it, as it was written; found {_shown(wanted)}")

    def _array(self, written: Any, wanted: Any, path: Steps) -> Read:
        theirs, ours = self._writer.items(written), wanted["items"]
        item = self.read(theirs, ours, path)
        dtype = _DTYPES.get(self._reader.plain(ours)[0])
        if isinstance(item, Failing) or dtype is None:
            return item if isinstance(item, Failing) else _array(item)
        read = _FLAT.get(self._writer.plain(theirs)[0]) or _array(item)
        return _then(read, functools.partial(np.asarray, dtype=dtype))

    def _record(self, written: Any, wanted: Any, path: Steps) -> Read:
        key = written["name"], wanted["name"]
        if key in self._records:
            return self._records[key]
        fields: list[tuple[str | None, Read]] = []  # None: the reader has no such field
        names = [each["name"] for each in wanted["fields"]]

        def read(buf: memoryview, at: int) -> tuple[dict[str, Any], int]:
            record = dict.fromkeys(names)
            for name, each in fields:
                value, at = each(buf, at)
                if name is not None:
                    record[name] = value
            return record, at

        self._records[key] = read
        fields += self._fields(written, wanted, path)
        self._records[key] = next((each for _, each in fields if isinstance(each, Failing)), read)
        return self._records[key]

    def _fields(self, written: Any, wanted: Any, path: Steps) -> Iterator[tuple[str | None, Read]]:
        """Defaults of what was not written, then what was, in its order."""
        theirs = {each["name"] for each in written["fields"]}
        ours = {each["name"]: each for each in wanted["fields"] if each["name"] in theirs}
        for each in wanted["fields"]:
            if each["name"] in theirs:
                continue
            alias = next((name for name in each.get("aliases", ()) if name in theirs and name not in ours), None)
            if alias is None:
                yield each["name"], self._defaulted(each, written["name"], (*path, each["name"]))
            else:
                ours[alias] = each
        for each in written["fields"]:
            if each["name"] in ours:
                field = ours[each["name"]]
                yield field["name"], self.read(each["type"], field["type"], (*path, field["name"]))
            else:
                yield None, self._writer.read(each["type"])

    def _defaulted(self, field: Any, record: str, path: Steps) -> Read:
        name = f"avro: reader_schema: {path_of(path)}"
        if "default" not in field:
            rule = f"must have a default, or a name or alias of a field that {record} was written with"
            return Failing(f"{name}: {rule}; found none")
        make = functools.partial(self._default, field["type"], field["default"])
        try:
            make()
        except Exception as error:
            raise ConfigError(f"{name}: must have a default of its type; found {field['default']!r}") from error
        return lambda _buf, at: (make(), at)

    def _default(self, reader: Any, value: Any) -> Any:
        """A value in JSON as values of the type are given: a new one each time, since a loop may change it."""
        kind, about = self._reader.plain(reader)
        if kind == "union":
            branches = [each for each in about if (self._reader.plain(each)[0] == "null") == (value is None)]
            return self._default(branches[0], value)
        if kind == "record":
            values = {each["name"]: each["default"] for each in about["fields"] if "default" in each} | value
            return {each["name"]: self._default(each["type"], values[each["name"]]) for each in about["fields"]}
        if kind == "map":
            return {key: self._default(about["values"], each) for key, each in value.items()}
        if kind == "array":
            items = [self._default(about["items"], each) for each in value]
            dtype = _DTYPES.get(self._reader.plain(about["items"])[0])
            return items if dtype is None else np.array(items, dtype)
        if kind in {"bytes", "fixed"}:
            return memoryview(value.encode("latin-1"))
        return float(value) if kind in {"float", "double"} else value


def _then(read: Read, change: Callable[[Any], Any]) -> Read:
    def changed(buf: memoryview, at: int) -> tuple[Any, int]:
        value, at = read(buf, at)
        return change(value), at

    return changed


def _symbol(enum: Mapping[str, Any], symbol: str) -> Any:
    if symbol not in enum["symbols"] and "default" not in enum:
        raise FormatError(f"avro: reader_schema: enum {enum['name']}: must have {symbol!r} or a default; found neither")
    return symbol if symbol in enum["symbols"] else enum["default"]


def _alike(written: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether two types have one name, whatever their namespaces, and one size."""
    names = {each.rpartition(".")[2] for each in (wanted["name"], *wanted.get("aliases", ()))}
    return written["name"].rpartition(".")[2] in names and written.get("size") == wanted.get("size")


def _shown(schema: Any) -> str:
    known = schema if isinstance(schema, dict) else {"type": schema}
    return " ".join(str(known[each]) for each in ("type", "name", "size") if each in known)


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


def _array(item: Read) -> Read:
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
        at, _ = _span(buf, at)
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
