"""Columns as inputs of a user's DALI graph: one tensor per sample, as its column reads it.

The law: an `Image` or a `Mask` is screened before the graph's decoder sees it; `Bytes` are not, and are no images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from dali_feed.columns.array import Array, kept_as_array
from dali_feed.columns.column import Bytes, Column, Faults, JsonValue
from dali_feed.columns.image import Image, Images
from dali_feed.columns.packed import Packed
from dali_feed.columns.tokens import Tokens
from dali_feed.errors import ConfigError
from dali_feed.options import Decode
from dali_feed.records.source import Stage


@dataclass(frozen=True)
class _Input(Column):
    """What a column reads, a tensor per sample; nothing is made of a batch, for the graph does that."""

    member: str
    column: Column

    @property
    def stage(self) -> Stage:  # type: ignore[override]
        """The column's."""
        return self.column.stage

    @property
    def optional(self) -> bool:
        """As the column is."""
        return self.column.optional

    @property
    def open(self) -> bool:
        """As the column is."""
        return self.column.open

    def settled(self, first: Any) -> Self:
        """With the settled column."""
        return replace(self, column=self.column.settled(first))

    def decoding(self, decode: Decode) -> Self:
        """With the column of such a loader."""
        return replace(self, column=self.column.decoding(decode))

    def read(self, values: Any, faults: Faults) -> Any:
        """Arrays in their shape, token ids in rows of one length, what functions make of bytes; the rest as it is."""
        return self._tensors(self.column.read(values, faults), faults)

    def read_default(self, faults: Faults) -> Any:
        """The same of the column's default."""
        return self._tensors(self.column.read_default(faults), faults)

    def _tensors(self, kept: Any, faults: Faults) -> Any:
        column = self.column
        if isinstance(kept, Images):
            return kept.payloads
        if isinstance(column, Tokens):
            return column.batch(kept).ids if kept else kept
        if isinstance(column, Bytes) and column.late:
            return _all_values(column, kept, faults)
        if isinstance(column, Array):
            return [value if row in faults else kept_as_array(column, value) for row, value in enumerate(kept)]
        return kept


def _all_values(column: Bytes, values: Sequence[Any], faults: Faults) -> list[Any]:
    """What the user's function makes of each row: here as they are read, for the graph is fed before it runs."""
    out: list[Any] = [None] * len(values)
    for row, value in enumerate(values):
        if row not in faults:
            out[row], why = column.attempt(memoryview(bytearray(value)))
            if why:
                faults[row] = why
    return out


def graph_inputs(columns: Mapping[str, Column]) -> dict[str, Column]:
    """These columns, each made into what an input of a graph takes; the first image is the engine's payload.

    Raises:
        ConfigError: no image; one with a transform, which is the graph's; JSON and packed rows, which are no tensor of
            a sample.
    """
    if not isinstance(columns, Mapping) or not all(isinstance(column, Column) for column in columns.values()):
        msg = f'columns: must be a dict of the graph\'s inputs by name, {{"image": Image(...), ...}}; found {columns!r}'
        raise ConfigError(msg)
    images = [name for name, column in columns.items() if isinstance(column, Image)]
    if not images:
        msg = f"columns: a pipeline needs at least one Image; found {', '.join(map(repr, columns)) or 'none'}"
        raise ConfigError(msg)
    for name, column in columns.items():
        if isinstance(column, JsonValue):
            rule = "a graph takes tensors, and a JSON document is none"
            msg = f"columns: {name!r}: {rule}; found {column!r}; name a member inside it, as in Number('json:label')"
            raise ConfigError(msg)
        if isinstance(column, Packed):
            rule = "a graph takes one tensor for each sample, and a packed row holds several samples"
            raise ConfigError(f"columns: {name!r}: {rule}; found {column!r}; use Tokens")
        if isinstance(column, Image) and column.transform is not None:
            rule = "must have no transform, as the graph transforms it"
            raise ConfigError(f"columns: {name!r}: {rule}; found {column!r}. Leave transform out")
    return {name: column if name == images[0] else _Input(column.member, column) for name, column in columns.items()}
