"""Columns of an Arrow table: numbers as arrays, bytes and texts as views of the table's own buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError
from dali_feed.external_sources.arrow_lists import Lists, is_list
from dali_feed.records.source import Int64s

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Images",
    "Numbers",
    "Strings",
    "check_image",
    "check_types",
    "images_of",
    "is_image",
    "member_of",
    "values_of",
]

SAMPLED = 64  # values of which a fingerprint takes the contents
SAMPLED_BYTES = 64 << 10  # of each


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column of numbers or booleans.

    values  int64, bool or a float, as many as the table has rows; 0 where there is none
    null    where there is none; None for nowhere
    """

    values: NDArray[Any]
    null: NDArray[np.bool_] | None


class Strings:
    """A column of bytes or texts. No value is copied: each is a view of the buffer that the table holds it in."""

    def __init__(self, chunks: Iterable[pa.Array], *, text: bool) -> None:
        self.text = text
        self._chunks = [_chunk(chunk) for chunk in chunks if len(chunk)]
        counts = [len(offsets) - 1 for offsets, _, _ in self._chunks]
        self._starts = np.cumsum([0, *counts])[:-1]

    def of(self, rows: Int64s) -> Iterator[memoryview | None]:
        """The values of these rows; None for a null."""
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for chunk, k in zip(which.tolist(), (rows - self._starts[which]).tolist(), strict=True):
            offsets, data, null = self._chunks[chunk]
            yield None if null is not None and null[k] else data[offsets[k] : offsets[k + 1]]

    def sizes(self) -> Int64s:
        """Bytes of each row's value, -1 for a null."""
        sizes = [np.diff(offsets).astype(np.int64) for offsets, _, _ in self._chunks]
        for size, (_, _, null) in zip(sizes, self._chunks, strict=True):
            if null is not None:
                size[null] = -1
        return np.concatenate(sizes)

    def told(self, rows: Int64s) -> Iterator[bytes]:
        """What is different in other rows, for a fingerprint: all sizes, and the contents of some."""
        yield self.sizes()[rows].tobytes()
        spread = np.linspace(0, len(rows) - 1, min(SAMPLED, len(rows))).round().astype(np.int64)
        for view in self.of(rows[spread]):
            yield b"" if view is None else view[:SAMPLED_BYTES].tobytes()


def _chunk(chunk: pa.Array) -> tuple[NDArray[Any], memoryview, NDArray[np.bool_] | None]:
    """Offsets of the values, and of their end; what they lie in; which are null."""
    _, offsets, data = chunk.buffers()
    wide = np.int64 if str(chunk.type).startswith("large") else np.int32
    held = np.frombuffer(offsets, wide)[chunk.offset : chunk.offset + len(chunk) + 1]
    null = chunk.is_null().to_numpy(zero_copy_only=False) if chunk.null_count else None
    return held, memoryview(b"" if data is None else data).cast("B"), null


@dataclass(frozen=True, slots=True)
class Images:
    """A column of encoded images: their bytes, and the paths of those that lie in files."""

    held: Strings | None
    paths: Strings | None

    def at(self, rows: Int64s) -> list[memoryview | str | None]:
        """Of each of these rows its bytes, else a path, else None."""
        found: list[memoryview | str | None] = [None] * len(rows)
        if self.held is not None:
            found[:] = self.held.of(rows)
        missing = [k for k, view in enumerate(found) if view is None]
        if self.paths is not None:
            for k, path in zip(missing, self.paths.of(rows[missing]), strict=True):
                found[k] = None if path is None else str(path, "utf-8", "surrogateescape")
        return found

    def in_files(self, rows: Int64s) -> list[str]:
        """The paths of those of these rows that have no bytes."""
        missing = rows if self.held is None else rows[self.held.sizes()[rows] < 0]
        return [path for path in self.at(missing) if isinstance(path, str)]


def _parts(kind: Any) -> dict[str, bool] | None:
    """Of a struct as Hugging Face's datasets keep images: its parts, and whether each is what it must be."""
    from pyarrow import types

    if not types.is_struct(kind):
        return None
    good = {
        "bytes": lambda part: types.is_binary(part) or types.is_large_binary(part),
        "path": lambda part: types.is_string(part) or types.is_large_string(part),
    }
    return {part.name: part.name in good and good[part.name](part.type) for part in kind}


def _is_flat(kind: pa.DataType) -> bool:
    """Bytes or texts."""
    from pyarrow import types

    tests = (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string)
    return any(is_it(kind) for is_it in tests)


def is_image(kind: pa.DataType) -> bool:
    """Whether images can be made of the column: of binary, paths as string, or a struct of bytes and path."""
    parts = _parts(kind)
    return _is_flat(kind) if parts is None else bool(parts) and all(parts.values())


def check_image(schema: pa.Schema, image: str, told: str) -> None:
    """Raise ConfigError, which `told` begins, where no images can be made of that column."""
    kind = schema.field(image).type
    if not is_image(kind):
        rule = "images must be binary, paths as string, or a struct of bytes and path"
        msg = f"{told}: {rule}; found column {image!r} of {kind}; cast it"
        raise ConfigError(msg)


def check_types(schema: pa.Schema, image: str, told: str) -> None:
    """Raise ConfigError, which `told` begins, where batches without `columns=` cannot hold a column."""
    for column in schema:
        if column.name != image and not (_is_number(column.type) or _is_flat(column.type)):
            rule = "columns beside the images must be integers, floats, booleans, texts or binary"
            cure = "remove it (drop_columns() of a table, remove_columns() of a dataset), or choose others by columns="
            msg = f"{told}: {rule}; found column {column.name!r} of {column.type}; {cure}"
            raise ConfigError(msg)


def _is_number(kind: pa.DataType) -> bool:
    from pyarrow import types

    return any(is_it(kind) for is_it in (types.is_integer, types.is_floating, types.is_boolean))


def member_of(kind: pa.DataType) -> bool:
    """Whether a record's value of that type is a member."""
    return _is_number(kind) or _is_flat(kind) or is_image(kind) or is_list(kind)


def images_of(column: pa.ChunkedArray) -> Images:
    """A column of a type that `check_types` let through."""
    if _parts(column.type) is None:
        strings = _strings(column.chunks, column.type)
        return Images(None, strings) if strings.text else Images(strings, None)
    names = [part.name for part in column.type]
    split = [dict(zip(names, chunk.flatten(), strict=True)) for chunk in column.chunks]  # with the struct's own nulls
    held, paths = (
        _strings([parts[name] for parts in split], column.type.field(name).type) if name in names else None
        for name in ("bytes", "path")
    )
    return Images(held, paths)


def values_of(column: pa.ChunkedArray, name: str, told: str) -> Numbers | Strings | Lists:
    """The same for a column beside the images. ConfigError for integers that do not fit in 64 bits with sign."""
    from pyarrow import types

    kind = column.type
    if is_list(kind):
        return Lists(column.chunks)
    if not _is_number(kind):
        return _strings(column.chunks, kind)
    null = np.asarray(column.is_null()) if column.null_count else None
    if null is not None:
        column = column.fill_null(False if types.is_boolean(kind) else 0)
    values = column.to_numpy()
    if values.dtype == np.uint64 and values.max() > np.iinfo(np.int64).max:
        msg = f"{told}: integers must fit in signed 64 bits; found {values.max()} in column {name!r}; cast it"
        raise ConfigError(msg)
    return Numbers(values.astype(np.int64) if types.is_integer(kind) else values, null)


def _strings(chunks: Sequence[pa.Array], kind: Any) -> Strings:
    from pyarrow import types

    return Strings(chunks, text=types.is_string(kind) or types.is_large_string(kind))
