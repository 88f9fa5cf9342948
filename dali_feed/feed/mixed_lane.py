"""A lane of a mixture: a lane of each source, whose slots are put where the plan wants them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dali_feed.feed.lane import Lane, Piece
from dali_feed.plan.mixed import MixedPlan

__all__ = ["MixedLane"]


class MixedLane:
    """Fills one lane's slots in order, from lane position `consumed` on, each from the lane of its source.

    strands  the lanes of the sources; what they read, and the windows they hold, is theirs
    """

    def __init__(self, plan: MixedPlan, lane: int, consumed: int, strands: Sequence[Lane], nth: int) -> None:
        self._plan, self._lane, self._at, self._nth = plan, lane, consumed, nth
        self.strands = list(strands)

    @property
    def dealt(self) -> int:
        """Chunks so far."""
        return sum(strand.dealt for strand in self.strands)

    def _next(self, count: int) -> list[tuple[Lane, NDArray[np.int64]]]:
        """Whose the next slots are: each strand that has any, with their places among the `count`."""
        sources = self._plan.sources(self._lane, self._at, self._at + count)
        places = ((strand, np.flatnonzero(sources == k)) for k, strand in enumerate(self.strands))
        return [(strand, its) for strand, its in places if len(its)]

    def ready(self, count: int) -> bool:
        """Whether the next `count` slots can be filled without waiting."""
        return all(strand.ready(len(its)) for strand, its in self._next(count))

    def wait(self, count: int) -> None:
        """Wait for the reads that the next `count` slots need, as far as they lie in the current windows."""
        for strand, its in self._next(count):
            strand.wait(len(its))

    def take(self, count: int) -> list[Piece]:
        """The next `count` slots, which must be there, source by source. May wait for reads."""
        pieces, first = [], self._nth * count  # every lane before it gives as many to the batch
        for strand, its in self._next(count):
            at = 0
            for piece in strand.take(len(its)):
                pieces.append(replace(piece, places=first + its[at : at + len(piece)]))
                at += len(piece)
        self._at += count
        return pieces

    def close(self) -> None:
        """Release every window whose slots have not all left the engine."""
        for strand in self.strands:
            strand.close()
