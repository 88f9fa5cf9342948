"""Plan: snapshot + seed + epoch -> which sample comes in which slot (place in a batch).

The law: order is pure. Nothing here does I/O or reads a clock; world size, threads and prefetch are not
arguments. The extents of a snapshot, permuted, laid end to end, are the line; lane l holds the l-th of L
equal parts of it; inside a lane, windows of w extents are permuted sample by sample. A position in an
epoch is one number: how many samples each lane has given. Where a snapshot knows which positions hold a
record, extents are cut of the records alone, and each stands once.

    line    [e4][e0][e7][e2][e5][e1][e6][e3]      extents, permuted by (seed, epoch)
    lanes   |------ lane 0 ----|------ lane 1 ---|
    windows |-- 0 --|-- 1 -----|-- 0 --|-- 1 ----|   each shuffled within itself
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import EXTENT_ORDER, WINDOW_ORDER, permutation
from dali_feed.errors import ConfigError, SourceEmptyError
from dali_feed.records.source import Extents, Snapshot, pack_ids, unpack_ids

Int64s = NDArray[np.int64]

WINDOW_RECORDS = 1024
WINDOW_BYTES = 256_000_000


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How far samples are mixed.

    extent  how many neighbouring records are read together; such runs are shuffled. None: 1 if single records are cheap
            to read, else the source's own number (about 32 MB of a Kafka partition)
    window  how many of these runs are in memory together for each of the `lanes`, and are then shuffled record by
            record; None: 1,024 single records, or 256 MB of larger runs

    Larger windows mix better and cost memory; larger extents read faster and mix worse. docs/start.md has a picture.
    """

    extent: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("extent", "window"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                msg = f"Shuffle({name}=...): must be an int of at least 1, or None; found {value!r}"
                raise ConfigError(msg)


@dataclass(frozen=True, slots=True)
class Order:
    """A resolved `Shuffle`: positions per extent, extents per window, and whether anything is permuted.

    parts  of a source made of several, where their extents differ, theirs; `extent` is then the largest
    """

    shuffled: bool
    extent: int
    window: int
    parts: tuple[Order, ...] = ()

    @property
    def extents(self) -> int | tuple[int, ...]:
        """Positions per extent, of each part where they differ."""
        return tuple(part.extent for part in self.parts) or self.extent


def resolve(shuffle: bool | Shuffle, snapshot: Snapshot, *, sampled: bool = False, among: int = 1) -> Order:
    """What `shuffle` means for a snapshot; `sampled`: the order is a sampler's, which names single records.

    `among` so many windows in memory at once the bytes of one are divided.
    """
    if snapshot.mix is not None:
        parts = tuple(resolve(shuffle, part, among=len(snapshot.parts)) for part in snapshot.parts)
        extent, window = (max(getattr(part, name) for part in parts) for name in ("extent", "window"))
        return Order(shuffle is not False, extent, window, parts)
    chosen = shuffle if isinstance(shuffle, Shuffle) else Shuffle()
    shuffled = shuffle is not False
    single = sampled or (shuffled and snapshot.random_access)
    if snapshot.parts and chosen.extent is None and not single:
        return _of_parts(shuffled, chosen.window, snapshot, among)
    extent = chosen.extent or (1 if single else snapshot.extent)
    in_memory = max(1, WINDOW_BYTES // among // max(1, extent * snapshot.record_bytes))
    if shuffled and extent > 1:
        window = in_memory
    else:
        window = min(in_memory, -(-WINDOW_RECORDS // extent))
    return Order(shuffled, extent, chosen.window or max(1, window))


def _of_parts(shuffled: bool, window: int | None, snapshot: Snapshot, among: int) -> Order:
    """Each part's own extents; a window holds as many as it may of those that take most memory."""
    extents = tuple(part.extent for part in snapshot.parts)
    heaviest = max(part.extent * part.record_bytes for part in snapshot.parts)
    most = window or max(1, WINDOW_BYTES // among // max(1, heaviest))
    if window is None and not (shuffled and max(extents) > 1):
        most = min(most, -(-WINDOW_RECORDS // max(extents)))
    return Order(shuffled, max(extents), most, tuple(Order(shuffled, extent, most) for extent in extents))


def window_sizes(snapshot: Snapshot, order: Order, lanes: int) -> list[tuple[int, int, int]]:
    """Of each window that a lane has open at once: samples at most, an extent's, and a record's bytes.

    A mixture has one of each of its sources open.
    """
    several = zip(snapshot.parts, order.parts, strict=True) if snapshot.mix is not None else [(snapshot, order)]
    return [
        (min(its.extent * its.window, -(-len(part) // lanes)), its.extent, part.record_bytes) for part, its in several
    ]


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """One window of a lane: what to read, and in which order its rows fill the slots.

    at       the place of its first slot in the line, which is different for each window of an epoch
    extents  what to read; rows are numbered through them in this order
    order    order of the slots, int64 (rows,): slot first+j holds row order[j]; None where that is j itself
    ends     the row after each extent of the plan, int64: what is best read in one go, even where holes cut it
             into many of `extents`
    turn     how often its samples have come in this epoch before: what is done to them is drawn anew each time
    """

    at: int
    extents: Extents
    order: Int64s | None
    ends: Int64s
    turn: int = 0

    def __len__(self) -> int:
        return self.extents.positions

    @property
    def ids(self) -> Int64s:
        """The sample of each slot, int64."""
        ids = self.extents.ids()
        return ids if self.order is None else ids[self.order]


class Windowed(ABC):
    """What has windows in each lane: the plan of an epoch, or one part of a mixture's."""

    @abstractmethod
    def bounds(self, lane: int) -> Int64s:
        """Lane positions at which windows begin, and the lane's end: int64 (windows + 1,)."""

    @abstractmethod
    def window(self, lane: int, first: int, stop: int) -> WindowPlan:
        """The window of a lane that spans lane positions first..stop-1, two neighbours of `bounds`."""

    @abstractmethod
    def others(self, lane: int, first: int) -> Iterator[WindowPlan]:
        """The windows after the one at lane position `first`: of the lane, of later ones, and round the line's end."""

    def ids(self, lane: int, first: int, stop: int) -> Int64s:
        """Sample ids that are planned at lane positions first..stop-1, before any replacement."""
        edges = self.bounds(lane)
        k, end = int(np.searchsorted(edges, first, side="right")) - 1, int(np.searchsorted(edges, stop))
        out = [pack_ids(0, np.empty(0, np.int64))]
        for a, b in itertools.pairwise(edges[k : end + 1].tolist()):
            out.append(self.window(lane, a, b).ids[max(first - a, 0) : stop - a])
        return np.concatenate(out)


def slots_of(samples: int, lanes: int, *, drop_last: bool) -> int:
    """Slots of each lane for so many samples: what does not fill them all is left out, or the last ones repeat."""
    return samples // lanes if drop_last else -(-samples // lanes)


def canonical(snapshot: Snapshot, extent: int | tuple[int, ...]) -> Extents:
    """A snapshot cut into extents, of each part where several are given, in its canonical order.

    By numbers that `Snapshot.located` understands. Parts come one after another.
    """
    first, last = snapshot.numbers
    if not snapshot.parts:
        return _cut_up(first, last, int(np.max(extent)), interleaved=snapshot.interleaved)
    extents = extent if isinstance(extent, tuple) else (extent,) * len(snapshot.parts)
    lines, a = [], 0
    for part, its in zip(snapshot.parts, extents, strict=True):
        b = a + len(part.starts)
        line = _cut_up(first[a:b], last[a:b], its, interleaved=part.interleaved)
        lines.append(Extents(line.partition + a, line.start, line.stop))
        a = b
    return Extents.joined(lines)


def _cut_up(first: Int64s, last: Int64s, extent: int, *, interleaved: bool) -> Extents:
    counts = -(-(last - first) // extent)
    partition = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    nth = np.arange(len(partition), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    start = first[partition] + nth * extent
    stop = np.minimum(start + extent, last[partition])
    extents = Extents(partition, start, stop)
    return extents[np.lexsort((partition, nth))] if interleaved else extents


def _chosen(snapshot: Snapshot, indices: Int64s) -> Extents:
    """Single records of the canonical line, as an explicit sampler names them."""
    line = canonical(snapshot, tuple(part.extent for part in snapshot.parts) or snapshot.extent)
    ends = np.cumsum(line.lengths)
    if indices.size and (indices.min() < 0 or indices.max() >= len(snapshot)):
        worst = int(indices.min()) if indices.min() < 0 else int(indices.max())
        msg = f"sampler: an index into {snapshot.source} must lie in 0..{len(snapshot) - 1}; found {worst}"
        raise ConfigError(msg)
    k = np.searchsorted(ends, indices, side="right")
    position = line.stop[k] - (ends[k] - indices)
    return Extents(line.partition[k], position, position + 1)


class EpochPlan(Windowed):
    """The order of one epoch. Building it is O(extents); every question after that is arithmetic.

    `drop_last` drops the less than `lanes` samples that do not divide; otherwise the line is padded with
    its own beginning, `repeats` samples, so that all lanes are equally long (`lane_length` samples each).
    """

    def __init__(
        self,
        snapshot: Snapshot,
        order: Order,
        *,
        seed: int,
        epoch: int,
        lanes: int = 1,
        drop_last: bool = False,
        indices: Int64s | None = None,
        may_be_empty: bool = False,
    ) -> None:
        self.order, self.seed, self.epoch, self.lanes = order, seed, epoch, lanes
        self._located = snapshot.located
        if indices is not None:
            line = _chosen(snapshot, indices)
        else:
            line = canonical(snapshot, order.extents)
            if order.shuffled:
                line = line[permutation(seed, epoch, len(line), EXTENT_ORDER)]
        total = int(line.lengths.sum())
        if total == 0 and not may_be_empty:
            msg = f"{snapshot.source}: an epoch needs at least one record; found none"
            raise SourceEmptyError(msg)
        self.mixes = order.shuffled and indices is None and order.extent > 1
        self.lane_length = slots_of(total, lanes, drop_last=drop_last)
        self.repeats = max(0, self.lane_length * lanes - total)  # at the line's end
        self._repeats_of: dict[int, Int64s] = {}  # by lane
        self._line = _of_length(line, total, self.lane_length * lanes)
        self._ends = np.cumsum(self._line.lengths)

    def strands(self, lane: int, consumed: int) -> list[tuple[EpochPlan, int]]:
        """What a lane's slots are filled from, each in an order of its own, with how much of it `consumed` slots took.

        This plan alone; a mixture has several (`dali_feed.plan.mixed`).
        """
        del lane
        return [(self, consumed)]

    def bounds(self, lane: int) -> Int64s:
        """See `Windowed.bounds`: a lane's extents are divided evenly among as few windows as possible."""
        first, stop = lane * self.lane_length, (lane + 1) * self.lane_length
        a, b = np.searchsorted(self._ends, (first, stop), side="right")
        inner = self._ends[a:b]
        inner = inner[inner < stop]
        edges = np.concatenate([[first], inner])
        windows = -(-len(edges) // self.order.window)
        edges = edges[np.arange(windows) * len(edges) // windows]  # evenly: no last window of one record
        return np.asarray(np.append(edges, stop) - first, np.int64)

    def window(self, lane: int, first: int, stop: int) -> WindowPlan:
        at = lane * self.lane_length
        extents = self._cut(at + first, at + stop)
        order = self._mixed(at + first, stop - first) if self.mixes else None
        return WindowPlan(at + first, self._located(extents), order, np.cumsum(extents.lengths))

    def _mixed(self, at: int, rows: int) -> Int64s:
        """The order of a window's rows; `at`: its first place in the line."""
        return permutation(self.seed, self.epoch, rows, WINDOW_ORDER, at)

    def others(self, lane: int, first: int) -> Iterator[WindowPlan]:
        for turn in range(self.lanes + 1):
            at = (lane + turn) % self.lanes
            for a, b in itertools.pairwise(self.bounds(at).tolist()):
                if a < b and (0 < turn < self.lanes or (a > first if turn == 0 else a < first)):
                    yield self.window(at, a, b)

    def repeated(self, lane: int, first: int, stop: int) -> NDArray[np.bool_]:
        """Which of lane positions first..stop-1 have one of the `repeats`, bool (stop - first,)."""
        if lane not in self._repeats_of:  # asked of every batch
            self._repeats_of[lane] = self._find_repeats(lane)
        return np.isin(np.arange(first, stop), self._repeats_of[lane])

    def _find_repeats(self, lane: int) -> Int64s:
        """The positions of a lane that have one of the `repeats`: of its last windows alone, and of most lanes none."""
        at = lane * self.lane_length
        unique = self.lane_length * self.lanes - self.repeats - at  # positions of the lane before them
        if unique >= self.lane_length or not self.mixes:
            return np.arange(max(unique, 0), self.lane_length)
        spans = [(a, b) for a, b in itertools.pairwise(self.bounds(lane).tolist()) if b > unique]
        return np.concatenate([a + np.flatnonzero(self._mixed(at + a, b - a) >= unique - a) for a, b in spans])

    def dealt(self, consumed: int, partitions: int) -> Int64s:
        """Of the first `consumed` samples of every lane, how many are of which partition: int64 (partitions,).

        Costs what the extents, and one window per lane, cost.
        """
        counts = np.zeros(partitions, np.int64)
        for lane in range(self.lanes if consumed else 0):
            counts += self.dealt_of(lane, consumed, partitions)
        return counts

    def dealt_of(self, lane: int, consumed: int, partitions: int) -> Int64s:
        """Of the first `consumed` samples of one lane, how many are of which partition: int64 (partitions,)."""
        counts = np.zeros(partitions, np.int64)
        edges = self.bounds(lane)
        edge, at = int(edges[np.searchsorted(edges, consumed, side="right") - 1]), lane * self.lane_length
        if edge:
            whole = self._cut(at, at + edge)
            np.add.at(counts, whole.partition, whole.lengths)
        partition, _ = unpack_ids(self.ids(lane, edge, consumed))
        return np.asarray(counts + np.bincount(partition, minlength=partitions), np.int64)

    def _cut(self, first: int, stop: int) -> Extents:
        a = int(np.searchsorted(self._ends, first, side="right"))
        b = int(np.searchsorted(self._ends, stop, side="left")) + 1
        part = self._line[a:b]
        start, end = part.start.copy(), part.stop.copy()
        start[0] = end[0] - (self._ends[a] - first)
        end[-1] -= self._ends[b - 1] - stop
        return Extents(part.partition, start, end)


def _head(line: Extents, samples: int) -> Extents:
    """The first `samples` samples of a line that holds at least as many."""
    ends = np.cumsum(line.lengths)
    k = int(np.searchsorted(ends, samples, side="left")) + 1
    stop = line.stop[:k].copy()
    stop[-1] -= ends[k - 1] - samples
    return Extents(line.partition[:k], line.start[:k], stop)


def _of_length(line: Extents, total: int, wanted: int) -> Extents:
    """The line cut, or padded with its own beginning, to `wanted` samples."""
    if wanted <= total:
        return line if wanted == total else _head(line, wanted)
    rounds, rest = divmod(wanted, total)
    parts = [line] * rounds + ([_head(line, rest)] if rest else [])
    return Extents.joined(parts)
