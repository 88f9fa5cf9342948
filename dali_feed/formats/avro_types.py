"""What an Avro schema says, made into functions that read or skip a value.

A schema may name itself, and a value of it may be nested as deeply as it has bytes. So the functions for what lies
deeper are made when a value first goes there, level by level, and there is an end to the levels.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

from dali_feed.errors import FormatError
from dali_feed.formats.avro_bytes import FLAT, SIZES, Read, Skip, booleans, count, long, longs, reals, skip_longs, span

__all__ = ["LEVELS", "Types", "branch", "text"]

LEVELS = 64  # how often a value may hold another one of its own kind, one in the other
_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_COMPLEX = {"record", "error", "enum", "array", "map", "fixed"}


class Types:
    """The types of one schema; `named` has its definitions by full name. Logical types are what they are stored as."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._made: dict[tuple[str, str, int, frozenset[str]], Any] = {}  # one for all places that name a record

    def plain(self, schema: Any) -> tuple[str, Any]:
        """What kind a schema is of ("union", "record", "long", ...), and its definition."""
        while True:
            if isinstance(schema, list):
                return "union", schema
            kind = schema if isinstance(schema, str) else schema["type"]
            if isinstance(kind, str) and (kind in _PRIMITIVES or kind in _COMPLEX):
                if kind == "fixed" and not (isinstance(schema["size"], int) and schema["size"] >= 0):
                    msg = f"avro: a type 'fixed' must have a size of 0 or more; found {schema['size']!r}"
                    raise FormatError(msg)
                return ("record" if kind == "error" else kind), schema
            schema = self._named[kind] if isinstance(kind, str) else kind

    def empty(self, schema: Any, seen: frozenset[str] = frozenset()) -> bool:
        """Whether values take no bytes: then five bytes could announce any number of them."""
        kind, about = self.plain(schema)
        if kind == "record" and about["name"] not in seen:
            inside = seen | {about["name"]}
            return all(self.empty(field["type"], inside) for field in about["fields"])
        return kind == "null" or (kind == "fixed" and not about["size"])

    def items(self, about: Mapping[str, Any]) -> Any:
        """The schema of an array's items, which must take bytes."""
        if self.empty(about["items"]):
            msg = "avro: items of an array must take at least one byte each; found a type that takes none"
            raise FormatError(msg)
        return about["items"]

    def read(self, schema: Any, level: int = 0, inside: frozenset[str] = frozenset()) -> Read:
        """What reads a value as a whole."""
        kind, about = self.plain(schema)
        if kind == "record":
            name = about["name"]
            if name in inside:
                return _later(lambda: self.read(about, level + 1), level)
            key = ("read", name, level, inside)
            if key not in self._made:
                fields = [(each["name"], self.read(each["type"], level, inside | {name})) for each in about["fields"]]
                self._made[key] = _record(fields)
            return cast("Read", self._made[key])
        if kind == "union":
            return _union([self.read(each, level, inside) for each in about])
        if kind == "array":
            flat = self.plain(self.items(about))[0]
            if flat in FLAT:
                return booleans if flat == "boolean" else longs if flat in {"int", "long"} else reals(flat)
            return _array(self.read(about["items"], level, inside))
        if kind == "map":
            return _map(self.read(about["values"], level, inside))
        if kind == "enum":
            return _enum(tuple(about["symbols"]))
        return _fixed(about["size"]) if kind == "fixed" else _SIMPLE[kind]

    def skip(self, schema: Any, level: int = 0, inside: frozenset[str] = frozenset()) -> Skip:
        """What goes over a value."""
        kind, about = self.plain(schema)
        if kind in _SKIPS:
            return _SKIPS[kind]
        if kind == "record":
            name = about["name"]
            if name in inside:
                return _later(lambda: self.skip(about, level + 1), level)
            key = ("skip", name, level, inside)
            if key not in self._made:
                fields = [self.skip(each["type"], level, inside | {name}) for each in about["fields"]]
                self._made[key] = _skip_all(fields)
            return cast("Skip", self._made[key])
        if kind == "union":
            return _skip_union([self.skip(each, level, inside) for each in about])
        if kind == "map":
            return _skip_blocks(self.skip(about["values"], level, inside), keys=True)
        return self._skip_array(about, level, inside) if kind == "array" else _skip_fixed(about["size"])

    def _skip_array(self, about: Any, level: int, inside: frozenset[str]) -> Skip:
        flat = self.plain(self.items(about))[0]
        if flat in {"int", "long"}:
            return skip_longs
        if flat in SIZES:
            return _skip_sized(SIZES[flat])
        return _skip_blocks(self.skip(about["items"], level, inside), keys=False)


def _later(make: Callable[[], Callable[..., Any]], level: int) -> Callable[..., Any]:
    made: list[Callable[..., Any]] = []

    def go(*args: Any) -> Any:
        if not made:
            if level + 1 >= LEVELS:
                msg = f"avro: values must be nested in fewer than {LEVELS} others of their type"
                raise FormatError(msg)
            made.append(make())
        return made[0](*args)

    return go


def _within(buf: memoryview, end: int) -> int:
    if end > len(buf):
        raise IndexError
    return end


def _skip_fixed(size: int) -> Skip:
    return lambda buf, at: _within(buf, at + size)


def _record(fields: list[tuple[str, Read]]) -> Read:
    def read(buf: memoryview, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, each in fields:
            found[name], at = each(buf, at)
        return found, at

    return read


def _skip_all(fields: list[Skip]) -> Skip:
    def skip(buf: memoryview, at: int) -> int:
        for each in fields:
            at = each(buf, at)
        return at

    return skip


def branch(buf: memoryview, at: int, branches: int) -> tuple[int, int]:
    """Which of a union's branches a value is of."""
    chosen, at = long(buf, at)
    if not 0 <= chosen < branches:
        msg = f"avro: a union of {branches} has no branch {chosen}, at byte {at - 1}"
        raise FormatError(msg)
    return chosen, at


def _union(branches: list[Read]) -> Read:
    def read(buf: memoryview, at: int) -> tuple[Any, int]:
        chosen, at = branch(buf, at, len(branches))
        return branches[chosen](buf, at)

    return read


def _skip_union(branches: list[Skip]) -> Skip:
    def skip(buf: memoryview, at: int) -> int:
        chosen, at = branch(buf, at, len(branches))
        return branches[chosen](buf, at)

    return skip


def _array(item: Read) -> Read:
    def read(buf: memoryview, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            items, _, at = count(buf, at, 1)
            if not items:
                return found, at
            for _ in itertools.repeat(None, items):
                value, at = item(buf, at)
                found.append(value)

    return read


def _map(item: Read) -> Read:
    def read(buf: memoryview, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            items, _, at = count(buf, at, 1)
            if not items:
                return found, at
            for _ in itertools.repeat(None, items):
                key, at = text(buf, at)
                found[key], at = item(buf, at)

    return read


def _skip_blocks(item: Skip, *, keys: bool) -> Skip:
    def skip(buf: memoryview, at: int) -> int:
        while True:
            items, size, at = count(buf, at, 1)
            if not items:
                return at
            if size >= 0:
                at += size
                continue
            for _ in itertools.repeat(None, items):
                at = item(buf, span(buf, at)[1] if keys else at)

    return skip


def _skip_sized(each: int) -> Skip:
    def skip(buf: memoryview, at: int) -> int:
        while True:
            items, _, at = count(buf, at, each)
            if not items:
                return at
            at += items * each

    return skip


def _enum(symbols: tuple[str, ...]) -> Read:
    def read(buf: memoryview, at: int) -> tuple[str, int]:
        chosen, at = long(buf, at)
        if not 0 <= chosen < len(symbols):
            msg = f"avro: an enum of {len(symbols)} symbols has no symbol {chosen}, at byte {at - 1}"
            raise FormatError(msg)
        return symbols[chosen], at

    return read


def _fixed(size: int) -> Read:
    def read(buf: memoryview, at: int) -> tuple[memoryview, int]:
        return buf[at : _within(buf, at + size)], at + size

    return read


def _real(kind: str) -> Read:
    size, code = SIZES[kind], "f" if kind == "float" else "d"
    unpack = struct.Struct(f"<{code}").unpack_from

    def read(buf: memoryview, at: int) -> tuple[float, int]:
        return unpack(buf, _within(buf, at + size) - size)[0], at + size

    return read


def _bytes(buf: memoryview, at: int) -> tuple[memoryview, int]:
    at, end = span(buf, at)
    return buf[at:end], end


def text(buf: memoryview, at: int) -> tuple[str, int]:
    """A string."""
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
    "float": _real("float"),
    "double": _real("double"),
    "bytes": _bytes,
    "string": text,
}
_SKIPS: dict[str, Skip] = {
    **dict.fromkeys(("int", "long", "enum"), lambda buf, at: long(buf, at)[1]),
    **dict.fromkeys(("bytes", "string"), lambda buf, at: span(buf, at)[1]),
    **{kind: _skip_fixed(size) for kind, size in SIZES.items()},
    "null": lambda _buf, at: at,
}
