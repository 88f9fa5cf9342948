"""A sample of an MDS shard: uint32 the size of each column that has no fixed one, then the columns.

The law: sizes fill the sample to its last byte, values have the size of their encoding, and nothing is unpickled.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.format import Parse, Value, checked

__all__ = ["INTEGERS", "MdsSample"]

Decode = Callable[[memoryview], Any]

_AS_STORED = ("bytes", "jpeg", "png", "str", "json", "str_decimal")  # bytes and texts: views
_SCALARS = {"int": "<i8"} | {
    f"{kind}{8 * n}": f"<{letter}{n}"
    for kind, letter, sizes in (("int", "i", (1, 2, 4, 8)), ("uint", "u", (1, 2, 4, 8)), ("float", "f", (2, 4, 8)))
    for n in sizes
}
INTEGERS = (*(name for name in _SCALARS if "int" in name), "str_int")
_TEXTS: dict[str, Callable[[str], Any]] = {"str_int": int, "str_float": float}
_DTYPES = {name: dtype for name, dtype in _SCALARS.items() if name != "int"}
_CODES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
          64: "uint64", 65: "int64", 66: "float64"}  # fmt: skip
_ARRAY = re.compile(r"ndarray(?::(?P<dtype>[a-z0-9]+)(?::(?P<shape>[0-9]+(?:,[0-9]+)*))?)?")
_LONGEST = 40  # letters of a number


@dataclass(frozen=True, slots=True)
class MdsSample:
    """A sample, whose members are its columns: bytes, images, texts and JSON are views, numbers are numbers, arrays are
    arrays, views too. Columns of other encodings can be there, and cannot be asked for.
    """

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads these columns.

        Raises:
            ConfigError: no such column, or one of an encoding that is not read: pickles are not, ever.
        """
        wanted = [(self._place(name), self._decode(name)) for name in checked(members)]
        borders = self._borders

        def parse(value: Value) -> tuple[Any, ...]:
            view = memoryview(value)
            edges = borders(view)
            return tuple([decode(view[edges[k] : edges[k + 1]]) for k, decode in wanted])

        return parse

    def members(self, value: Value) -> dict[str, Any]:
        """All columns that can be read."""
        names = [name for name, encoding in zip(self.names, self.encodings, strict=True) if _decoder(encoding)]
        return dict(zip(names, self.bind(names)(value), strict=True))

    def _place(self, name: str) -> int:
        if name not in self.names:
            msg = f"member {name!r}: samples have the columns {', '.join(self.names)}; found none of that name"
            raise ConfigError(msg)
        return self.names.index(name)

    def _decode(self, name: str) -> Decode:
        encoding = self.encodings[self._place(name)]
        found = _decoder(encoding)
        if found is None:
            why = "runs code, and is never unpickled" if encoding == "pkl" else "is not read"
            msg = f"member {name!r}: its encoding {encoding!r} {why}; write it as jpeg, png, bytes, json or ndarray"
            raise ConfigError(msg)
        return found

    def _borders(self, view: memoryview) -> list[int]:
        """Where each column begins, and where the last ends."""
        varying = self.sizes.count(None)
        if len(view) < 4 * varying:
            msg = f"mds: the sizes of {varying} columns take {4 * varying} bytes; found {len(view)}"
            raise FormatError(msg)
        told = iter(np.frombuffer(view, "<u4", varying).tolist())
        sizes = [next(told) if size is None else size for size in self.sizes]
        edges = list(itertools.accumulate(sizes, initial=4 * varying))
        if edges[-1] != len(view):
            msg = f"mds: a sample's columns must fill its {len(view)} bytes; found sizes for {edges[-1]}"
            raise FormatError(msg)
        return edges


def _decoder(encoding: str) -> Decode | None:
    """What reads a value; None for an encoding that is not read."""
    if encoding in _AS_STORED:
        return _as_stored
    if encoding in _SCALARS:
        dtype = np.dtype(_SCALARS[encoding])

        def number(value: memoryview) -> Any:
            if len(value) != dtype.itemsize:
                msg = f"mds: {encoding} must have {dtype.itemsize} bytes; found {len(value)}"
                raise FormatError(msg)
            return np.frombuffer(value, dtype)[0].item()

        return number
    if encoding in _TEXTS:
        return lambda value: _number(value, _TEXTS[encoding])
    found = _ARRAY.fullmatch(encoding)
    if found is None or found["dtype"] not in {None, *_DTYPES}:
        return None
    shape = None if found["shape"] is None else tuple(map(int, found["shape"].split(",")))
    return lambda value: _array(value, found["dtype"], shape)


def _as_stored(value: memoryview) -> memoryview:
    return value


def _number(value: memoryview, kind: Callable[[str], Any]) -> Any:
    text = bytes(value[:_LONGEST]).decode("ascii", "replace")
    try:
        if len(value) >= _LONGEST or "_" in text:  # to Python 1_0 is a number too
            raise ValueError
        return kind(text)
    except ValueError:
        msg = f"mds: must be a number in decimal text; found {text!r}"
        raise FormatError(msg) from None


def _array(value: memoryview, name: str | None, shape: tuple[int, ...] | None) -> Any:
    """An array; dtype and shape stand before its bytes where the encoding does not say them."""
    at = 0
    if name is None:
        name = _CODES.get(value[0]) if len(value) else None
        at = 1
    if shape is None and len(value) > at:
        dimensions, width = value[at] >> 2, 1 << (value[at] & 3)
        at += 1
        sides = value[at : at + dimensions * width]
        if len(sides) == dimensions * width and dimensions <= 32:  # more than NumPy had for long
            shape = tuple(np.frombuffer(sides, f"<u{width}").tolist())
            at += len(sides)
    if name is None or shape is None:
        msg = f"mds: an array must begin with its dtype and its shape; found {bytes(value[:12])!r}"
        raise FormatError(msg)
    dtype = np.dtype(_DTYPES[name])
    if math.prod(shape) * dtype.itemsize != len(value) - at:
        msg = f"mds: {name} {shape} must have {math.prod(shape) * dtype.itemsize} bytes; found {len(value) - at}"
        raise FormatError(msg)
    return np.frombuffer(value[at:], dtype).reshape(shape)
