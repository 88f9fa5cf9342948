"""The order of an epoch of a mixture: several sources, each in an order of its own, slot by slot in exact shares.

The law: pure in (snapshot, seed, epoch, lanes), as `plan.order` is. Each part of the snapshot has a plan of its own, an
`EpochPlan` with as many lanes; that of a part and a pass over it has a seed of its own. Lane l of the mixture is the
l-th lanes of the parts, a `Strand` each, and `plan.apportion` says whose is each slot. So a position is still one
number, the slots each lane has given: how many samples of each strand those took follows from it.

    strands of lane l   a: |-- window --|-- window --|       b: |- window -|- again, turn 1 -|
    its slots           a a b a a a b a a b a a a b ...

Within its lane a strand has windows of its own, so a slot whose record is bad gets another of the same source, and the
proportions stay. A part that is exhausted before the epoch ends begins again, in another order; what is done to a
sample is then drawn anew (`WindowPlan.turn`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import STRANDS, seed_within
from dali_feed.errors import ConfigError
from dali_feed.plan.order import EpochPlan, Order, Windowed, WindowPlan, slots_of
from dali_feed.records.extents import Extents, Int64s, unpack_ids
from dali_feed.records.source import Mixture, Snapshot

# Which of several sources gives the sample of a slot, in whole-number shares.
#
# The law: pure in (shares, lanes). Slots are numbered step by step: step j of all lanes, then step j + 1. Of the first
# n of these slots a source with share w has n * w of them to within one, at any n; so every batch is, and one whose
# parts are whole numbers is exact. The slots of one step are dealt to the lanes so that each lane has its part too: of
# its first j to within one with two or three sources, seldom more than two off with more. All repeats after as many
# steps as the shares' sum, with the lanes one further, so that after that many times as there are lanes each had
# exactly its part.
#
# The line of slots is that of R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980): among the
# sources that may have another slot without being ahead, the one that will be overdue first.


_NOBODY = -(1 << 62)


class Apportioned:
    """The sources of the first `most` slots of each lane; `shares` are whole numbers, one at least above 0."""

    def __init__(self, shares: tuple[int, ...], lanes: int, most: int) -> None:
        self.shares, self.lanes = shares, lanes
        self._period = _period(shares, lanes, min(sum(shares), 1 << max(0, most - 1).bit_length()))
        self._whole = np.stack([self._counted(lane, len(self._period)) for lane in range(lanes)])

    def sources(self, lane: int, first: int, stop: int) -> Int64s:
        """The source of each slot first..stop-1 of a lane, int64 (stop - first,)."""
        turn, step = np.divmod(np.arange(first, stop, dtype=np.int64), len(self._period))
        return np.asarray(self._period[step, (lane + turn) % self.lanes], np.int64)

    def taken(self, lane: int, count: int) -> Int64s:
        """How many of the first `count` slots of a lane each source has, int64 (sources,)."""
        turns, steps = divmod(count, len(self._period))
        rounds, rest = divmod(turns, self.lanes)
        rows = (lane + np.arange(rest, dtype=np.int64)) % self.lanes
        whole = rounds * self._whole.sum(axis=0) + self._whole[rows].sum(axis=0)
        return np.asarray(whole + self._counted((lane + turns) % self.lanes, steps), np.int64)

    def _counted(self, row: int, steps: int) -> Int64s:
        return np.bincount(self._period[:steps, row], minlength=len(self.shares)).astype(np.int64)


def _line(shares: tuple[int, ...], slots: int) -> Int64s:
    """The source of each of the first slots of a period, int64 (slots,)."""
    total, count = sum(shares), sum(share > 0 for share in shares)
    if count == 1:
        return np.full(slots, int(np.argmax(shares)), np.int64)
    slack = 2 * count - 2  # Tijdeman's bound: no source is ever off by more than 1 - 1 / slack
    taken = [0] * len(shares)
    line = []
    for slot in range(1, slots + 1):
        open_ = [k for k, w in enumerate(shares) if w and slack * (slot * w - taken[k] * total) >= total]
        chosen = min(open_, key=lambda k: ((slack * (taken[k] + 1) - 1) / shares[k], k))
        taken[chosen] += 1
        line.append(chosen)
    return np.asarray(line, np.int64)


@functools.lru_cache(maxsize=16)
def _period(shares: tuple[int, ...], lanes: int, steps: int) -> NDArray[np.uint16]:
    """The source of each slot of the first steps of a period: uint16 (steps, lanes)."""
    total = sum(shares)
    line = _line(shares, min(total, steps * lanes))
    out = np.empty((steps, lanes), np.uint16)
    if lanes == 1:
        out[:, 0] = line
        return out
    due = np.zeros((lanes, len(shares)), np.int64)  # what each lane still has to get of each source, times `total`
    every, weights = np.arange(lanes), np.asarray(shares, np.int64)
    most = int(np.argmax(weights))
    for step in range(steps):
        due += weights
        at = step * lanes
        row = _dealt(due, np.bincount(line[(at + every) % len(line)], minlength=len(shares)), most)
        due[every, row] -= total
        out[step] = row
    return out


def _dealt(due: Int64s, counts: Int64s, most: int) -> Int64s:
    """Which lane gets which source, int64 (lanes,): each source as often as `counts` says, so that most due is given.

    First source by source, each to the lanes where it is more due than the one with the largest share, which gets what
    is left; then lanes exchange, two or three at a time, for as long as more due is given.
    """
    row = np.full(len(due), most, np.int64)
    free = np.ones(len(due), bool)
    for k in np.flatnonzero(counts).tolist():
        if k != most:
            lanes = np.argsort(np.where(free, due[:, most] - due[:, k], -_NOBODY), kind="stable")[: counts[k]]
            row[lanes], free[lanes] = k, False
    sources = np.flatnonzero(counts)
    while len(sources) > 1 and due.shape[1] > 2:
        exchange = _exchange(due, row, sources)
        if exchange is None:
            break
        row[exchange] = np.roll(row[exchange], -1)
    return row


def _exchange(due: Int64s, row: Int64s, sources: Int64s) -> Int64s | None:
    """Two or three lanes of which each had better have the next one's source; None where no exchange gains."""
    gains = due[:, sources] - np.take_along_axis(due, row[:, None], axis=1)  # of each lane with another source
    mine = row[:, None] == sources
    best = np.array([np.where(mine[:, k, None], gains, _NOBODY).max(axis=0) for k in range(len(sources))])
    who = np.array([np.where(mine[:, k, None], gains, _NOBODY).argmax(axis=0) for k in range(len(sources))])
    np.fill_diagonal(best, 0)
    two = best + best.T
    i, j = np.unravel_index(two.argmax(), two.shape)
    if two[i, j] > 0:
        return np.array([who[i, j], who[j, i]])
    three = best[:, :, None] + best[None, :, :] + best.T[:, None, :]
    i, j, k = np.unravel_index(three.argmax(), three.shape)
    return np.array([who[i, j], who[j, k], who[k, i]]) if three[i, j, k] > 0 else None


_ROOM = 1 << 48  # places in the line of a strand: what tells windows of different ones apart


class Strand(Windowed):
    """One part of a mixture: passes over it laid end to end. Like `EpochPlan`, but each lane has its own length."""

    def __init__(self, number: int, base: int, passes: Callable[[int], EpochPlan]) -> None:
        self.number, self._base, self._passes = number, base, passes
        self._plans: dict[int, EpochPlan] = {}
        self.pass_length = self.of_pass(0).lane_length
        self._lengths: tuple[int, ...] = ()

    def cut(self, lengths: tuple[int, ...]) -> None:
        """Let each lane end where the mixture's does."""
        self._lengths = lengths

    def of_pass(self, turn: int) -> EpochPlan:
        """The order of one pass."""
        if turn not in self._plans:
            self._plans[turn] = self._passes(turn)
        return self._plans[turn]

    def bounds(self, lane: int) -> Int64s:
        """See `Windowed.bounds`; a window ends where its pass does, and where the lane does."""
        length, edges, first = self._lengths[lane], [np.zeros(1, np.int64)], 0
        while first < length:
            inner = self.of_pass(first // self.pass_length).bounds(lane)[1:]
            edges.append(np.append(inner[inner < length - first], min(length - first, self.pass_length)) + first)
            first += self.pass_length
        return np.unique(np.concatenate(edges))

    def window(self, lane: int, first: int, stop: int) -> WindowPlan:
        turn, at = divmod(first, self.pass_length)
        return self._placed(self.of_pass(turn).window(lane, at, at + stop - first), turn)

    def others(self, lane: int, first: int) -> Iterator[WindowPlan]:
        """See `Windowed.others`: of the same pass over the same source."""
        turn, at = divmod(first, self.pass_length)
        for window in self.of_pass(turn).others(lane, at):
            yield self._placed(window, turn)

    def dealt_of(self, lane: int, consumed: int, partitions: int) -> Int64s:
        """As `EpochPlan.dealt_of`, by the partitions of the mixture. Costs what the windows cost."""
        counts = np.zeros(partitions, np.int64)
        for a, b in itertools.pairwise(self.bounds(lane).tolist()):
            if b <= consumed:
                extents = self.window(lane, a, b).extents
                np.add.at(counts, extents.partition, extents.lengths)
            elif a < consumed:
                counts += np.bincount(unpack_ids(self.ids(lane, a, consumed))[0], minlength=partitions)
        return counts

    def _placed(self, window: WindowPlan, turn: int) -> WindowPlan:
        extents = window.extents
        shifted = Extents(extents.partition + self._base, extents.start, extents.stop)
        at = (self.number << 8 | min(turn, 255)) * _ROOM + turn * self.of_pass(0).lanes * self.pass_length + window.at
        return dataclasses.replace(window, at=at, extents=shifted, turn=turn)


class MixedPlan:
    """The order of one epoch of a mixture; the same questions as `EpochPlan` answers.

    An epoch of `samples` has as many as divide among the lanes, or with `drop_last` not one more. One that ends with
    the first part leaves the less than `lanes` samples of a part that do not divide; else each pass is padded with its
    own beginning, as an epoch of a single source is.
    """

    def __init__(
        self, snapshot: Snapshot, mix: Mixture, order: Order, *, seed: int, epoch: int, lanes: int, drop_last: bool
    ) -> None:
        self.order, self.seed, self.epoch, self.lanes = order, seed, epoch, lanes
        shares = self.shares = mix.shares(epoch)
        whole = mix.stop == "first" and mix.samples is None
        self._parts: list[Strand] = []
        base = 0
        for k, (part, its) in enumerate(zip(snapshot.parts, order.parts, strict=True)):
            self._parts.append(Strand(k, base, self._passes(k, part, its, whole=whole)))
            base += len(part.starts)
        self.lane_length, self._dealt = self._length(mix, shares, drop_last=drop_last)
        if not self.lane_length:
            rule = f"an epoch must have at least one sample for each of lanes={lanes}"
            msg = f"{snapshot.source}: {rule}; found none for some. Give a larger samples= or a smaller lanes="
            raise ConfigError(msg)
        taken = np.array([self._dealt.taken(lane, self.lane_length) for lane in range(lanes)])
        for strand, lengths in zip(self._parts, taken.T.tolist(), strict=True):
            strand.cut(tuple(lengths))

    def _passes(self, number: int, part: Snapshot, order: Order, *, whole: bool) -> Callable[[int], EpochPlan]:
        def plan(turn: int) -> EpochPlan:
            seed = seed_within(self.seed, STRANDS, number << 32 | turn)
            drop_last = whole and len(part) >= self.lanes
            return EpochPlan(part, order, seed=seed, epoch=self.epoch, lanes=self.lanes, drop_last=drop_last)

        return plan

    def _length(self, mix: Mixture, shares: tuple[int, ...], *, drop_last: bool) -> tuple[int, Apportioned]:
        """Slots of a lane in the epoch, and whose they are."""
        if mix.samples is not None:
            length = slots_of(mix.samples, self.lanes, drop_last=drop_last)
            return length, Apportioned(shares, self.lanes, max(1, length))
        ends = [
            -(-strand.pass_length * sum(shares) // share)
            for strand, share in zip(self._parts, shares, strict=True)
            if share
        ]
        first = mix.stop == "first"
        slack = 8 * sum(shares) // min(share for share in shares if share) + 8  # a lane is a few samples off at most
        most = (min(ends) if first else max(ends)) + slack
        dealt = Apportioned(shares, self.lanes, most)
        passes = np.array([strand.pass_length for strand in self._parts])
        wanted = np.asarray(shares) > 0

        def inside(length: int) -> bool:
            """Whether the epoch may be so long ("first"), or must be longer ("all")."""
            taken = np.array([dealt.taken(lane, length) for lane in range(self.lanes)])[:, wanted]
            return bool((taken <= passes[wanted]).all() if first else (taken < passes[wanted]).any())

        low, high = 0, most  # inside(low) holds, inside(high) does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if inside(middle) else (low, middle)
        return (low if first else high), dealt

    def strands(self, lane: int, consumed: int) -> list[tuple[Strand, int]]:
        """The strands of a lane, and how many samples of each its first `consumed` slots took."""
        return list(zip(self._parts, self._dealt.taken(lane, consumed).tolist(), strict=True))

    def sources(self, lane: int, first: int, stop: int) -> Int64s:
        """Which part each slot first..stop-1 of a lane is of, int64."""
        return self._dealt.sources(lane, first, stop)

    def ids(self, lane: int, first: int, stop: int) -> Int64s:
        """Sample ids that the plan has in slots first..stop-1 of a lane, before any replacement."""
        sources = self.sources(lane, first, stop)
        out = np.zeros(stop - first, np.int64)
        for k, (strand, taken) in enumerate(self.strands(lane, first)):
            here = np.flatnonzero(sources == k)
            out[here] = strand.ids(lane, taken, taken + len(here))
        return out

    def dealt(self, consumed: int, partitions: int) -> Int64s:
        """As `EpochPlan.dealt`."""
        counts = np.zeros(partitions, np.int64)
        for lane in range(self.lanes if consumed else 0):
            for strand, taken in self.strands(lane, consumed):
                counts += strand.dealt_of(lane, taken, partitions)
        return counts
