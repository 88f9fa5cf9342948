"""`Example`: values that are a `tf.train.Example`, by a small parser of our own.

The law of this file: one pass over the bytes, no recursion, and every length is held against what is left, so that work
and memory are bounded by the value's own length. It takes what protobuf's writers write, packed or not, and unknown
fields; what only a damaged value has (two values in one entry, a number longer than 64 bits, a field of a wrong type,
groups) is refused, where protobuf would take it for something else.

    message Example { Features features = 1; }
    message Features { map<string, Feature> feature = 1; }
    message Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    message BytesList { repeated bytes value = 1; }     and so on
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import FormatError
from dali_feed.formats.contract import Parse, Value, checked

__all__ = ["Example"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups
_FEW = 24  # bytes of packed numbers from which NumPy is quicker
_ROW = "[]"
_NAME, _VALUE = 1 << 3 | _BYTES, 2 << 3 | _BYTES  # how fields 1 and 2 begin, where they are bytes
_LISTS = (1 << 3 | _BYTES, 2 << 3 | _BYTES, 3 << 3 | _BYTES)  # of bytes, floats and whole numbers
_FLOAT = struct.Struct("<f")


@dataclass(frozen=True, slots=True)
class Example:
    """A `tf.train.Example`. Its members are its features: `image/encoded`, `image/class/label`.

    A feature of one value is a view of the record's bytes, an int or a float; of several a list of views, an int64 or a
    float32 array. `NAME[]` gives them in a row whatever their number: for lists whose length differs. A feature that a
    record lacks, or that is empty, is None.
    """

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads these features; it steps over the others."""
        names = checked(members)
        keys = [name.removesuffix(_ROW).encode() for name in names]
        asked = [(place, key, name.endswith(_ROW)) for place, (key, name) in enumerate(zip(keys, names, strict=True))]
        wanted = frozenset(keys)

        def parse(value: Value) -> tuple[Any, ...]:
            data = memoryview(value)
            found = _quickly(data, wanted)
            if found is None:
                found = dict(_features(data))
            out: list[Any] = [None] * len(names)
            for place, key, as_row in asked:
                feature = found.get(key)
                if feature is not None:
                    one = None if as_row else _single(feature)
                    out[place] = _plain(_values(feature, key), as_row=as_row) if one is None else one
            return tuple(out)

        return parse

    def members(self, value: Value) -> dict[str, Any]:
        """All features, in the record's order."""
        found = dict(_features(memoryview(value)))
        return {str(key, "utf-8"): _plain(_values(feature, key), as_row=False) for key, feature in found.items()}


def _plain(values: Any, *, as_row: bool) -> Any:
    """A feature's values as a member has them."""
    if values is None or as_row:
        return values
    if len(values) == 1:
        return values[0] if isinstance(values, list) else values[0].item()
    return values if len(values) else None


def _quickly(data: memoryview, wanted: Container[bytes]) -> dict[bytes, memoryview] | None:
    """The wanted ones of `_features`, at a fifth of the time, of what all writers write; None for anything else.

    That is one message of features, and of each a name of fewer than 128 bytes, the value, and nothing more.
    """
    found: dict[bytes, memoryview] = {}
    end = len(data)
    at = _inner(data, 0)
    while 0 <= at < end - 3:
        if data[at] != _NAME:
            return None
        stop = data[at + 1]
        if stop < 128:
            at, stop = at + 2, at + 2 + stop
        else:
            size, at = _varint(data, at + 1)
            stop = at + size
        if stop > end or stop - at < 4 or data[at] != _NAME or data[at + 1] > stop - at - 4:
            return None
        name = at + 2 + data[at + 1]
        first = data[name + 1]
        size, first = (first, name + 2) if first < 128 else _varint(data, name + 1)
        if data[at + 1] > 127 or data[name] != _VALUE or first + size != stop:
            return None
        key = data[at + 2 : name].tobytes()
        if key in wanted:
            found[key] = data[first:stop]
        at = stop
    return found if at == end else None


def _single(feature: memoryview) -> Any:
    """The value of a feature that has one, as all writers write it; None for anything else."""
    if len(feature) < 4 or feature[0] not in _LISTS:
        return None
    size, at = _varint(feature, 1)
    at = _inner(feature, at) if size == len(feature) - at else -1
    if at < 0:
        return None
    if feature[0] == _LISTS[0]:
        return feature[at:]
    if feature[0] == _LISTS[1]:
        return _FLOAT.unpack_from(feature, at)[0] if len(feature) - at == _FLOAT.size else None
    if at == len(feature):
        return None
    value, stop = _varint(feature, at)
    return None if stop < len(feature) else value - (value >> 63 << 64)


def _inner(data: memoryview, at: int) -> int:
    """Where the contents of field 1 begin, where that begins at `at`, is bytes, and ends with the data; else -1."""
    if at + 1 >= len(data) or data[at] != _NAME:
        return -1
    size, start = _varint(data, at + 1)
    return start if size == len(data) - start else -1


def _features(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Name and bytes of each `Feature`; of two with one name the later counts, as in protobuf."""
    for features in _messages(data, "features"):
        for entry in _messages(features, "a feature"):
            yield _entry(entry)


def _entry(data: memoryview) -> tuple[bytes, memoryview]:
    parts: dict[int, memoryview] = {}
    for field, kind, part in _fields(data):
        if field in {1, 2}:
            if field in parts:
                msg = "example: a feature must have one name and one value; found two"
                raise FormatError(msg)
            parts[field] = _bytes(kind, part, "a feature's name or value")
    key = bytes(parts.get(1, b""))
    try:
        key.decode()
    except UnicodeDecodeError:
        msg = f"example: a feature's name must be UTF-8; found {key[:40]!r}"
        raise FormatError(msg) from None
    return key, parts.get(2, memoryview(b""))


def _values(feature: memoryview, key: bytes) -> list[memoryview] | NDArray[Any] | None:
    """The values of a feature; None where none of the three lists is set."""
    found: tuple[int, memoryview] | None = None
    for field, kind, part in _fields(feature):
        if field in {1, 2, 3}:
            if found is not None:
                msg = f"example: feature {key.decode()!r} must have one list of values; found two"
                raise FormatError(msg)
            found = field, _bytes(kind, part, f"feature {key.decode()!r}")
    if found is None:
        return None
    listed, held = found
    if listed == 1:
        return list(_messages(held, "a value"))
    parts = [(kind, part) for field, kind, part in _fields(held) if field == 1]
    return _floats(parts) if listed == 2 else _ints(parts)


def _floats(parts: list[tuple[int, Any]]) -> NDArray[np.float32]:
    """Packed ones are a view, where they come in one piece, as from every writer."""
    arrays = []
    for kind, part in parts:
        if kind not in {_FIXED32, _BYTES} or len(part) % 4:
            msg = "example: a float must have 4 bytes; found a number of another size"
            raise FormatError(msg)
        arrays.append(np.frombuffer(part, "<f4"))
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.zeros(0, np.float32), *arrays])


def _ints(parts: list[tuple[int, Any]]) -> NDArray[np.int64]:
    arrays = []
    for kind, part in parts:
        if kind not in {_VARINT, _BYTES}:
            msg = "example: a whole number must be a varint; found one of 4 or 8 bytes"
            raise FormatError(msg)
        arrays.append(np.array([part], np.uint64) if kind == _VARINT else _varints(part))
    whole = arrays[0] if len(arrays) == 1 else np.concatenate([np.zeros(0, np.uint64), *arrays])
    return whole.view(np.int64)


def _varints(data: memoryview) -> NDArray[np.uint64]:
    """Varints end to end."""
    if len(data) < _FEW:
        out, at = [], 0
        while at < len(data):
            value, at = _varint(data, at)
            out.append(value)
        return np.array(out, np.uint64)
    held = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(held < 128)
    if not len(ends) or ends[-1] != len(held) - 1:
        msg = "example: it is cut off within a number"
        raise FormatError(msg)
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    longest = int(sizes.max())
    if longest > 10 or (longest == 10 and (held[ends[sizes == 10]] > 1).any()):
        msg = "example: a number must fit in 64 bits; found a longer one"
        raise FormatError(msg)
    values = np.zeros(len(ends), np.uint64)
    for k in range(longest):
        has = sizes > k
        values[has] |= (held[starts[has] + k] & np.uint8(127)).astype(np.uint64) << np.uint64(7 * k)
    return values


def _messages(data: memoryview, what: str) -> Iterator[memoryview]:
    """The bytes of each field 1."""
    for field, kind, part in _fields(data):
        if field == 1:
            yield _bytes(kind, part, what)


def _bytes(kind: int, part: Any, what: str) -> memoryview:
    if kind != _BYTES:
        msg = f"example: {what} must be bytes; found a number"
        raise FormatError(msg)
    found: memoryview = part
    return found


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview | int]]:
    """Number, wire type and contents of each field: bytes, of a fixed number its bytes, of a varint its value."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if not 0 < tag >> 3 < 1 << 29:
            msg = f"example: a field's number must be in 1..{(1 << 29) - 1}; found {tag >> 3}"
            raise FormatError(msg)
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield tag >> 3, kind, number
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind == _FIXED32:
            size = 4
        elif kind == _FIXED64:
            size = 8
        else:
            msg = f"example: a field's type must be 0, 1, 2 or 5; found {kind}"
            raise FormatError(msg)
        if size > end - at:
            msg = f"example: a field says that {size} bytes follow; found {end - at}"
            raise FormatError(msg)
        yield tag >> 3, kind, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 128:
        return data[at], at + 1
    value = shift = 0
    for byte in data[at : at + 10]:
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            if value >> 64:
                break
            return value, at
        shift += 7
    msg = "example: it is cut off within a number" if at == len(data) else "example: a number must fit in 64 bits"
    raise FormatError(msg)
