"""A kept row as bytes, and back: what `shelf.copied` copies, and nothing else.

The law: a row comes back equal, with the same types, in memory of its own. Bytes are read as values, never as code:
there is no pickle here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["row_of", "told"]

_HEAD = struct.Struct("<cQ")  # what it is, and its bytes or its parts
_NUMBERS = "biufcSU"  # kinds of dtypes, as `copied` takes them


def told(payload: memoryview | None, values: Sequence[Any]) -> bytes:
    """A row as bytes. Raises TypeError for what has no form here."""
    return b"".join(_parts((payload, *values)))


def row_of(body: memoryview) -> tuple[memoryview | None, tuple[Any, ...]]:
    """The row; of writable memory views and arrays are. Raises ValueError where these are no bytes of `told`."""
    try:
        found, end = _value(body, 0)
    except (struct.error, KeyError, TypeError, IndexError, UnicodeError) as error:
        raise ValueError(str(error)) from error
    if end != len(body) or not isinstance(found, tuple) or not isinstance(found[0], memoryview | None):
        msg = "no row"
        raise ValueError(msg)
    return found[0], found[1:]


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    kind = type(value)
    if kind is list or kind is tuple or kind is dict:
        parts = [each for pair in value.items() for each in pair] if kind is dict else value
        yield _HEAD.pack(b"d" if kind is dict else b"l" if kind is list else b"t", len(parts))
        for each in parts:
            yield from _parts(each)
    elif isinstance(value, np.generic) or kind is np.ndarray:
        if value.dtype.kind not in _NUMBERS:
            msg = f"cannot be kept: {value.dtype}"
            raise TypeError(msg)
        yield _HEAD.pack(b"a" if kind is np.ndarray else b"g", 3)
        for part in (value.dtype.str, tuple(value.shape), memoryview(value.tobytes())):
            yield from _parts(part)
    else:
        what, whole = _whole(value)
        yield _HEAD.pack(what, len(whole))
        yield whole


def _whole(value: Any) -> tuple[bytes, bytes | memoryview]:
    """What it is, and its bytes."""
    if value is None or value is True or value is False:
        return (b"N" if value is None else b"T" if value else b"F"), b""
    kind = type(value)
    if kind is memoryview or kind is bytes:
        return (b"m" if kind is memoryview else b"b"), value
    if kind is str:
        return b"s", value.encode("utf-8", "surrogatepass")
    if kind is int:
        return b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if kind is float or kind is complex:
        return (b"f" if kind is float else b"c"), np.complex128(value).tobytes()
    msg = f"cannot be kept: {kind.__name__}"
    raise TypeError(msg)


def _value(body: memoryview, at: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends."""
    what, size = _HEAD.unpack_from(body, at)
    at += _HEAD.size
    if what in b"ltdag":
        parts = []
        for _ in range(size):
            part, at = _value(body, at)
            parts.append(part)
        return _made(what, parts), at
    whole = body[at : at + size]
    if len(whole) != size:
        msg = f"{size} bytes, found {len(whole)}"
        raise ValueError(msg)
    return _SIMPLE[what](whole), at + size


def _made(what: bytes, parts: list[Any]) -> Any:
    if what == b"l":
        return parts
    if what == b"t":
        return tuple(parts)
    if what == b"d":
        return dict(zip(parts[::2], parts[1::2], strict=True))
    name, shape, held = parts
    dtype = np.dtype(name)
    if dtype.kind not in _NUMBERS:
        msg = f"no dtype of ours: {name}"
        raise ValueError(msg)
    array = np.frombuffer(held, dtype).reshape(shape)
    return array if what == b"a" else array[()]


_SIMPLE: dict[bytes, Any] = {
    b"N": lambda _: None,
    b"T": lambda _: True,
    b"F": lambda _: False,
    b"m": lambda whole: whole,
    b"b": bytes,
    b"s": lambda whole: str(whole, "utf-8", "surrogatepass"),
    b"i": lambda whole: int.from_bytes(whole, "little", signed=True),
    b"f": lambda whole: float(np.frombuffer(whole, np.complex128)[0].real),
    b"c": lambda whole: complex(np.frombuffer(whole, np.complex128)[0]),
}
