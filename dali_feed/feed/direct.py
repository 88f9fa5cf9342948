"""Large records without an image: whole batches are read side by side, and no byte is copied between file and loop.

The law: which sample stands in which slot, whether it is its own, and every byte are those of the windows. A chunk is a
whole number of batches; what a window would have to mend (a record that is bad or absent, a file that ends too soon or
has changed) is left to windows, from the chunk's first batch to the end of the windows that it lies in, as a resumed
pass would take them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dali_feed import sync
from dali_feed.errors import DaliFeedError
from dali_feed.feed.lane import Chunk, Draw, Lane, Piece
from dali_feed.feed.reading import ReadTask
from dali_feed.feed.window import Window, WindowSource
from dali_feed.plan.order import EpochPlan
from dali_feed.records.extents import Extents

Int64s = NDArray[np.int64]

CHUNK_SLABS = 2  # that a chunk is as large as: what a chunk costs besides its bytes is Python
NEAR_BYTES = 32 << 20  # between the files and the loop
SLOW_SECONDS = 0.05  # a longer wait for a chunk is for a disk: from there on twice as much is read ahead,
FARTHEST = 16  # up to so many times as much


@dataclass(slots=True)
class _Read:
    """A chunk to come: `batches` batches, the first of which is `batch`, with `count` slots of every lane each.

    first  lane position of the first slot, the same of every lane
    """

    first: int
    count: int
    batch: int
    batches: int
    task: ReadTask


class DirectLanes:
    """Fills the slots of all lanes of a rank, batch by batch: what one `Lane` does for its own.

    Args:
        plan: of the epoch.
        lanes: of this rank.
        consumed: samples of each that have been given.
        counts: slots of each lane in every batch from there on.
        source: what windows are made with.
        lane: makes an ordinary lane, from a lane position on.
        draw: what is drawn for rows without an image.
        prefetch: batches that the user wants ready.
    """

    def __init__(
        self,
        plan: EpochPlan,
        lanes: Sequence[int],
        consumed: int,
        counts: Sequence[int],
        *,
        source: WindowSource,
        lane: Callable[[int, int], Lane],
        draw: Draw,
        prefetch: int,
    ) -> None:
        self._plan, self._lanes, self._counts, self._source = plan, tuple(lanes), counts, source
        self._lane, self._draw, self._prefetch = lane, draw, prefetch
        self._bounds = [plan.bounds(each) for each in lanes]
        self._windows: list[tuple[int, Int64s]] = [(-1, np.zeros(0, np.int64))] * len(self._lanes)
        self._at = self._planned = consumed  # lane positions: what was taken, and what reads are made up to
        self._batch = 0  # that comes behind those reads
        self._reads: list[_Read] = []  # in order, the first of them next
        self._chunk: Piece | None = None
        self._ordinary: list[Lane] = []  # what is taken of windows, up to `_until`
        self._until = consumed
        self._former: list[Lane] = []  # some of their slots are still in the engine
        self._dealt: list[tuple[Window, int]] = []  # so are these chunks', of so many bytes
        self._far = 1  # how many times as much as near is read ahead
        self.dealt = 0  # chunks, and batches of windows, so far

    # What comes next.

    @property
    def strands(self) -> list[DirectLanes]:
        """What reads for them: this."""
        return [self]

    def ready(self, count: int) -> bool:
        """Whether the next `count` slots of every lane can be filled without waiting."""
        if self._ordinary:
            return all(lane.ready(count) for lane in self._ordinary)
        if self._chunk is not None:
            return True
        if not self._next().task.done.is_set():
            return False
        self._install()
        return self.ready(count)

    def wait(self, count: int) -> None:
        """Wait for the read that the next slots need."""
        if not self._ordinary and self._chunk is None:
            read = self._next()
            self._source.pool.request(read.task)
            begun = sync.monotonic()
            read.task.done.wait()
            if sync.monotonic() - begun > SLOW_SECONDS:
                self._far = min(2 * self._far, FARTHEST)
            self._install()
        for lane in self._ordinary:
            lane.wait(count)

    def take(self, count: int) -> list[Piece]:
        """The next `count` slots of every lane, one lane after the other, as a batch has them. May wait for reads."""
        self.wait(count)
        self._at += count
        if self._chunk is None:
            return self._take_of_windows(count)
        chunk, first = self._chunk.chunk, self._chunk.start
        stop = first + count * len(self._lanes)
        self._chunk = Piece(chunk, stop, self._chunk.stop) if stop < self._chunk.stop else None
        return [Piece(chunk, first, stop)]

    def _take_of_windows(self, count: int) -> list[Piece]:
        pieces = [piece for lane in self._ordinary for piece in lane.take(count)]
        self.dealt += 1
        if self._at == self._until:
            for lane in self._ordinary:
                lane.leave()
            self._former = [lane for lane in (*self._former, *self._ordinary) if lane.memory()]
            self._ordinary = []
        return pieces

    def _install(self) -> None:
        """The next chunk, which has been read, is what slots are taken of; or the windows that it lies in are."""
        read = self._reads.pop(0)
        try:
            block = read.task.take()
        except DaliFeedError:  # as windows meet it, in its place
            self._leave_to_windows(read)
            return
        if not block.whole:
            block.lease.release()
            self._leave_to_windows(read)
            return
        source, rows = self._source, len(block.ids)
        source.proof.good = True
        source.sizes.add(rows, read.task.bytes)
        window = Window.arrived([block], source.columns, source.where, block.lease.release)
        drawn, sizes = self._draw(window.sizes(window.order), block.ids, 0, window.values)
        chunk = Chunk(window, 0, window.order, window.usable.copy(), block.ids, window.values, drawn, sizes, {})
        self._chunk = Piece(chunk, 0, rows)
        self._dealt = [each for each in (*self._dealt, (window, block.lease.size)) if each[0].left]
        self.dealt += 1

    def _leave_to_windows(self, read: _Read) -> None:
        """Take windows from a chunk's first batch on, up to the batch in which those that it lies in have ended."""
        for later in self._reads:
            later.task.drop()
        self._reads = []
        stop = read.first + read.count * read.batches
        ends = max(int(bounds[np.searchsorted(bounds, stop)]) for bounds in self._bounds)
        self._until, self._batch = read.first, read.batch
        while self._until < ends and self._batch < len(self._counts):
            self._until += self._counts[self._batch]
            self._batch += 1
        self._ordinary = [self._lane(lane, read.first) for lane in self._lanes]
        self._planned = self._until

    # Reads.

    def reads_ahead(self, *, narrow: bool = False) -> Iterator[ReadTask]:
        """Reads that have not been requested yet, in order of need. Taking one removes it.

        They go as far ahead as `NEAR_BYTES` hold, or a chunk for each reader, or the batches that the user wants ready;
        farther where the files are slow, but for `narrow` ones.
        """
        for lane in self._ordinary:
            yield from lane.reads_ahead(narrow=True)
        near = sum(read.task.memory for read in self._reads) + self._chunk_bytes  # and one more
        while True:
            waiting = next((read.task for read in self._reads if not read.task.requested), None)
            if waiting is not None:
                yield waiting
            elif self._batch == len(self._counts) or (self._reads and near > self._most(narrow=narrow)):
                return
            else:
                self._reads.append(self._planned_read())
                near += self._reads[-1].task.memory

    def _most(self, *, narrow: bool) -> int:
        """Bytes that chunks may take which are asked for."""
        batch = self._batch_bytes(self._counts[self._batch])
        chunk = max(batch, self._chunk_bytes)
        return (1 if narrow else self._far) * max(NEAR_BYTES, chunk * self._source.pool.count, batch * self._prefetch)

    @property
    def _chunk_bytes(self) -> int:
        return CHUNK_SLABS * self._source.sizes.slab_bytes

    def _batch_bytes(self, count: int) -> int:
        return count * len(self._lanes) * self._source.sizes.record_bytes

    def _next(self) -> _Read:
        """The read that the next slots need."""
        if not self._reads:
            self._reads.append(self._planned_read())
        return self._reads[0]

    def _planned_read(self) -> _Read:
        """The chunk behind those that are planned: as many batches as slabs hold, of equally many slots each."""
        sizes, counts, batch = self._source.sizes, self._counts, self._batch
        count, most = counts[batch], len(counts) - batch
        batches = min(most, max(1, self._chunk_bytes // max(1, self._batch_bytes(count))))
        while counts[batch + batches - 1] != count:  # the last batch of an epoch
            batches -= 1
        first = self._planned
        lanes = [self._ids(n, first, first + count * batches) for n in range(len(self._lanes))]
        ids = lanes[0]
        if len(lanes) > 1:  # as batches have them
            ids = np.stack(lanes).reshape(len(lanes), batches, count).swapaxes(0, 1).ravel()
        task = ReadTask(Extents.of_samples(ids), partial(sizes.dense, len(ids)), lent=True)
        self._planned, self._batch = first + count * batches, batch + batches
        return _Read(first, count, batch, batches, task)

    def _ids(self, n: int, first: int, stop: int) -> Int64s:
        """Sample ids of a lane's slots first..stop-1."""
        parts, bounds = list[Int64s](), self._bounds[n]
        while first < stop:
            k, ids = self._windows[n]
            if not bounds[k] <= first < bounds[k + 1]:
                k = int(np.searchsorted(bounds, first, side="right")) - 1
                ids = self._plan.window(self._lanes[n], int(bounds[k]), int(bounds[k + 1])).extents.ids()
                self._windows[n] = k, ids
            begin = int(bounds[k])
            parts.append(ids[first - begin : stop - begin])
            first += len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    def all_requested(self) -> bool:
        """Whether every read of its epoch has been requested."""
        reads = (read.task.requested for read in self._reads)
        return self._batch == len(self._counts) and all(reads) and all(lane.all_requested for lane in self._ordinary)

    @property
    def all_read(self) -> bool:
        """Whether what it has asked for, one chunk at least, is in memory."""
        if self._ordinary:
            return all(lane.all_read for lane in self._ordinary)
        requested = [read for read in self._reads if read.task.requested]
        return (self._chunk is not None or bool(requested)) and all(read.task.done.is_set() for read in requested)

    def memory(self) -> int:
        """Bytes of slabs that its chunks and windows hold or have requested."""
        reads = sum(read.task.memory for read in self._reads if read.task.requested)
        chunks = sum(size for window, size in self._dealt if window.left)
        return reads + chunks + sum(lane.memory() for lane in (*self._ordinary, *self._former))

    def close(self) -> None:
        """Release all whose slots have not all left the engine; nothing may be in flight any more."""
        for read in self._reads:
            read.task.drop()
        for window, _ in self._dealt:
            if window.left:
                window.release()
        for lane in (*self._ordinary, *self._former):
            lane.close()
        self._reads, self._dealt, self._ordinary, self._former = [], [], [], []
