"""Which of several sources gives the sample of a slot, in whole-number shares.

The law: pure in (shares, lanes). Slots are numbered step by step: step j of all lanes, then step j + 1. Of the first n
of these slots a source with share w has n * w of them to within one, at any n; so every batch is, and one whose parts
are whole numbers is exact. The slots of one step are dealt to the lanes so that each lane has its part too: of its
first j to within one with two or three sources, seldom more than two off with more. All repeats after as many steps as
the shares' sum, with the lanes one further, so that after that many times as there are lanes each had exactly its part.

The line of slots is that of R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980): among the
sources that may have another slot without being ahead, the one that will be overdue first.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from dali_feed.records.extents import Int64s

__all__ = ["Apportioned"]

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
    given = [0] * len(shares)
    line = []
    for slot in range(1, slots + 1):
        open_ = [k for k, w in enumerate(shares) if w and slack * (slot * w - given[k] * total) >= total]
        chosen = min(open_, key=lambda k: ((slack * (given[k] + 1) - 1) / shares[k], k))
        given[chosen] += 1
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
