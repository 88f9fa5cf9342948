"""Columns as inputs of a user's DALI graph: one tensor per sample, as its kind reads it.

The law: an `Image` or a `Mask` is screened before the graph's decoder sees it; `Bytes` are not, and are no images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from dali_feed.columns.array import Array
from dali_feed.columns.column import Faults, Kind
from dali_feed.columns.columns import Columnar, Late, attempt
from dali_feed.columns.follow import Mask
from dali_feed.columns.image import Image, screened_views
from dali_feed.columns.packed import Packed
from dali_feed.columns.text import JsonValue
from dali_feed.columns.tokens import Tokens
from dali_feed.errors import ConfigError
from dali_feed.options import Decode
from dali_feed.records.source import Source

__all__ = ["graph_inputs"]


@dataclass(frozen=True)
class _Encoded(Kind):
    """An encoded image beside the first one, as its bytes; screened."""

    member: str
    decode: Decode

    def read(self, values: Sequence[Any], faults: Faults) -> Sequence[Any]:
        """Views as they are."""
        screened_views(values, faults, self.decode)
        return values


@dataclass(frozen=True)
class _Input(Kind):
    """What a kind read, a tensor per sample; nothing is made of a batch, for the graph does that."""

    kind: Kind

    @property
    def member(self) -> str:  # type: ignore[override]
        """The kind's."""
        return self.kind.member

    @property
    def open(self) -> bool:
        """As the kind is."""
        return self.kind.open

    def settled(self, first: Any) -> Self:
        """With the settled kind."""
        return replace(self, kind=self.kind.settled(first))

    def read(self, values: Any, faults: Faults) -> Any:
        """Arrays in their shape, token ids in rows of one length, what functions make of bytes; the rest as it is."""
        found = self.kind.read(values, faults)
        if isinstance(self.kind, Tokens):
            return self.kind.batch(found).ids if found else found
        if isinstance(self.kind, Late) and self.kind.late:
            return _all_made(self.kind, found, faults)
        if isinstance(self.kind, Array):
            dtype, shape = np.dtype(self.kind.dtype), self.kind.shape or ()
            return [
                value if row in faults or isinstance(value, np.ndarray) else np.ndarray(shape, dtype, value)
                for row, value in enumerate(found)
            ]
        return found


def _all_made(kind: Late, values: Sequence[Any], faults: Faults) -> list[Any]:
    """What the user's function makes of each row: here as they are read, for the graph is fed before it runs."""
    out: list[Any] = [None] * len(values)
    for row, value in enumerate(values):
        if row not in faults:
            out[row], why = attempt(kind, memoryview(bytearray(value)))
            if why:
                faults[row] = why
    return out


def graph_inputs(source: Source, columns: Mapping[str, Kind], decode: Decode) -> Columnar:
    """The source with these columns, each made into what an input of a graph takes.

    Raises:
        ConfigError: no image; one with a transform, which is the graph's; JSON and packed rows, which are no tensor of
            a sample; or as `Columnar`.
    """
    if not isinstance(columns, Mapping) or not all(isinstance(kind, Kind) for kind in columns.values()):
        msg = f'columns: must be a dict of the graph\'s inputs by name, {{"image": Image(...), ...}}; found {columns!r}'
        raise ConfigError(msg)
    images = [name for name, kind in columns.items() if isinstance(kind, Image)]
    if not images:
        msg = f"columns: a pipeline needs at least one Image; found {', '.join(map(repr, columns)) or 'none'}"
        raise ConfigError(msg)
    made: dict[str, Kind] = {}
    for name, kind in columns.items():
        if isinstance(kind, JsonValue):
            rule = "a graph takes tensors, and a JSON document is none"
            msg = f"columns: {name!r}: {rule}; found {kind!r}; name a member inside it, as in Number('json:label')"
            raise ConfigError(msg)
        if isinstance(kind, Packed):
            rule = "a graph takes one tensor for each sample, and a packed row holds several samples"
            msg = f"columns: {name!r}: {rule}; found {kind!r}; use Tokens"
            raise ConfigError(msg)
        if isinstance(kind, Image) and kind.transform is not None:
            rule = "must have no transform, as the graph transforms it"
            msg = f"columns: {name!r}: {rule}; found {kind!r}. Leave transform out"
            raise ConfigError(msg)
        if isinstance(kind, Image | Mask) and name != images[0]:
            made[name] = _Encoded(kind.member, decode)
        else:
            made[name] = kind if name == images[0] else _Input(kind)
    return Columnar(source, made, as_tuple=False)
