"""The bytes of a `tf.train.Example`, and of a TFRecord around them.

The law: equal features make equal bytes: features by name, numbers packed, each as Protocol Buffers writes it.
Nothing is rounded in silence but a float to float32, which is all that a FloatList holds.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from dali_feed.errors import FormatError
from dali_feed.external_sources.record_files.crc32c import crc32c, masked

__all__ = ["example_bytes", "tfrecord_bytes"]

_BYTES, _FLOATS, _INTS = 1, 2, 3  # the field of a Feature that holds its list
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def tfrecord_bytes(record: bytes) -> bytes:
    """A record in its frame: its length and that one's masked CRC-32C, the record and its CRC."""
    size = struct.pack("<Q", len(record))
    return b"".join((size, struct.pack("<I", masked(crc32c(size))), record, struct.pack("<I", masked(crc32c(record)))))


def example_bytes(features: Mapping[str, Any]) -> bytes:
    """An Example. A value is bytes or a text, a whole number, a float, or a list or an array of numbers, laid flat.

    Raises FormatError for a value that no feature can hold.
    """
    entries = [
        _field(1, _field(1, name.encode()) + _field(2, _feature(name, features[name])))
        for name in sorted(features, key=str.encode)
    ]
    return _field(1, b"".join(entries)) if entries else b""


def _feature(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair, as of a file's name that is no UTF-8
            msg = f"feature {name!r}: {error}"
            raise FormatError(msg) from None
    if isinstance(value, bytes | bytearray | memoryview):
        return _field(_BYTES, _field(1, bytes(value)))
    array = np.asarray(value)
    if array.dtype.kind in "biu":
        return _field(_INTS, _packed(b"".join(map(_int64, [name] * array.size, array.reshape(-1).tolist()))))
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            floats = array.reshape(-1).astype("<f4")
        if (np.isinf(floats) & np.isfinite(array.reshape(-1))).any():
            msg = f"feature {name!r}: its floats must fit in 32 bits; found {float(np.abs(array).max())!r}"
            raise FormatError(msg)
        return _field(_FLOATS, _packed(floats.tobytes()))
    msg = f"feature {name!r}: must be bytes, a text, or numbers; found {type(value).__name__}"
    raise FormatError(msg)


def _packed(numbers: bytes) -> bytes:
    return _field(1, numbers) if numbers else b""


def _int64(name: str, value: int) -> bytes:
    if not _LEAST <= value <= _MOST:
        msg = f"feature {name!r}: whole numbers must fit in 64 bits with a sign; found {value}"
        raise FormatError(msg)
    return _varint(value & 0xFFFFFFFFFFFFFFFF)


def _field(number: int, data: bytes) -> bytes:
    """A field of bytes: its number and kind, how many, and they."""
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out: list[int] = []
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
