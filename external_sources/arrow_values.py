"""Columns of an Arrow table: numbers as arrays, bytes and texts as views of the table's own buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError
from dali_feed.external_sources.request import MemberReader, foremost
from dali_feed.records.source import Block, Int64s

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ArrowReader",
    "Images",
    "Leaf",
    "Numbers",
    "Strings",
    "Values",
    "check_image",
    "check_types",
    "image_of",
    "images_of",
    "members_in",
    "values_of",
]


# Lists of an Arrow table, a row of numbers per record: views of the table's buffer where they lie flat in it.


LISTS_SAMPLED = 64  # rows of which a fingerprint takes the contents


def is_list(kind: Any) -> bool:
    """Whether a column's values are lists, however deep, of numbers or booleans."""
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)  # Hugging Face's Array2D and the like
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    inner = kind.value_type
    return types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner) or is_list(inner)


class Lists:
    """A column of lists. A row of numbers is an array, a view; lists in lists, and lists with nulls, are Python's."""

    def __init__(self, chunks: Sequence[pa.Array]) -> None:
        plain = [getattr(chunk, "storage", chunk) for chunk in chunks if len(chunk)]  # an extension's
        self._chunks = [(chunk, _flat(chunk)) for chunk in plain]
        self._starts = np.cumsum([0, *(len(chunk) for chunk in plain)])[:-1]

    def of(self, rows: Int64s) -> Iterator[Any]:
        """The lists of these rows; None for a null."""
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for part, k in zip(which.tolist(), (rows - self._starts[which]).tolist(), strict=True):
            chunk, flat = self._chunks[part]
            if flat is None:
                yield chunk[k].as_py()
            elif chunk.null_count and not chunk[k].is_valid:
                yield None
            else:
                offsets, numbers = flat
                yield numbers[offsets[k] : offsets[k + 1]]

    def told(self, rows: Int64s) -> Iterator[bytes]:
        """What is different in other rows, for a fingerprint: the contents of some."""
        spread = np.linspace(0, len(rows) - 1, min(LISTS_SAMPLED, len(rows))).round().astype(np.int64)
        for value in self.of(rows[spread]):
            yield repr(value.tolist() if isinstance(value, np.ndarray) else value).encode()


def _flat(chunk: pa.Array) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Where each row's numbers begin, and where the last's end, and all numbers; None where they lie otherwise."""
    from pyarrow import types

    numbers = chunk.values
    primitive = types.is_integer(numbers.type) or types.is_floating(numbers.type)
    if not primitive or numbers.null_count:  # booleans are bits
        return None
    if types.is_fixed_size_list(chunk.type):
        offsets = (np.arange(len(chunk) + 1) + chunk.offset) * chunk.type.list_size
    else:
        offsets = np.asarray(chunk.offsets)
    return offsets, numbers.to_numpy()


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


def image_of(known: Mapping[str, Leaf], image: str, told: str) -> str:
    """The column that an image is made of, of those that the name lists; ConfigError, which names `told`, for none."""
    found = foremost(image, known, f"{told} has the columns")
    if not is_image(known[found].kind):
        rule = "an image is made of binary, of paths as string, or of a struct of bytes and path"
        msg = f"member {image!r}: {rule}; found {known[found].kind} in {told}"
        raise ConfigError(msg)
    return found


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


# Members of a table's rows: its columns, and the parts of those that are structs, `answers.text`.


Values = Images | Numbers | Strings | Lists


@dataclass(frozen=True, slots=True)
class Leaf:
    """A member of a table's rows: the column that it is in, the parts of structs on the way, and its type."""

    path: tuple[str, ...]
    kind: pa.DataType

    @property
    def is_struct(self) -> bool:
        """Whether it is a struct: of bytes and path, as it is a member."""
        from pyarrow import types

        return bool(types.is_struct(self.kind))

    def of(self, table: pa.Table) -> pa.ChunkedArray:
        """Its values."""
        column = table[self.path[0]]
        for name in self.path[1:]:
            column = column.flatten()[[part.name for part in column.type].index(name)]  # with the struct's own nulls
        return column


def members_in(schema: pa.Schema) -> dict[str, Leaf]:
    """The members of a table's rows by name, in the table's order. Columns of other types are none."""
    from pyarrow import types

    found: dict[str, Leaf] = {}
    ahead = [Leaf((column.name,), column.type) for column in reversed(schema)]
    while ahead:
        leaf = ahead.pop()
        if member_of(leaf.kind):
            found.setdefault(".".join(leaf.path), leaf)
        if types.is_struct(leaf.kind):
            ahead += [Leaf((*leaf.path, part.name), part.type) for part in reversed(list(leaf.kind))]
    return found


class ArrowReader(MemberReader):
    """Reads rows of tables: numbers as arrays, bytes and texts as views, and the files that images lie in."""

    def _image(self, values: Values, rows: Int64s, block: Block, first: int = 0) -> None:
        """The images of these rows, as payloads from row `first` of the block on."""
        for k, view in enumerate(self._given(values, rows, block, first), first):
            if view is not None:
                block.payloads[k] = view
            else:
                block.faults.setdefault(k, "the image is null")

    def _given(self, values: Values, rows: Int64s, block: Block, first: int = 0) -> Any:
        """The values of these rows: an array, or a list with None for nulls."""
        if isinstance(values, Numbers):
            some = values.values[rows]
            null = None if values.null is None else values.null[rows]
            if null is None or not null.any():
                return some
            return [None if gone else value for value, gone in zip(some.tolist(), null.tolist(), strict=True)]
        if not isinstance(values, Images):
            return self._kept(list(values.of(rows)), block)
        return [
            self._loaded(found, block, k) if isinstance(found, str) else found
            for k, found in enumerate(self._kept(values.at(rows), block), first)
        ]

    def _kept(self, values: list[Any], block: Block) -> list[Any]:
        """The same, in memory that lasts as long as the block."""
        return values
