"""Members of a table's rows: its columns, and the parts of those that are structs, `answers.text`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dali_feed.errors import ConfigError
from dali_feed.external_sources.arrow_columns import Images, Numbers, Strings, is_image, member_of
from dali_feed.external_sources.arrow_lists import Lists
from dali_feed.external_sources.member_source import MemberReader, MemberSource, foremost
from dali_feed.records.source import Block, Int64s, Reader, Slabs, Source

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowMembers", "Held", "Leaf", "Values", "members_in"]

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


@dataclass(frozen=True, slots=True)
class Held:
    """What a table's rows are read from.

    known     the members that there are
    rows      of the table, at positions 0, 1, ...
    values    a member's values, as images where that is asked for
    """

    known: Mapping[str, Leaf]
    rows: Int64s
    values: Callable[[str, bool], Values]


class ArrowMembers(MemberSource):
    """Rows of a table with the members that were asked for. See `records.members.Members.giving`.

    Raises ConfigError for a member that no row has, and for an image of what is none.
    """

    def __init__(self, source: Source, held: Held, image: str | None, members: tuple[str, ...]) -> None:
        super().__init__(source, image, members)
        known, told = held.known, f"{source!r} has the columns"
        self.held = held
        self.asked = {name: foremost(name, known, told) for name in members}
        self.image = None if image is None else foremost(image, known, told)
        if self.image is not None and not is_image(known[self.image].kind):
            msg = (
                f"member {image!r}: an image is made of binary, of paths as string, or of a struct of bytes and path;"
                f" found {known[self.image].kind} in {source!r}"
            )
            raise ConfigError(msg)

    def _opened(self, slabs: Slabs, stop: threading.Event) -> Reader:
        return _RowReader(self, slabs, stop)


class _RowReader(MemberReader):
    """Gives views of the table's buffers, and reads the files that it names."""

    def __init__(self, of: ArrowMembers, slabs: Slabs, stop: threading.Event) -> None:
        super().__init__(repr(of), len(of.held.rows), slabs, stop)
        self._rows, values = of.held.rows, of.held.values
        self._image = None if of.image is None else values(of.image, True)
        self._asked = {name: values(member, False) for name, member in of.asked.items()}

    def _fill(self, block: Block, rows: Int64s) -> None:
        rows = self._rows[rows]
        if self._image is not None:
            for k, view in enumerate(self._given(self._image, rows, block)):
                if view is not None:
                    block.payloads[k] = view
                else:
                    block.faults.setdefault(k, "the image is null")
        for name, values in self._asked.items():
            block.fields[name] = self._given(values, rows, block)

    def _given(self, values: Values, rows: Int64s, block: Block) -> Any:
        """The values of these rows: an array, or a list with None for nulls."""
        if isinstance(values, Images):
            return [
                self._loaded(found, block, k) if isinstance(found, str) else found
                for k, found in enumerate(values.at(rows))
            ]
        if isinstance(values, Strings | Lists):
            return list(values.of(rows))
        some = values.values[rows]
        null = None if values.null is None else values.null[rows]
        if null is None or not null.any():
            return some
        return [None if gone else value for value, gone in zip(some.tolist(), np.asarray(null), strict=True)]
