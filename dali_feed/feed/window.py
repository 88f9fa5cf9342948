"""A window in memory: its records, read piece by piece, and the rule for which record fills which slot.

The law: slots never shift. The slot of a record that is absent or bad is taken by the next good record
of the window in the order of the slots, from the first again after the last. A window without any record borrows those
of the next one that has some: its slot k goes as slot k of that one would, and is not ok. The rule sees neither
batches nor ranks, and it can be applied again when a record turns out to be bad late: payloads stay until the
window's last batch has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import SourceError
from dali_feed.feed.held import Held, Rows
from dali_feed.feed.hopeless import Proof, hopeless
from dali_feed.feed.measured import Measured
from dali_feed.feed.reading import ReadPool, ReadTask
from dali_feed.feed.usable import Look
from dali_feed.plan.order import WindowPlan
from dali_feed.records.slabs import slabs_for
from dali_feed.records.source import Block, Lease

__all__ = ["Empty", "Window", "window_memory"]


def _per_read(record_bytes: int, slab_bytes: int) -> int:
    """Records of a read that fills a slab by seven eighths, which leaves room for larger ones."""
    return max(1, slab_bytes * 7 // 8 // max(1, record_bytes))


def window_memory(records: int, extent: int, record_bytes: int, slab_bytes: int) -> int:
    """Bytes of slabs that a window of so many records takes, read in extents of so many."""
    read = max(1, _per_read(record_bytes, slab_bytes) // extent) * extent
    full, rest = divmod(records, read)
    return full * slabs_for(read, record_bytes, slab_bytes) + slabs_for(rest, record_bytes, slab_bytes)


def _tasks(plan: WindowPlan, sizes: Measured) -> tuple[list[ReadTask], Rows]:
    """Reads of most of a slab each, never less than an extent; and the row at which each begins, and the end."""
    ends = plan.ends
    runs = np.searchsorted(np.cumsum(plan.extents.lengths), ends, side="left") + 1  # up to the end of each extent
    per_read = _per_read(sizes.record_bytes, sizes.slab_bytes)
    tasks, edges, a, first, run = [], [0], 0, 0, 0
    while a < len(ends):
        b = max(a + 1, int(np.searchsorted(ends, first + per_read, side="right")))
        rows = int(ends[b - 1]) - first
        tasks.append(ReadTask(plan.extents[run : runs[b - 1]], partial(sizes.slabs, rows)))
        first, run = first + rows, int(runs[b - 1])
        edges.append(first)
        a = b
    return tasks, np.asarray(edges, np.int64)


def _different(tasks: Rows) -> list[int]:
    """The numbers that occur, in ascending order: they are few, and the rows many."""
    found: list[int] = np.flatnonzero(np.bincount(tasks)).tolist()
    return found


class Empty:
    """Windows of an epoch that were found without a record, and which one stands in for each. One thread's."""

    def __init__(self) -> None:
        self.stands_in: dict[int, WindowPlan] = {}  # by the place in the line: a sampler may give equal records again


class _NoRecordError(Exception):
    """A window holds no record at all."""


class Window(Held):
    """Rows are numbered in the order of reading, slots in the order of the epoch. Used by the feed thread alone.

    slots     how many it has; as many as rows, unless those are borrowed
    borrowed  whether its records are another window's, for it has none
    left      slots whose batch has not left the engine yet
    """

    def __init__(  # noqa: PLR0913  what a window needs, each by name
        self,
        plan: WindowPlan,
        first_slot: int,
        *,
        sizes: Measured,
        look: Look,
        pool: ReadPool,
        where: Callable[[int], str],
        proof: Proof,
        empty: Empty,
        others: Callable[[], Iterator[WindowPlan]],
    ) -> None:
        super().__init__(look, where)
        self.slots = len(plan)
        self.left = self.slots - first_slot
        self._measured = sizes
        self._pool, self._proof = pool, proof
        self._own, self._empty, self._others = plan, empty, others
        self._begin(plan)
        needed = np.zeros(len(self.tasks), bool)
        needed[self._task_at[first_slot:]] = plan.at not in empty.stands_in
        self.ahead = [self.tasks[n] for n in np.flatnonzero(needed)][::-1]  # reads to make, the next one last

    def _begin(self, plan: WindowPlan) -> None:
        """Start with the records of `plan`, of which nothing has been read."""
        self._hold(plan.extents.ids())
        self.plan, rows, self.turn = plan, self.rows, plan.turn
        order = plan.order if plan.order is not None else np.arange(rows, dtype=np.int64)
        self.order = order if rows == self.slots else np.resize(order, max(rows, self.slots))
        self.tasks, self._edges = _tasks(plan, self._measured)
        self._task_at = self._task_of(self.order)
        self._installed = np.zeros(len(self.tasks), bool)
        self._all_installed = False
        self._leases: list[Lease] = []
        self._read = 0  # rows

    def _task_of(self, rows: Rows) -> Rows:
        return np.searchsorted(self._edges, rows, side="right") - 1

    def held(self) -> int:
        """Bytes of slabs that its reads hold, or will hold once requested ones are done."""
        return sum(task.held for task in self.tasks if task.requested) if self.left else 0

    def loaded(self, first: int, stop: int) -> bool:
        """Whether slots first..stop-1 can be filled without waiting for a read."""
        return self._all_installed or all(
            self._installed[n] or self.tasks[n].done.is_set() for n in _different(self._task_at[first:stop])
        )

    def loaded_to(self, first: int, stop: int) -> int:
        """Up to which slot, `stop` at most, those from `first` on can be filled without waiting for a read."""
        if self._all_installed:
            return stop
        tasks = self._task_at[first:stop]
        there = self._installed.copy()
        for n in _different(tasks):
            there[n] |= self.tasks[n].done.is_set()
        loaded = there[tasks]
        return stop if loaded.all() else first + int(loaded.argmin())

    def wait(self, first: int, stop: int) -> None:
        """Wait until the records of slots first..stop-1 have been read."""
        self._borrow_if_known()
        self._load(self._task_at[first:stop])

    def _load(self, tasks: Rows) -> None:
        if self._all_installed:
            return
        needed = [n for n in _different(tasks) if not self._installed[n]]
        for n in needed:
            self._pool.request(self.tasks[n])
        for n in needed:
            self._install(n, self.tasks[n].take())

    def _install(self, n: int, block: Block) -> None:
        a, b = int(self._edges[n]), int(self._edges[n + 1])
        self._leases.append(block.lease)
        self._read += b - a
        if (held := sum(lease.size for lease in self._leases)) > self._measured.memory:
            raise self._measured.too_large(self._where(int(self.ids[0])), self.rows, held, self._read)
        if len(block.payloads) != b - a:
            first, last = self._where(int(self.ids[a])), self._where(int(self.ids[b - 1]))
            msg = f"read of {first} to {last}: must give one row per position, {b - a}; found {len(block.payloads)}"
            raise SourceError(msg)
        self._screened(a, b, block)
        size = 0 if self.bare else sum(map(len, filter(None, block.payloads)))
        self._measured.add(b - a, min(block.lease.size, size))
        self._proof.good |= bool(self.usable[a:b].any())
        self._installed[n] = True
        self._all_installed = bool(self._installed.all())

    def deal(self, first: int, stop: int) -> tuple[Rows, NDArray[np.bool_]]:
        """The rows that fill slots first..stop-1, and which of them are the slots' own. May wait for reads."""
        self._borrow_if_known()
        rows = self.order[first:stop].copy()
        self._load(self._task_at[first:stop])
        ok = self.usable[rows]
        behind = None
        try:
            for n in np.flatnonzero(~ok)[::-1].tolist():  # from the back: a run of bad slots shares what follows it
                rows[n] = rows[n + 1] if behind == n + 1 else self._next_good(first + n)
                behind = n
        except _NoRecordError:
            self._borrow()
            return self.deal(first, stop)
        return rows, ok & (not self.borrowed)

    def _borrow_if_known(self) -> None:
        """Borrow at once, without a read, where an earlier window's search found this one empty."""
        if not self.borrowed and self._own.at in self._empty.stands_in:
            self._borrow()

    def _borrow(self) -> None:
        """Take the records of the next window that has some; where none has, BadRecordLimitError."""
        passed, stands_in = [self._own.at], self._empty.stands_in
        self.ahead = []
        known = stands_in.get(passed[0])
        for other in self._others() if known is None else (known,):
            plan = stands_in.get(other.at, other)  # the result of that one's own search
            self.release()
            self._begin(plan)
            if self._has_record():
                stands_in.update(dict.fromkeys(passed, plan))
                self.borrowed = True
                return
            passed.append(plan.at)
        self.release()
        raise hopeless(self.slots, (), self._proof, ", and all others")

    def _has_record(self) -> bool:
        """Whether any of its positions holds a record; reads no more than is needed to know."""
        for n in range(len(self.tasks)):
            self._load(np.asarray([n]))
            if self.reasons or any(payload is not None for payload in self.payloads):
                return True
        return False

    def _next_good(self, slot: int) -> int:
        count = len(self.order)
        for k in range(slot + 1, slot + count):
            row = int(self.order[k % count])
            if not self.usable[row]:
                self._load(self._task_at[k % count : k % count + 1])
            if self.usable[row]:
                return row
        if not self.reasons:
            raise _NoRecordError
        bad = [(self._where(int(self.ids[row])), why, self._stages[row]) for row, why in self.reasons.items()]
        raise hopeless(self.rows, bad, self._proof)

    def release(self) -> None:
        """Give all memory back; views into it must not be used any more."""
        self.payloads, self._plain = [], {}
        for task, installed in zip(self.tasks, self._installed, strict=True):
            if not installed:
                task.drop()
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()
