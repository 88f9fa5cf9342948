"""Bytes of a tar file, sample by sample, and where each member lies in it.

The law: equal samples make equal bytes. A header has no time, owner or anything else of the machine that wrote it. It
is plain ustar; a name that is long or not ASCII, or a member of 8 GiB, gets a pax header before it, as POSIX has it.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, FormatError
from dali_feed.external_sources.index import TarIndex
from dali_feed.external_sources.tar import folded
from dali_feed.external_sources.tfrecord import crc32c, masked
from dali_feed.packing.rows import ending_of, leaf_types, numbers_of
from dali_feed.storage.store import Stamp

BLOCK = 512
FLUSH_BYTES = 1 << 20
COPIED_BYTES = 64 << 10  # larger views are written at once, smaller ones wait for more
MOST_OCTAL = 8**11
_ZEROS = bytes(BLOCK)
_MODE = b"0000644\0" + b"0000000\0" * 2
_TIME = b"00000000000\0"
_TAIL = bytes(100) + b"ustar\x0000" + bytes(BLOCK - 265)
_SUM = sum(_MODE + _TIME + b" " * 8 + _TAIL)  # of all that is the same in every header
_REGULAR, _PAX = b"0", b"x"


class TarWriter:
    """Gives `write` the archive in pieces of about 1 MiB, and keeps the columns of its index. For one thread."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._parts: list[bytes | memoryview] = []
        self._buffered = 0
        self.size = 0
        self._first: list[int] = []
        self._offset: list[int] = []
        self._length: list[int] = []
        self._suffix: list[int] = []
        self._crc: list[int] = []
        self._codes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._first)

    def add(self, key: str, members: Iterable[tuple[str, bytes | memoryview]]) -> None:
        """A sample: its key, and its members as (suffix, bytes), in this order. Views are used before this returns."""
        self._first.append(len(self._offset))
        views = False
        for suffix, data in members:
            size = len(data)
            if data.__class__ is not bytes:
                views |= size >= COPIED_BYTES
                data = data if size >= COPIED_BYTES else bytes(data)  # noqa: PLW2901
            self._put(_header(f"{key}.{suffix}", size))
            self._offset.append(self.size)
            self._length.append(size)
            self._suffix.append(self._codes.setdefault(folded(suffix), len(self._codes)))
            self._crc.append(zlib.crc32(data))
            self._put(data)
            if rest := -size % BLOCK:
                self._put(_ZEROS[:rest])
        if views or self._buffered >= FLUSH_BYTES:
            self._flush()

    def finish(self) -> TarIndex:
        """Write the end; the archive's index."""
        self._put(_ZEROS * 2)
        self._flush()
        columns = ([*self._first, len(self._offset)], self._offset, self._length)
        first, offset, length = (np.array(column, np.int64) for column in columns)
        suffix, suffixes = np.array(self._suffix, np.int32), tuple(map(os.fsencode, self._codes))
        crc = np.array(self._crc, np.uint32)
        return TarIndex(Stamp(0, self.size, 0, 0), 0, first, offset, length, suffix, suffixes, crc)

    def _put(self, data: bytes | memoryview) -> None:
        self._parts.append(data)
        self._buffered += len(data)
        self.size += len(data)

    def _flush(self) -> None:
        self._write(b"".join(self._parts))
        self._parts.clear()
        self._buffered = 0


TarSample = bytes | tuple[bytes, int] | Mapping[str, bytes]  # of `write_shard`


def write_shard(
    path: str | os.PathLike[str], samples: Iterable[TarSample], *, first: int = 0, suffix: str = "jpg"
) -> int:
    """Write one tar file; return how many samples it holds. The file appears whole or not at all.

    A sample is the image's bytes; (bytes, label), which also writes a `.cls` member; or a mapping from
    suffix to bytes, which is written as it is (its key `__key__`, if there, names the sample).
    Samples are named 00000000, 00000001, ... from `first` on; images get `suffix`.
    """
    target = Path(path)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            tar = TarWriter(file.write)
            for number, sample in enumerate(samples, first):
                members = _members(sample, suffix)
                tar.add(members.pop("__key__", b"%08d" % number).decode(), members.items())
            tar.finish()
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return len(tar)


def _members(sample: TarSample, suffix: str) -> dict[str, bytes]:
    if isinstance(sample, Mapping):
        return dict(sample)
    return {suffix: sample[0], "cls": b"%d" % sample[1]} if isinstance(sample, tuple) else {suffix: sample}


def _header(name: str, size: int) -> bytes:
    """The header of a regular file, with a pax header before it where ustar cannot hold its name or size."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= 100 and size < MOST_OCTAL and encoded.isascii():
        return _block(encoded, size, _REGULAR)
    records = b""
    if len(encoded) > 100 or not encoded.isascii():
        records += _record(b"path", encoded)
    if size >= MOST_OCTAL:
        records += _record(b"size", b"%d" % size)
    short = encoded.decode("ascii", "replace").replace("�", "_").encode()[:100]
    padded = records + bytes(-len(records) % BLOCK)
    return _block(b"pax_header", len(records), _PAX) + padded + _block(short, min(size, MOST_OCTAL - 1), _REGULAR)


def _record(key: bytes, value: bytes) -> bytes:
    """LENGTH, a blank, KEY=VALUE and a newline; the length counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _block(name: bytes, size: int, kind: bytes) -> bytes:
    digits = b"%011o" % size
    total = _SUM + sum(name) + sum(digits) + kind[0]
    return b"".join((name.ljust(100, b"\0"), _MODE, digits, b"\0", _TIME, b"%06o\0 " % total, kind, _TAIL))


# The bytes of a `tf.train.Example`, and of a TFRecord around them.
#
# The law: equal features make equal bytes: features by name, numbers packed, each as Protocol Buffers writes it.
# Nothing is rounded in silence but a float to float32, which is all that a FloatList holds.


_TF_BYTES, _FLOATS, _INTS = 1, 2, 3  # the field of a Feature that holds its list
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def tfrecord_bytes(record: bytes) -> bytes:
    """A record in its frame: its length and that one's masked CRC-32C, the record and its CRC."""
    size = struct.pack("<Q", len(record))
    return b"".join((size, struct.pack("<I", masked(crc32c(size))), record, struct.pack("<I", masked(crc32c(record)))))


def example_bytes(features: Mapping[str, Any]) -> bytes:
    """An Example. A value is bytes or a text, a list of them, a number, or a list or an array of numbers, laid flat.

    Raises FormatError for a value that no feature can hold.
    """
    entries = [
        _field(1, _field(1, name.encode()) + _field(2, _feature(name, features[name])))
        for name in sorted(features, key=str.encode)
    ]
    return _field(1, b"".join(entries)) if entries else b""


def _feature(name: str, value: Any) -> bytes:
    if isinstance(value, _WORDS):
        return _field(_TF_BYTES, _field(1, _word(name, value)))
    if isinstance(value, list | tuple) and value and all(isinstance(leaf, _WORDS) for leaf in value):
        words = (_word(name, leaf) for leaf in value)
        return _field(_TF_BYTES, b"".join(_field(1, word) for word in words))
    array = numbers_of(value)
    if array is None:
        rule = "must be bytes, a text, or numbers, or a list of one of these, not lists of different lengths"
        raise FormatError(f"feature {name!r}: {rule}; found {type(value).__name__}")
    if array.dtype.kind in "biu":
        return _field(_INTS, _packed(b"".join(map(_int64, [name] * array.size, array.reshape(-1).tolist()))))
    with np.errstate(over="ignore"):
        floats = array.reshape(-1).astype("<f4")
    if (np.isinf(floats) & np.isfinite(array.reshape(-1))).any():
        raise FormatError(f"feature {name!r}: its floats must fit in 32 bits; found {float(np.abs(array).max())!r}")
    return _field(_FLOATS, _packed(floats.tobytes()))


_WORDS = str | bytes | bytearray | memoryview


def _word(name: str, value: _WORDS) -> bytes:
    """Bytes, or a text's."""
    try:
        return value.encode() if isinstance(value, str) else bytes(value)
    except UnicodeEncodeError as error:  # half of a surrogate pair, as of a file's name that is no UTF-8
        raise FormatError(f"feature {name!r}: {error}") from None


def _packed(numbers: bytes) -> bytes:
    return _field(1, numbers) if numbers else b""


def _int64(name: str, value: int) -> bytes:
    if not _LEAST <= value <= _MOST:
        raise FormatError(f"feature {name!r}: whole numbers must fit in 64 bits with a sign; found {value}")
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


# Shards in Mosaic's MDS format, and the index.json beside them.
#
# The law: all samples have the columns of the first; equal samples make equal bytes. A shard is: uint32 how many
# samples, uint32 where each begins and the last ends, its configuration as JSON, the samples. A sample is: uint32 the
# size of each column that has no fixed one, and the columns.


VERSION = 2
MOST = (1 << 32) - 1  # what an offset can be
_FIXED = {"int": "<i8", "float64": "<f8"}
_PICTURES = {"jpg": "jpeg", "png": "png"}
_BYTES = ("jpeg", "png", "bytes")
_ARRAYS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"}


@dataclass(frozen=True, slots=True)
class MdsColumns:
    """Names in order, and how each is written."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]

    def sizes(self) -> list[int | None]:
        """Bytes of the columns of one size; None for the others."""
        return [_size(encoding) for encoding in self.encodings]

    def sample(self, values: Mapping[str, Any]) -> bytes:
        """A sample's bytes. Raises FormatError where it does not have these columns, each of its kind."""
        if set(values) != set(self.names):
            odd = sorted(set(values) ^ set(self.names))
            msg = f"all samples of an MDS set have the same columns, {', '.join(self.names)}; {odd[0]!r} is " + (
                "missing" if odd[0] in self.names else "one more"
            )
            raise FormatError(msg)
        parts = [_encoded(n, e, values[n]) for n, e in zip(self.names, self.encodings, strict=True)]
        sizes = [len(part) for part, size in zip(parts, self.sizes(), strict=True) if size is None]
        return np.array(sizes, "<u4").tobytes() + b"".join(parts)


def encodings_of(values: Mapping[str, Any]) -> dict[str, str]:
    """How each value of a sample would be written. FormatError where it has none, or one of no kind."""
    if not values:
        raise FormatError("a sample of an MDS set has columns; found none")
    return {name: _encoding(name, value) for name, value in values.items()}


def columns_of(samples: Sequence[Mapping[str, str]]) -> MdsColumns:
    """The columns of a set, by `encodings_of` some of its samples, the first one first.

    Images are columns of `jpeg` or `png`, which Mosaic's reader decodes, where all of these are; else of `bytes`.
    """
    kinds = {
        name: kind if kind not in _BYTES or all(each.get(name, kind) == kind for each in samples) else "bytes"
        for name, kind in samples[0].items()
    }
    return MdsColumns(tuple(kinds), tuple(kinds.values()))


def shard_bytes(columns: MdsColumns, samples: Sequence[bytes], size_limit: int) -> bytes:
    """A shard. Raises ConfigError where it is too large for the format."""
    config = json.dumps(_config(columns, size_limit), sort_keys=True).encode()
    first = 4 * (len(samples) + 2) + len(config)
    borders = np.cumsum([first, *map(len, samples)], dtype=np.int64)
    if borders[-1] > MOST:
        raise ConfigError(
            f"MDS: a shard has less than 4 GiB; this shard would have {borders[-1]:,} bytes; give a smaller shard size"
        )
    return b"".join((np.array([len(samples)], "<u4").tobytes(), borders.astype("<u4").tobytes(), config, *samples))


def index_json(columns: MdsColumns, shards: Sequence[tuple[str, int, str, int]], size_limit: int) -> bytes:
    """The index of shards, each as (name, bytes, SHA-1, samples)."""
    entries = [
        _config(columns, size_limit)
        | {
            "raw_data": {"basename": name, "bytes": size, "hashes": {"sha1": sha1}},
            "samples": samples,
            "zip_data": None,
        }
        for name, size, sha1, samples in shards
    ]
    return json.dumps({"shards": entries, "version": VERSION}, sort_keys=True).encode()


def _config(columns: MdsColumns, size_limit: int) -> dict[str, Any]:
    return {
        "column_encodings": list(columns.encodings),
        "column_names": list(columns.names),
        "column_sizes": columns.sizes(),
        "compression": None,
        "format": "mds",
        "hashes": ["sha1"],
        "size_limit": size_limit,
        "version": VERSION,
    }


def _encoding(name: str, value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes" if name != "image" else _PICTURES.get(ending_of(memoryview(value)) or "", "bytes")
    if isinstance(value, str):
        return "str"
    if isinstance(value, dict):
        return "json"
    array = numbers_of(value)
    if array is not None and not array.ndim:
        return "float64" if array.dtype.kind == "f" else "int"
    if array is not None and array.dtype.name in _ARRAYS and array.size:
        return f"ndarray:{array.dtype.name}:{','.join(map(str, array.shape))}"
    of = " and ".join(sorted({each.__name__ for each in leaf_types(value)}))
    what = f"{of}, or lists of different lengths" if array is None else f"{array.dtype} and shape {array.shape}"
    raise FormatError(f"column {name!r}: MDS has no encoding for {type(value).__name__} of {what}")


def _size(encoding: str) -> int | None:
    if encoding in _FIXED:
        return 8
    if encoding.startswith("ndarray:"):
        _, dtype, shape = encoding.split(":")
        return np.dtype(dtype).itemsize * int(np.prod([int(n) for n in shape.split(",")]))
    return None


def _encoded(name: str, encoding: str, value: Any) -> bytes:
    own = _encoding(name, value)
    if own != encoding and not (own in _BYTES and encoding in _BYTES):  # both decoders of images open either kind
        raise FormatError(f"column {name!r}: is {encoding} in this set, as in its first sample; found {own}")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict):
            return json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:  # half of a surrogate pair, bytes inside of a dict
        raise FormatError(f"column {name!r}: {error}") from None
    if encoding == "int" and not -(1 << 63) <= int(value) < 1 << 63:
        raise FormatError(f"column {name!r}: whole numbers must fit in 64 bits with a sign; found {value}")
    array = np.asarray(value)
    return array.astype(_FIXED.get(encoding, array.dtype.newbyteorder("<"))).tobytes()
