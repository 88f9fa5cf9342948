"""A lane on its way through the epoch: windows opened in turn, slots filled in chunks.

Work that costs the same for one sample as for hundreds (random numbers, geometry) is done a chunk at a time, and a
batch is cut from chunks; so small batches cost little more per sample than large ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.feed.reading import ReadTask
from dali_feed.feed.window import Window, WindowSource
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.order import Windowed
from dali_feed.transforms.program import RowKey

CHUNK, CHUNK_BARE = 1024, 4096  # slots; without an image nothing is drawn, and so many take no time to speak of
WINDOWS_AHEAD = 1

Drawn = tuple[dict[RowKey, NDArray[Any]], NDArray[np.int64]]  # rows of samples, and the sizes that come out
# Of sizes, ids, how often they came before, and the values of columns.
Draw = Callable[[NDArray[Any], NDArray[np.int64], int, Mapping[str, Any]], Drawn]


@dataclass(slots=True)
class Chunk:
    """Slots first..first+n-1 of a window: the rows that fill them, and what is known of those.

    values  by name the columns but the images
    images  by column the images, as the engine takes them
    """

    window: Window
    first: int
    rows: NDArray[np.int64]
    ok: NDArray[np.bool_]
    ids: NDArray[np.int64]
    values: dict[str, Any]
    drawn: dict[RowKey, NDArray[Any]]
    sizes: NDArray[Any]
    images: dict[str, list[Any]]

    @classmethod
    def dealt(cls, window: Window, first: int, stop: int, draw: Draw) -> Chunk:
        """The rows that the rule of slots gives. May wait for reads, and raises as `Window.deal` does."""
        rows, ok = window.deal(first, stop)
        ids, values = window.ids[rows], window.good_values(rows)
        drawn, sizes = draw(window.sizes(rows), ids, window.turn, values)
        return cls(window, first, rows, ok, ids, values, drawn, sizes, window.good_images(rows))


@dataclass(frozen=True, slots=True)
class Piece:
    """Part start..stop-1 of a chunk, in one batch; `places` are the slots there, where they are not the next ones."""

    chunk: Chunk
    start: int
    stop: int
    places: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.stop - self.start


class Lane:
    """Fills one lane's slots in order, from lane position `consumed` on."""

    def __init__(
        self,
        plan: Windowed,
        lane: int,
        consumed: int,
        *,
        source: WindowSource,
        draw: Draw,
        reads: int = 1,
    ) -> None:
        self._plan, self._lane, self._reads = plan, lane, reads
        self._source, self._draw = source, draw
        self._bounds = plan.bounds(lane)
        self._next_window = int(np.searchsorted(self._bounds, consumed, side="right")) - 1
        self._resume_at = consumed
        self._open: deque[Window] = deque()  # slots are filled from the first
        self._dealt: list[Window] = []  # some of their slots are still in a chunk or in the engine
        self._slot = 0
        self._chunk: Piece | None = None
        self.dealt = 0  # chunks so far

    @property
    def strands(self) -> list[Lane]:
        """What reads for it: itself."""
        return [self]

    def _open_one(self) -> bool:
        if self._next_window + 1 >= len(self._bounds):
            return False
        first, stop = int(self._bounds[self._next_window]), int(self._bounds[self._next_window + 1])
        from_slot = max(0, self._resume_at - first)
        others = partial(self._plan.others, self._lane, first)
        plan = self._plan.window(self._lane, first, stop)
        self._open.append(Window.planned(plan, from_slot, self._source, others))
        if len(self._open) == 1:
            self._slot = from_slot
        self._next_window += 1
        return True

    def _current(self) -> Window:
        if self._open and self._slot == self._open[0].slots:
            self._dealt = [window for window in (*self._dealt, self._open.popleft()) if window.left]
            self._slot = 0
        if not self._open:
            self._open_one()
        return self._open[0]

    @property
    def all_requested(self) -> bool:
        """Whether every read of its epoch has been requested."""
        requested = (task.requested for window in self._open for task in window.ahead)
        return self._next_window + 1 >= len(self._bounds) and all(requested)

    @property
    def all_read(self) -> bool:
        """Whether the windows that it has opened, one at least, are in memory."""
        return bool(self._open) and all(task.done.is_set() for window in self._open for task in window.tasks)

    def reads_ahead(self, *, narrow: bool = False) -> Iterator[ReadTask]:
        """Reads that have not been requested yet, in order of need. Taking one removes it.

        They go up to a window ahead, and on to the next windows until there are `reads` of them, a reader each; those
        of `narrow` ones not beyond the windows that are open, which is one at least.
        """
        while True:
            for window in list(self._open):
                while window.ahead:
                    if window.ahead[-1].requested:
                        window.ahead.pop()
                    else:
                        yield window.ahead[-1]
            later = [len(window.tasks) for window in self._open][1:]
            if narrow and self._open:
                return
            if (len(later) >= WINDOWS_AHEAD and sum(later) >= self._reads) or not self._open_one():
                return

    def memory(self) -> int:
        """Bytes of slabs that its windows hold or have requested."""
        return sum(window.memory() for window in (*self._dealt, *self._open))

    def ready(self, count: int) -> bool:
        """Whether the next `count` slots, also across the border of a window, can be filled without waiting."""
        missing = count - (0 if self._chunk is None else len(self._chunk))
        if missing <= 0:
            return True
        self._current()
        first, k = self._slot, 0
        while missing > 0 and (k < len(self._open) or self._open_one()):
            window = self._open[k]
            stop = min(first + missing, window.slots)
            if not window.loaded(first, stop):
                return False
            missing -= stop - first
            first, k = 0, k + 1
        return True

    def wait(self, count: int) -> None:
        """Wait for the reads that the next `count` slots need, as far as they lie in the current window."""
        if self._chunk is None or len(self._chunk) < count:
            window = self._current()
            window.wait(self._slot, min(self._slot + count, window.slots))

    def take(self, count: int) -> list[Piece]:
        """The next `count` slots, which must be there. May wait for reads."""
        pieces = []
        while count:
            rest = self._chunk or self._deal(count)
            part = Piece(rest.chunk, rest.start, min(rest.stop, rest.start + count))
            self._chunk = Piece(rest.chunk, part.stop, rest.stop) if part.stop < rest.stop else None
            pieces.append(part)
            count -= len(part)
        return pieces

    def _deal(self, needed: int) -> Piece:
        window = self._current()
        first = self._slot
        stop = min(first + needed, window.slots)
        most = CHUNK if window.columns.images else CHUNK_BARE
        stop = max(stop, window.loaded_to(first, min(first + max(most, needed), window.slots)))
        chunk = Chunk.dealt(window, first, stop, self._draw)
        self._slot = stop
        self.dealt += 1
        return Piece(chunk, 0, stop - first)

    def leave(self) -> None:
        """No more slots are taken: windows go back once those that were have left the engine."""
        if self._chunk is not None:
            self._chunk.chunk.window.retire(len(self._chunk))
        for n, window in enumerate(self._open):
            window.retire(window.slots - self._slot if n == 0 else window.left)

    def close(self) -> None:
        """Release every window whose slots have not all left the engine; nothing may be in flight any more."""
        for window in (*self._dealt, *self._open):
            window.release()
        self._dealt.clear()
        self._open.clear()


# A lane of a mixture: a lane of each source, whose slots are put where the plan wants them.


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
