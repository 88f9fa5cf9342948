"""Shards in Mosaic's MDS format, and the index.json beside them.

The law: all samples have the columns of the first; equal samples make equal bytes. A shard is: uint32 how many samples,
uint32 where each begins and the last ends, its configuration as JSON, the samples. A sample is: uint32 the size of
each column that has no fixed one, and the columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, FormatError
from dali_feed.packing.values import ending_of

__all__ = ["Columns", "MixedImagesError", "columns_of", "index_json", "shard_bytes"]

VERSION = 2
MOST = (1 << 32) - 1  # what an offset can be
_FIXED = {"int": "<i8", "float64": "<f8"}
_PICTURES = {"jpg": "jpeg", "png": "png"}
_BYTES = ("jpeg", "png", "bytes")
_ARRAYS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"}


class MixedImagesError(Exception):
    """An image is of another kind than the first, so that their column must be one of bytes."""


@dataclass(frozen=True, slots=True)
class Columns:
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


def columns_of(values: Mapping[str, Any], *, pictures: bool) -> Columns:
    """The columns of a set whose first sample has these values. FormatError where it has none, or one of no kind.

    pictures  images are columns of `jpeg` or `png`, which Mosaic's reader decodes; else of `bytes`
    """
    if not values:
        msg = "a sample of an MDS set has columns; found none"
        raise FormatError(msg)
    found = {name: _encoding(name, value) for name, value in values.items()}
    kept = found if pictures else {name: "bytes" if each in _BYTES else each for name, each in found.items()}
    return Columns(tuple(kept), tuple(kept.values()))


def shard_bytes(columns: Columns, samples: Sequence[bytes], size_limit: int) -> bytes:
    """A shard. Raises ConfigError where it is too large for the format."""
    config = json.dumps(_config(columns, size_limit), sort_keys=True).encode()
    first = 4 * (len(samples) + 2) + len(config)
    borders = np.cumsum([first, *map(len, samples)], dtype=np.int64)
    if borders[-1] > MOST:
        msg = (
            f"MDS: a shard has less than 4 GiB; this shard would have {borders[-1]:,} bytes; give a smaller shard size"
        )
        raise ConfigError(msg)
    return b"".join((np.array([len(samples)], "<u4").tobytes(), borders.astype("<u4").tobytes(), config, *samples))


def index_json(columns: Columns, shards: Sequence[tuple[str, int, str, int]], size_limit: int) -> bytes:
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


def _config(columns: Columns, size_limit: int) -> dict[str, Any]:
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
    array = np.asarray(value)
    if array.ndim == 0 and array.dtype.kind in "biuf":
        return "float64" if array.dtype.kind == "f" else "int"
    if array.dtype.name in _ARRAYS and array.size:
        return f"ndarray:{array.dtype.name}:{','.join(map(str, array.shape))}"
    msg = f"column {name!r}: MDS has no encoding for {type(value).__name__} of {array.dtype} and shape {array.shape}"
    raise FormatError(msg)


def _size(encoding: str) -> int | None:
    if encoding in _FIXED:
        return 8
    if encoding.startswith("ndarray:"):
        _, dtype, shape = encoding.split(":")
        return np.dtype(dtype).itemsize * int(np.prod([int(n) for n in shape.split(",")]))
    return None


def _encoded(name: str, encoding: str, value: Any) -> bytes:
    found = _encoding(name, value)
    if found != encoding and found in _BYTES and encoding in _BYTES:
        if encoding != "bytes":
            raise MixedImagesError
    elif found != encoding:
        msg = f"column {name!r}: is {encoding} in this set, as in its first sample; found {found}"
        raise FormatError(msg)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict):
            return json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:  # half of a surrogate pair, bytes inside of a dict
        msg = f"column {name!r}: {error}"
        raise FormatError(msg) from None
    if encoding == "int" and not -(1 << 63) <= int(value) < 1 << 63:
        msg = f"column {name!r}: whole numbers must fit in 64 bits with a sign; found {value}"
        raise FormatError(msg)
    array = np.asarray(value)
    return array.astype(_FIXED.get(encoding, array.dtype.newbyteorder("<"))).tobytes()
