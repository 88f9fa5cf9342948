"""Columns of an Arrow table: numbers as arrays, bytes and texts as views of the table's own buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError
from dali_feed.records.source import Int64s

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Images", "Numbers", "Strings", "check_types", "images_of", "values_of"]

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

    def views(self, rows: Int64s) -> Iterator[memoryview | None]:
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
        for view in self.views(rows[spread]):
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
            found[:] = self.held.views(rows)
        missing = [k for k, view in enumerate(found) if view is None]
        if self.paths is not None:
            for k, path in zip(missing, self.paths.views(rows[missing]), strict=True):
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


def check_types(schema: pa.Schema, images: Sequence[str], told: str) -> None:
    """Raise ConfigError, which `told` begins, where a column cannot be what it should be."""
    from pyarrow import types

    flat = (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string)
    numbers = (types.is_integer, types.is_floating, types.is_boolean)
    for column in schema:
        if column.name in images:
            parts = _parts(column.type)
            good = any(is_it(column.type) for is_it in flat) if parts is None else bool(parts) and all(parts.values())
            rule = "images must be binary, paths as string, or a struct of bytes and path"
        else:
            good = any(is_it(column.type) for is_it in (*flat, *numbers))
            rule = "columns beside the images must be integers, floats, booleans, texts or binary"
        if not good:
            cure = (
                "cast it"
                if column.name in images
                else "leave it out: drop_columns() of a table, remove_columns() of a dataset"
            )
            msg = f"{told}: {rule}; found column {column.name!r} of {column.type}; {cure}"
            raise ConfigError(msg)


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


def values_of(column: pa.ChunkedArray, name: str, told: str) -> Numbers | Strings:
    """The same for a column beside the images. ConfigError for integers that do not fit in 64 bits with sign."""
    from pyarrow import types

    kind = column.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return _strings(column.chunks, kind)
    null = np.asarray(column.is_null()) if column.null_count else None
    if null is not None:
        column = column.fill_null(False if types.is_boolean(kind) else 0)
    values = column.to_numpy()
    if values.dtype == np.uint64 and values.max() > np.iinfo(np.int64).max:
        msg = f"{told}: integers must fit in 64 bits with sign; found {values.max()} in column {name!r}; cast it"
        raise ConfigError(msg)
    return Numbers(values.astype(np.int64) if types.is_integer(kind) else values, null)


def _strings(chunks: Sequence[pa.Array], kind: Any) -> Strings:
    from pyarrow import types

    return Strings(chunks, text=types.is_string(kind) or types.is_large_string(kind))
