"""`Npy`: values that are a NumPy file (`.npy`), by a parser of our own.

The law of this file: the header is matched against the one form that NumPy writes, and never evaluated. A dtype is one
of a list; whatever may hold an object is not on it. The array is a view, and its bytes are all there are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.format import Parse, Value, checked

ARRAY = "array"
MAGIC = b"\x93NUMPY"
_LONGEST = 4096  # bytes of a header; NumPy writes 118 unless there are very many dimensions
_DTYPE = r"\|b1|\|[iu]1|[<>](?:[iu][248]|f[248]|c8|c16)"
_SHAPE = r"\((?:[0-9]{1,19}(?:, ?[0-9]{1,19})*,?)?\)"
_MOST_DIMENSIONS = 32
_HEADER = re.compile(
    rf"\{{'descr': ?'(?P<dtype>{_DTYPE})', ?'fortran_order': ?(?P<fortran>True|False),"
    rf" ?'shape': ?(?P<shape>{_SHAPE}),? ?\}} *\n?"
)

Header = tuple[int, np.dtype[Any], tuple[int, ...], Any]


@dataclass(frozen=True, slots=True)
class Npy:
    """An array of numbers or booleans as `numpy.save` writes it, of any byte order, in C or Fortran order.

    Its one member is `array`: a NumPy array that is a view of the value. Refused are objects, texts, times and records,
    and a value with more or fewer bytes than its header says.
    """

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads the array.

        Raises:
            ConfigError: a member that is not `array`.
        """
        for name in members:
            if name != ARRAY:
                raise ConfigError(f"npy: {name}: no such member; a .npy value has {ARRAY!r} alone")
        wanted = len(checked(members))

        def parse(value: Value) -> tuple[Any, ...]:
            return (array_of(value),) * wanted

        return parse

    def members(self, value: Value) -> dict[str, Any]:
        """The array by its name."""
        return {ARRAY: array_of(value)}


def array_of(value: Value) -> NDArray[Any]:
    """The array that a .npy file holds, as a view of its bytes.

    Raises:
        FormatError: it is none, or it is cut off, or bytes follow it.
    """
    start, dtype, shape, order = header_of(value)
    rest, needs = len(value) - start, math.prod(shape) * dtype.itemsize
    if rest != needs:
        raise FormatError(f"npy: {dtype.name} {shape} must have {needs} bytes after its header; found {rest}")
    return np.ndarray(shape, dtype, value, start, None, order)


_known: dict[bytes, Header] = {}  # of headers seen last: records of one topic have the same one
_MOST_KNOWN = 64


def header_of(value: Value) -> Header:
    """Of a .npy file: where its array begins, dtype, shape, and "C" or "F".

    Raises:
        FormatError: it has no header, or not one that is taken.
    """
    view = memoryview(value)
    if len(view) < 10 or view[:6] != MAGIC:
        raise FormatError(f"npy: must begin with {MAGIC!r}; found {bytes(view[:8])!r}")
    if view[6] == 1:
        start, size = 10, view[8] | view[9] << 8
    elif view[6] in {2, 3} and len(view) >= 12:
        start, size = 12, int.from_bytes(view[8:12], "little")
    else:
        msg = f"npy: must be of version 1, 2 or 3, and whole; found {view[6]}.{view[7]} in {len(view)} bytes"
        raise FormatError(msg)
    if size > min(_LONGEST, len(view) - start):
        raise FormatError(f"npy: its header must have at most {min(_LONGEST, len(view) - start)} bytes; it says {size}")
    whole = bytes(view[: start + size])
    known = _known.get(whole)
    if known is None:
        known = _read(whole, start)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[whole] = known
    return known


def _read(whole: bytes, start: int) -> Header:
    text = whole[start:].decode("latin-1")
    fields = _HEADER.fullmatch(text)
    if fields is None:
        raise FormatError(f"npy: must be an array of numbers or booleans; found the header {text.strip()[:120]!r}")
    shape = tuple(int(digits) for digits in re.findall("[0-9]+", fields["shape"]))
    if len(shape) > _MOST_DIMENSIONS or math.prod(max(length, 1) for length in shape) > 1 << 48:
        raise FormatError(f"npy: must have at most {_MOST_DIMENSIONS} dimensions, and a possible size; found {shape}")
    return len(whole), np.dtype(fields["dtype"]), shape, "F" if fields["fortran"] == "True" else "C"
