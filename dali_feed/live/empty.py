"""A batch without records: what a rank is given that has none, so that it need not keep the others waiting.

Its dtypes and shapes are those that transforms and columns say; where they do not, those of the batch before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dali_feed.columns.source import Columnar
from dali_feed.compiler.program import Program
from dali_feed.feed.batch import Batch
from dali_feed.feed.beside import Companions
from dali_feed.feed.pixels import Pixels
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import LABEL

__all__ = ["Empty"]


class Empty:
    """Makes them. Used by one thread at a time."""

    def __init__(self, program: Program, source: Any, device: int | None, companions: Companions) -> None:
        self._program, self._source, self._device, self._companions = program, source, device, companions
        self._open = not program.fixed or program.size is None  # sizes are learnt from batches
        self._seen: dict[int, Any] = {}
        self._fields: dict[str, Any] | None = None

    def saw(self, batch: Batch) -> None:
        """A batch with records: later empty ones are as it is."""
        if self._fields is None:
            self._fields = {name: _none_of(values) for name, values in batch.fields.items()}
        if self._open and self._program.views and batch.tail is None:
            from dali_feed.engines.no_images import like  # torch: there since an engine made images

            self._seen = {view: like(each.images) for view, each in enumerate((batch, *batch.more))}

    def batch(self) -> Batch:
        """A batch of no rows."""
        images: list[Pixels] = []
        if self._program.views:
            from dali_feed.engines.no_images import no_images

            images = [Pixels(made, None) for made in no_images(self._program, self._device, self._seen)]
        more = iter(images[1:])
        known = self._begun() if self._fields is None else self._fields
        fields = {name: next(more) if isinstance(values, Pixels) else values for name, values in known.items()}
        first = images[0].images if images else None
        made = Batch(first, None, fields, np.zeros(0, np.int64), np.zeros(0, bool), tuple(images[1:]))
        made.beside = dict(self._companions(made, 0))
        return made

    def _begun(self) -> dict[str, Any]:
        """The fields before any batch has been seen."""
        if isinstance(self._source, Columnar):
            return {name: _column(self._source.given[name]) for name in self._source.fields}
        return {name: np.zeros(0, np.int64) if name == LABEL else [] for name in self._source.fields}


def _none_of(values: Any) -> Any:
    """No rows of such values."""
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*map(_none_of, values))
    if isinstance(values, Pixels):
        return values
    if isinstance(values, Pieces):
        return Pieces.none(0)
    return values[:0].copy() if isinstance(values, np.ndarray) else []


def _column(kind: Any) -> Any:
    """No rows of a column, where its kind can say; a list where the first record is needed for that."""
    try:
        return _none_of(kind.of_lanes(kind.read([], {}), 1))
    except Exception:  # noqa: BLE001  a kind may be a user's own, and need not think of no records
        return []
