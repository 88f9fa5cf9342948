"""Columns of an Arrow table as values of members: bytes, texts and lists as views of the table's own buffers.

The law: a row costs no Python where its value is a number, bytes, a text, or a list of numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dali_feed.columns import Bytes, Image, Number, Text
from dali_feed.errors import ConfigError
from dali_feed.external_sources.files import load_files, shared_folder
from dali_feed.external_sources.ranges import rooms_of
from dali_feed.records.pieces import ArrayPieces, Pieces, Values
from dali_feed.records.source import Block, Int64s, Lease, alternatives, sampled

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "@file"  # behind the name of a column of paths: the bytes of the files
SAMPLED_BYTES = 64 << 10  # of each value of which a fingerprint takes the contents


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column of numbers or booleans.

    values  int64, bool or a float, as many as the table has rows; 0 where there is none
    null    where there is none; None for nowhere
    """

    values: NDArray[Any]
    null: NDArray[np.bool_] | None

    def __getitem__(self, rows: Int64s) -> Any:
        some, null = self.values[rows], None if self.null is None else self.null[rows]
        if null is None or not null.any():
            return some
        return [None if gone else value for value, gone in zip(some.tolist(), null.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Files:
    """A column of bytes, some of which lie in files.

    held   those in the table; none of them where `bytes` is False
    paths  where the others lie, as texts
    """

    own: Pieces
    paths: Pieces
    bytes: bool = True

    def paths_of(self, rows: Int64s) -> list[str | None]:
        """Of each of these rows the path of its file; None where it has bytes, or neither."""
        names: list[str | None] = [None] * len(rows)
        lone = np.flatnonzero(self.own.missing[rows])
        for k, path in zip(lone.tolist(), self.paths[rows[lone]], strict=True):
            names[k] = None if path is None else str(path, "utf-8", "surrogateescape")
        return names


class Lists:
    """A column of lists in lists, of lists with nulls, or of booleans: Python's."""

    def __init__(self, chunks: Sequence[pa.Array]) -> None:
        self._chunks = chunks
        self._starts = np.cumsum([0, *map(len, chunks)])[:-1]

    def __getitem__(self, rows: Int64s) -> list[Any]:
        which = np.searchsorted(self._starts, rows, side="right") - 1
        places = (rows - self._starts[which]).tolist()
        return [self._chunks[part][k].as_py() for part, k in zip(which.tolist(), places, strict=True)]


Held: TypeAlias = Numbers | Pieces | ArrayPieces | Files | Lists  # the values of a column, all rows


# Which columns are members, and what they are.


def plain(kind: Any) -> Any:
    """A column's type as its values are given: of a dictionary that of its values, of views that of bytes or texts."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(kind):
        return plain(kind.value_type)
    if getattr(types, "is_string_view", lambda _: False)(kind):
        return pa.large_string()
    return pa.large_binary() if getattr(types, "is_binary_view", lambda _: False)(kind) else kind


def _is_list(kind: Any) -> bool:
    """Whether a column's values are lists, however deep, of numbers or booleans."""
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)  # Hugging Face's Array2D and the like
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    return is_number(kind.value_type) or _is_list(kind.value_type)


def is_number(kind: Any) -> bool:
    """Whether a column's values are numbers or booleans."""
    from pyarrow import types

    return any(is_it(kind) for is_it in (types.is_integer, types.is_floating, types.is_boolean))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_flat(kind: Any) -> bool:
    """Bytes or texts."""
    from pyarrow import types

    return bool(_is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def _is_file(kind: Any) -> bool:
    """A struct of bytes and path, or of one of them, as Hugging Face's datasets keep images."""
    from pyarrow import types

    good: dict[str, Callable[[Any], bool]] = {
        "bytes": lambda part: _is_flat(part) and not _is_text(part),
        "path": _is_text,
    }
    return (
        bool(types.is_struct(kind))
        and kind.num_fields > 0
        and all(part.name in good and good[part.name](plain(part.type)) for part in kind)
    )


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
        """Its values. ConfigError where the table has two columns of the name."""
        if table.column_names.count(self.path[0]) > 1:
            rule, cure = "no two columns may have the same name", "rename one of the two"
            raise ConfigError(f"Table: {rule}; found {self.path[0]!r} twice among {table.column_names}; {cure}")
        column = table[self.path[0]]
        for name in self.path[1:]:
            column = column.flatten()[[part.name for part in column.type].index(name)]  # with the struct's own nulls
        return column if column.type.equals(self.kind) else column.cast(self.kind)


def members_in(schema: pa.Schema) -> dict[str, Leaf]:
    """The members of a table's rows by name, in its order: columns, and parts of structs, `answers.text`.

    Columns of other types are none.
    """
    from pyarrow import types

    members: dict[str, Leaf] = {}
    ahead = [Leaf((column.name,), plain(column.type)) for column in reversed(schema)]
    while ahead:
        leaf = ahead.pop()
        if is_number(leaf.kind) or _is_flat(leaf.kind) or _is_file(leaf.kind) or _is_list(leaf.kind):
            members.setdefault(".".join(leaf.path), leaf)
        if types.is_struct(leaf.kind):
            ahead += [Leaf((*leaf.path, part.name), plain(part.type)) for part in reversed(list(leaf.kind))]
    return members


def others_in(schema: pa.Schema) -> dict[str, pa.DataType]:
    """The columns, and parts of structs, that are no members, by name. One of nulls holds nothing, and is none."""
    from pyarrow import types

    known, others = members_in(schema), dict[str, Any]()
    ahead = [Leaf((column.name,), plain(column.type)) for column in reversed(schema)]
    while ahead:
        leaf = ahead.pop()
        if leaf.is_struct:
            ahead += [Leaf((*leaf.path, part.name), plain(part.type)) for part in reversed(list(leaf.kind))]
        elif known.get(".".join(leaf.path)) != leaf and not types.is_null(leaf.kind):
            others[".".join(leaf.path)] = leaf.kind
    return others


def image_of(known: Mapping[str, Leaf], member: str, title: str) -> str:
    """See `Records.image_of`: a column of paths becomes that of the files' bytes."""
    names = []
    for name in alternatives(member):
        kind = known[name].kind if name in known else None
        if kind is not None and not (_is_flat(kind) or _is_file(kind)):
            rule = "an image is made of binary, of paths as string, or of a struct of bytes and path"
            msg = f"member {member!r}: {rule}; found {kind} in {title}"
            raise ConfigError(msg)
        names.append(name + FILE if kind is not None and _is_text(kind) else name)
    return ";".join(names)


def check_image(kind: Any, image: str, title: str) -> None:
    """Raise ConfigError, which `title` begins, where no images can be made of a column of that type."""
    if not (_is_flat(plain(kind)) or _is_file(kind)):
        rule = "images must be binary, paths as string, or a struct of bytes and path"
        msg = f"{title}: {rule}; found column {image!r} of {kind}; cast it"
        raise ConfigError(msg)


def check_types(schema: pa.Schema, image: str, title: str) -> None:
    """Raise ConfigError, which `title` begins, where batches without `columns=` cannot hold a column."""
    for column in schema:
        if column.name != image and not (is_number(plain(column.type)) or _is_flat(plain(column.type))):
            rule = "columns beside the images must be integers, floats, booleans, texts or binary"
            cure = "remove it (drop_columns() of a table, remove_columns() of a dataset), or choose others by columns="
            msg = f"{title}: {rule}; found column {column.name!r} of {column.type}; {cure}"
            raise ConfigError(msg)


def column_of(name: str, kind: Any, *, image: bool) -> Any:
    """What a batch without `columns=` holds of a table's column."""
    from pyarrow import types

    if image:
        return Image(name)
    if is_number(kind):
        return Number(name, "int64" if types.is_integer(kind) else np.dtype(kind.to_pandas_dtype()).name)
    return Text(name) if _is_text(kind) else Bytes(name)


# The values of a column.


def values_of(column: pa.ChunkedArray, name: str, title: str, *, files: bool = False) -> Held:
    """All values of a column that is a member. ConfigError for integers that do not fit in 64 bits with sign.

    files  whether it holds paths, and the bytes of the files are wanted
    """
    kind = column.type
    if is_number(kind):
        return _numbers(column, name, title)
    if _is_list(kind):
        return _lists([getattr(chunk, "storage", chunk) for chunk in column.chunks if len(chunk)])
    if _is_flat(kind):
        values = _pieces(column.chunks)
        return Files(Pieces.none(len(column)), values, bytes=False) if files else values
    names = [part.name for part in kind]
    split = [dict(zip(names, chunk.flatten(), strict=True)) for chunk in column.chunks]  # with the struct's own nulls
    parts = {part.name: _pieces([chunk[part.name].cast(plain(part.type)) for chunk in split]) for part in kind}
    if "path" not in parts:
        return parts["bytes"]
    return Files(parts.get("bytes", Pieces.none(len(column))), parts["path"], bytes="bytes" in parts)


def _numbers(column: pa.ChunkedArray, name: str, title: str) -> Numbers:
    from pyarrow import types

    null = np.asarray(column.is_null()) if column.null_count else None
    if null is not None:
        column = column.fill_null(False if types.is_boolean(column.type) else 0)
    values = column.to_numpy()
    if values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max:
        msg = f"{title}: integers must fit in signed 64 bits; found {values.max()} in column {name!r}; cast it"
        raise ConfigError(msg)
    return Numbers(values.astype(np.int64) if types.is_integer(column.type) else values, null)


def _pieces(chunks: Sequence[pa.Array]) -> Pieces:
    """Bytes or texts, each a view of the buffer that the table holds it in."""
    every = [_chunk(chunk) for chunk in chunks if len(chunk)]
    return _joined([(data, offsets, null) for offsets, data, null in every])


def _joined(parts: Sequence[tuple[memoryview, Int64s, NDArray[np.bool_] | None]]) -> Pieces:
    """Rows of parts: in the memory of each the offsets of its rows and of their end, and which are null."""
    if not parts:
        return Pieces.none(0)
    of = [np.full(len(offsets) - 1, k, np.int64) for k, (_, offsets, _) in enumerate(parts)]
    for which, (_, _, null) in zip(of, parts, strict=True):
        if null is not None:
            which[null] = -1
    at, size = (np.concatenate(each) for each in zip(*((o[:-1], np.diff(o)) for _, o, _ in parts), strict=True))
    return Pieces([memory for memory, _, _ in parts], np.concatenate(of), at, size)


def _chunk(chunk: pa.Array) -> tuple[Int64s, memoryview, NDArray[np.bool_] | None]:
    """Offsets of the values, and of their end; what they lie in; which are null."""
    _, offsets, data = chunk.buffers()
    wide = np.int64 if str(chunk.type).startswith("large") else np.int32
    edges = np.frombuffer(offsets, wide)[chunk.offset : chunk.offset + len(chunk) + 1]
    return edges.astype(np.int64), memoryview(b"" if data is None else data).cast("B"), _nulls(chunk)


def _nulls(chunk: pa.Array) -> NDArray[np.bool_] | None:
    return chunk.is_null().to_numpy(zero_copy_only=False) if chunk.null_count else None


def _lists(chunks: Sequence[pa.Array]) -> ArrayPieces | Lists:
    """Rows of numbers as arrays over the table's buffer, where they lie flat in it."""
    from pyarrow import types

    parts = []
    for chunk in chunks:
        numbers = chunk.values
        if not (types.is_integer(numbers.type) or types.is_floating(numbers.type)) or numbers.null_count:
            return Lists(chunks)  # booleans are bits
        if types.is_fixed_size_list(chunk.type):
            offsets = (np.arange(len(chunk) + 1, dtype=np.int64) + chunk.offset) * chunk.type.list_size
        else:
            offsets = np.asarray(chunk.offsets).astype(np.int64)
        flat = numbers.to_numpy()
        parts.append((memoryview(flat).cast("B"), offsets * flat.itemsize, _nulls(chunk)))
        dtype = flat.dtype
    return ArrayPieces(_joined(parts), dtype) if parts else Lists(chunks)


# Some rows of a column.


def rows_of(
    values: Held, rows: Int64s, block: Block, check: Callable[[], None], first: int = 0, *, copy: bool = False
) -> Values:
    """The values of these rows, which stand in the block from row `first` on.

    Bytes that lie in files are read into the block's lease; `check` is called before each. A file that cannot be read
    is a fault of its row. `copy`: what lies in the table is copied into the lease, too.
    """
    if not isinstance(values, Files):
        return kept(values[rows], block.lease) if copy else values[rows]
    own, paths = values.own[rows], values.paths_of(rows)
    own = _copied(own, block.lease) if copy else own
    if all(path is None for path in paths):
        return own
    every = Pieces.joined([own, load_files(paths, block, check, first)])
    return every[np.where(own.missing, len(rows), 0) + np.arange(len(rows))]


def kept(values: Values, lease: Lease) -> Values:
    """The same, in the memory of the lease: runs of neighbours are copied together."""
    if isinstance(values, ArrayPieces):
        return ArrayPieces(_copied(values.pieces, lease), values.dtype, values.shape)
    return _copied(values, lease) if isinstance(values, Pieces) else values


def _copied(pieces: Pieces, lease: Lease) -> Pieces:
    there = np.flatnonzero(pieces.of >= 0)
    of, at, size = pieces.of[there], pieces.at[there], pieces.size[there]
    out = Pieces.none(len(pieces))
    out.size = pieces.size.copy()
    if not size.sum():
        out.memories, out.of[there] = [memoryview(b"")], 0
        return out
    half = np.cumsum(size) // (lease.slab_bytes // 2)  # a run is that long at most
    cut = (np.diff(of) != 0) | (at[1:] != at[:-1] + size[:-1]) | (np.diff(half) != 0)
    begin = np.concatenate([[0], np.flatnonzero(cut) + 1])
    end = np.append(begin[1:], len(there))
    first = at[begin]
    sizes = at[end - 1] + size[end - 1] - first
    out.memories, which, starts = rooms_of(lease, sizes)
    for memory, source, a, b, n in zip(
        which.tolist(), of[begin].tolist(), starts.tolist(), first.tolist(), sizes.tolist(), strict=True
    ):
        out.memories[memory][a : a + n] = pieces.memories[source][b : b + n]
    run = np.repeat(np.arange(len(begin)), end - begin)
    out.of[there], out.at[there] = which[run], at - first[run] + starts[run]
    return out


# What is different of other values, for a fingerprint.


def contents_of(values: Held, rows: Int64s) -> Iterator[bytes]:
    """Of these rows: all numbers, the sizes of all bytes, the contents of some, and the names of files."""
    if isinstance(values, Numbers):
        yield values.values.dtype.str.encode() + values.values[rows].tobytes()
        yield b"" if values.null is None else np.packbits(values.null[rows]).tobytes()
        return
    spread = rows[sampled(len(rows))]
    if isinstance(values, ArrayPieces | Lists):
        for value in values[spread]:
            yield repr(value.tolist() if isinstance(value, np.ndarray) else value).encode()
        return
    own = values.own if isinstance(values, Files) else values
    if not isinstance(values, Files) or values.bytes:
        yield np.where(own.missing, -1, own.size)[rows].tobytes()
        for view in own[spread]:
            yield b"" if view is None else view[:SAMPLED_BYTES].tobytes()
    if isinstance(values, Files):
        paths = [path for path in values.paths_of(rows) if path is not None]
        skip = len(shared_folder(min(paths), max(paths))) if paths else 0
        for path in paths:
            yield path[skip:].lstrip(os.sep).encode(errors="surrogateescape") + b"\0"
