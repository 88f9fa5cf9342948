"""Rows of arrays out of order and outside a loader: copies, as NumPy's indexing gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.external_sources.array_layout import RowForm
from dali_feed.external_sources.array_reader import ROW
from dali_feed.records.arrays import Arrays
from dali_feed.records.source import Extents, Reader

__all__ = ["copies"]

STEP_BYTES = 8 << 20


def copies(reader: Reader, form: RowForm, runs: Extents, count: int) -> NDArray[Any]:
    """The `count` rows of `runs` in order, (count, *shape), a few MB at a time."""
    out = np.empty((count, form.size), np.uint8)
    done = 0
    for few in _in_steps(runs, max(1, STEP_BYTES // form.size)):
        block = reader.read(few)
        try:
            found = block.fields[ROW]
            whole = found.pieces.together(form.size) if isinstance(found, Arrays) else found.view(np.uint8)
            step = len(block.ids)
            out[done : done + step] = whole.reshape(step, form.size)
            done += step
        finally:
            block.lease.release()
    return out.reshape(-1).view(form.dtype).reshape(count, *form.shape)


def _in_steps(runs: Extents, step: int) -> Iterator[Extents]:
    """The same rows in order, at most `step` of them at a time."""
    ends = np.cumsum(runs.lengths)
    done, total = 0, int(ends[-1]) if len(ends) else 0
    while done < total:
        upto = min(done + step, total)
        a, b = int(np.searchsorted(ends, done, side="right")), int(np.searchsorted(ends, upto, side="left")) + 1
        few = runs[a:b]
        start, stop = few.start.copy(), few.stop.copy()
        start[0] = stop[0] - (ends[a] - done)
        stop[-1] -= ends[b - 1] - upto
        yield Extents(few.partition, start, stop)
        done = upto
