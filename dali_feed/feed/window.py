"""A window in memory: its records, read piece by piece, and the rule for which record fills which slot.

The law: slots never shift. The slot of a record that is absent or bad is taken by the next good record
of the window in the order of the slots, from the first again after the last. A window without any record borrows those
of the next one that has some: its slot k goes as slot k of that one would, and is not ok. The rule sees neither
batches nor ranks, and it can be applied again when a record turns out to be bad late: payloads stay until the
window's last batch has left. Of a stream a batch is a window: no other record may be near.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.bad_records import BadRecord, kind_of
from dali_feed.columns.columns import Columns
from dali_feed.errors import BadRecordLimitError, ConfigError, DaliFeedError, SourceError
from dali_feed.feed.reading import ReadPool, ReadTask
from dali_feed.plan.order import WindowPlan
from dali_feed.records.pieces import put, room, take
from dali_feed.records.slabs import slabs_for
from dali_feed.records.source import Block, Fault, Lease, Stage

Rows = NDArray[np.int64]


# A window without one good record: either the arguments are wrong or the data is; this file decides which.
#
# The law: where no record has been good so far and all of the first window are bad for one reason, nobody can train
# with this configuration: a ConfigError with the reason and its cure. Anything else is bad data.


SHOWN = 5
_CURES = (  # a pattern in a reason, and the cure for it; the first that fits
    ("codec: ", "Correct the codec, or what it is given; BadRecords is for single records"),
    (
        r"column 'label' of member 'headers\..*no such member",
        (
            'Name the header that holds the label, label="class"; where records have none, label=None. What stands in '
            "the values is named by columns=: dali-feed inspect --format json lists it"
        ),
    ),
    (
        "no such member",
        "Name members that the records have: source.members() lists them, as dali-feed inspect (--format json) does",
    ),
    ("null there", "Give the column default=, or leave it out"),
    (
        "label|decimal number",
        "Labels must be whole numbers: write such, or read only images, label=None; of a topic, codec= may make them",
    ),
    ("must fit into the image", "Put a Resize before it, or set pad_if_needed=True"),
    (
        "image|unknown format",
        "Set image= of the source (codec= of a topic) to what holds the image, or name it by columns= with format=",
    ),
)
_CURE = {
    "source": "Check the program that wrote the records, and the arguments of the source",
    "screen": "Look at one of them (dali-feed inspect), and check the program that wrote it",
    "decode": "Look at one of them (dali-feed verify --decode)",
}


@dataclass(slots=True)
class Proof:
    """Whether any record has been `good` since the feed was made: then the configuration is right."""

    good: bool = False


def hopeless(
    rows: int, bad: Sequence[tuple[str, str, Stage]], proof: Proof, more: str = ""
) -> ConfigError | BadRecordLimitError:
    """The error for a window of `rows` positions whose records, (where, reason, stage) each, are all bad or absent.

    `more`: the other windows that are the same.
    """
    reasons = "; ".join(f"{where}: {reason}" for where, reason, _ in bad[:SHOWN])
    if not proof.good and len(bad) > 1 and len({(kind_of(reason), stage) for _, reason, stage in bad}) == 1:
        where, reason, stage = bad[0]
        cure = next((cure for pattern, cure in _CURES if re.search(pattern, reason)), _CURE[stage])
        absent = f", {rows - len(bad)} positions absent" if rows > len(bad) else ""
        return ConfigError(
            f"all {len(bad)} records of the first window are bad for one reason{absent}: {reason} (such as {where})."
            f" {cure}"
        )
    msg = (
        f"window of {rows} records{more}: the next good record of a window replaces a bad one; found no good "
        f"record at all ({reasons or 'all positions are absent'}). Check the source, or make Shuffle(window=...) "
        "wider"
    )
    return BadRecordLimitError(msg, tuple((where, reason) for where, reason, _ in bad))


# How large records really are: a snapshot knows only a sample, which may say nothing of the part being read.
#
# The law: reads ahead fit into the memory by the sizes read so far, and a window that really does not fit ends the run
# with its figures. The order is never changed by it: the plan alone makes extents and windows.


class MeanSize:
    """Mean payload size: the snapshot's until reads say that records are larger. The feed thread's own.

    memory  bytes of slabs that a window may take
    before  how large they were in the pass before, where one is known: reads are the same, and are estimated better
    """

    def __init__(self, record_bytes: int, slab_bytes: int, memory: int, before: int = 0) -> None:
        self._sampled, self.slab_bytes, self.memory = record_bytes, slab_bytes, memory
        self._rows = self._bytes = 0
        self._before = before

    def __bool__(self) -> bool:
        return self._rows > 0 or self._before > 0

    def anew(self) -> MeanSize:
        """For the pass behind this one."""
        return MeanSize(self._sampled, self.slab_bytes, self.memory, max(1, self.record_bytes))

    def add(self, rows: int, size: int) -> None:
        """So many positions were read, with so many bytes of payloads in slabs."""
        self._rows, self._bytes = self._rows + rows, self._bytes + size

    @property
    def record_bytes(self) -> int:
        """Bytes of a record, on the safe side of the two."""
        return max(self._sampled, self._bytes // max(1, self._rows))

    def slabs(self, records: int) -> int:
        """Bytes of slabs that so many records take: an estimate."""
        return slabs_for(records, max(self.record_bytes, self._before), self.slab_bytes)

    def dense(self, records: int) -> int:
        """Bytes that so many records take side by side: an estimate."""
        return records * self.record_bytes

    def too_large(self, first: str, records: int, held: int, rows: int) -> ConfigError:
        """The error of a window from `first` on of which `rows` of its records take `held` bytes: more than may be."""
        return ConfigError(
            f"Tuning(memory={self.memory}): must hold each window; in the window of {records} records from "
            f"{first}, {rows} of them take {held} bytes, but the source's sample says {self._sampled} bytes per "
            f"record. Give several times {held // max(1, rows) * records} bytes, or a narrower "
            "Shuffle(extent=..., window=...)"
        )


def _per_read(record_bytes: int, slab_bytes: int) -> int:
    """Records of a read that fills a slab by seven eighths, which leaves room for larger ones."""
    return max(1, slab_bytes * 7 // 8 // max(1, record_bytes))


def window_memory(records: int, extent: int, record_bytes: int, slab_bytes: int) -> int:
    """Bytes of slabs that a window of so many records takes, read in extents of so many."""
    read = max(1, _per_read(record_bytes, slab_bytes) // extent) * extent
    full, rest = divmod(records, read)
    return full * slabs_for(read, record_bytes, slab_bytes) + slabs_for(rest, record_bytes, slab_bytes)


def _tasks(plan: WindowPlan, sizes: MeanSize) -> tuple[list[ReadTask], Rows]:
    """Reads of most of a slab each, never less than an extent; and the row at which each begins, and the end."""
    ends = plan.ends
    runs = np.searchsorted(np.cumsum(plan.extents.lengths), ends, side="left") + 1  # up to the end of each extent
    per_read = _per_read(sizes.record_bytes, sizes.slab_bytes)
    tasks, edges, a, first, run = [], [0], 0, 0, 0
    while a < len(ends):
        b = max(a + 1, int(np.searchsorted(ends, first + per_read, side="right")))
        rows = int(ends[b - 1]) - first
        read = plan.extents[run : runs[b - 1]]
        tasks.append(ReadTask(read, partial(sizes.slabs, rows), expects=sizes.dense(rows)))
        first, run = first + rows, int(runs[b - 1])
        edges.append(first)
        a = b
    return tasks, np.asarray(edges, np.int64)


def _different(tasks: Rows) -> list[int]:
    """The numbers that occur, in ascending order: they are few, and the rows many."""
    numbers: list[int] = np.flatnonzero(np.bincount(tasks)).tolist()
    return numbers


class _NoRecordError(Exception):
    """A window holds no record that can fill a slot."""


class NoneGoodError(DaliFeedError):
    """No record of a stream's window is good: its batch is not handed over."""


@dataclass(slots=True)
class WindowSource:
    """What the windows of an epoch are made with, and what they tell each other. Used by the feed thread alone.

    columns    what records are made of
    where      the coordinates of a sample, as people write them
    pool       the reader threads
    sizes      how large records are
    proof      whether any record has been good
    stands_in  by the place in the line of a window without a record the one whose records it borrows: a sampler may
               give equal records again
    """

    columns: Columns
    where: Callable[[int], str]
    pool: ReadPool
    sizes: MeanSize
    proof: Proof
    stands_in: dict[int, WindowPlan] = field(default_factory=dict)


class Window:
    """Rows are numbered in the order of reading, slots in the order of the epoch. Used by the feed thread alone.

    One of an epoch (`planned`) reads its records, and borrows from its neighbours; one of a stream (`arrived`) has all
    of its records, one slot each, and no neighbour.

    columns   what its records are made of
    values    by column what is kept of each row
    order     the row whose own each slot is
    slots     how many it has; as many as rows, unless those are borrowed
    borrowed  whether its records are another window's, for it has none
    left      slots whose batch has not left the engine yet
    turn      how often its records have come in this epoch before: what is done to them is drawn anew each time
    ahead     reads that nobody has asked for yet, the next one last
    """

    _own: WindowPlan  # these two of a planned one alone
    _others: Callable[[], Iterator[WindowPlan]]

    def __init__(self, columns: Columns, where: Callable[[int], str], slots: int, first_slot: int = 0) -> None:
        self.columns, self._where, self.slots = columns, where, slots
        self.left, self.borrowed, self.turn = slots - first_slot, False, 0
        self.tasks: list[ReadTask] = []
        self.ahead: list[ReadTask] = []
        self._source: WindowSource | None = None
        self._give_back: Callable[[], None] | None = None

    @classmethod
    def planned(
        cls, plan: WindowPlan, first_slot: int, source: WindowSource, others: Callable[[], Iterator[WindowPlan]]
    ) -> Window:
        """A window of an epoch, of which the slots from `first_slot` on are wanted; `others` come behind it in turn."""
        window = cls(source.columns, source.where, len(plan), first_slot)
        window._source, window._own, window._others = source, plan, others
        window._begin(plan, source)
        needed = np.zeros(len(window.tasks), bool)
        needed[window._task_at[first_slot:]] = plan.at not in source.stands_in
        window.ahead = [window.tasks[n] for n in np.flatnonzero(needed)][::-1]
        return window

    @classmethod
    def arrived(
        cls, blocks: Sequence[Block], columns: Columns, where: Callable[[int], str], release: Callable[[], None]
    ) -> Window:
        """A window of records that have come; `release` gives their memory back."""
        ids = [block.ids for block in blocks]
        window = cls(columns, where, sum(map(len, ids)))
        window._hold(ids[0] if len(ids) == 1 else np.concatenate(ids))
        window.order = np.arange(window.rows, dtype=np.int64)
        first = 0
        for block in blocks:
            window._put(first, first + len(block.ids), block)
            first += len(block.ids)
        window._give_back = release
        return window

    def _hold(self, ids: NDArray[np.int64], tasks: Sequence[ReadTask] = ()) -> None:
        """Room for these records, of which nothing has been read but by `tasks`."""
        rows = self.rows = len(ids)
        self.ids, self.tasks = ids, list(tasks)
        self.values: dict[str, Any] = {}
        self.there, self.usable = np.zeros(rows, bool), np.zeros(rows, bool)
        self.faults: dict[int, Fault] = {}
        self._installed = np.zeros(len(tasks), bool)
        self._all_installed = not tasks
        self._leases: list[Lease] = []
        self._read = 0  # rows

    def _begin(self, plan: WindowPlan, source: WindowSource) -> None:
        """Start with the records of `plan`, of which nothing has been read."""
        tasks, self._edges = _tasks(plan, source.sizes)
        self._hold(plan.extents.ids(), tasks)
        self.plan, self.turn = plan, plan.turn
        order = plan.order if plan.order is not None else np.arange(self.rows, dtype=np.int64)
        self.order = order if self.rows == self.slots else np.resize(order, max(self.rows, self.slots))
        self._task_at = np.searchsorted(self._edges, self.order, side="right") - 1

    # What is known of its records.

    def _put(self, a: int, b: int, block: Block) -> None:
        """Rows a..b-1 are those of a block."""
        if b - a == self.rows:
            self.values = dict(block.values)
        else:
            for name, values in block.values.items():
                into = self.values[name] if name in self.values else room(values, self.rows)
                self.values[name] = put(into, slice(a, b), values)
        self.there[a:b] = True if block.absent is None else ~block.absent
        self.usable[a:b] = True if block.whole else block.usable()
        self.faults |= {a + row: fault for row, fault in block.faults.items()}

    def mark_bad(self, row: int, reason: str) -> None:
        """A record turned out to be bad after the screen."""
        self.usable[row] = False
        self.faults[row] = Fault("decode", reason)

    def payload(self, row: int) -> memoryview | None:
        """The bytes of its first image, if it has any: a view that `release` ends."""
        name = self.columns.image
        return None if name is None or name not in self.values else self.values[name].payloads[row]

    def bad_record(self, row: int) -> BadRecord:
        """The record of a row that has a fault."""
        fault = self.faults[row]
        return BadRecord(int(self.ids[row]), fault.reason, fault.stage, self.payload(row))

    def good_images(self, rows: Rows) -> dict[str, list[Any]]:
        """By column the images of rows that `deal` gave, as decoders get them."""
        return {name: self.values[name][rows].decodable() for name in self.columns.images}

    def good_values(self, rows: Rows) -> dict[str, Any]:
        """The other columns of rows that `deal` gave."""
        images = self.columns.images
        return {name: take(values, rows) for name, values in self.values.items() if name not in images}

    def sizes(self, rows: Rows) -> NDArray[np.int32]:
        """Of the images of rows that `deal` gave, those of all image columns side by side, int32 (n, ...)."""
        each = [self.values[name].sizes[rows] for name in self.columns.images]
        return np.concatenate(each, axis=1) if each else np.zeros((len(rows), 2), np.int32)

    # Its reads.

    def memory(self) -> int:
        """Bytes of slabs that its reads hold, or will hold once requested ones are done."""
        return sum(task.memory for task in self.tasks if task.requested) if self.left else 0

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
        self._load(first, stop)

    def _load(self, first: int, stop: int) -> None:
        """Have the records of slots first..stop-1."""
        if not self._all_installed:
            self._read_all(_different(self._task_at[first:stop]))

    def _read_all(self, numbers: list[int]) -> None:
        """Have the records of those reads."""
        source = self._source
        needed = [n for n in numbers if not self._installed[n]]
        if source is None or not needed:
            return
        for n in needed:
            source.pool.request(self.tasks[n])
        for n in needed:
            self._install(n, self.tasks[n].take(), source)

    def _install(self, n: int, block: Block, source: WindowSource) -> None:
        a, b = int(self._edges[n]), int(self._edges[n + 1])
        self._leases.append(block.lease)
        self._read += b - a
        if (held := sum(lease.size for lease in self._leases)) > source.sizes.memory:
            raise source.sizes.too_large(self._where(int(self.ids[0])), self.rows, held, self._read)
        if {len(block.ids), *map(len, block.values.values())} != {b - a}:
            first, last = self._where(int(self.ids[a])), self._where(int(self.ids[b - 1]))
            msg = f"read of {first} to {last}: must give one row per position, {b - a}; found {len(block.ids)}"
            raise SourceError(msg)
        self._put(a, b, block)
        source.sizes.add(b - a, min(block.lease.size, self.tasks[n].bytes))
        source.proof.good |= bool(self.usable[a:b].any())
        self._installed[n] = True
        self._all_installed = bool(self._installed.all())

    # The rule of slots.

    def deal(self, first: int, stop: int) -> tuple[Rows, NDArray[np.bool_]]:
        """The rows that fill slots first..stop-1, and which of them are the slots' own. May wait for reads.

        Raises ConfigError or BadRecordLimitError where no record is good; of a stream NoneGoodError.
        """
        self._borrow_if_known()
        rows = self.order[first:stop].copy()
        self._load(first, stop)
        ok = self.usable[rows]
        filled = None
        try:
            for n in np.flatnonzero(~ok)[::-1].tolist():  # from the back: a run of bad slots shares what follows it
                rows[n] = rows[n + 1] if filled == n + 1 else self._next_good(first + n)
                filled = n
        except _NoRecordError:
            self._borrow()
            return self.deal(first, stop)
        return rows, ok & (not self.borrowed)

    def _borrow_if_known(self) -> None:
        """Borrow at once, without a read, where an earlier window's search found this one empty."""
        if self._source is not None and not self.borrowed and self._own.at in self._source.stands_in:
            self._borrow()

    def _borrow(self) -> None:
        """Take the records of the next window that has some; where none has, BadRecordLimitError."""
        source = self._source
        if source is None:
            msg = f"a batch of {self.rows} records: none of them is good"
            raise NoneGoodError(msg)
        passed, stands_in = [self._own.at], source.stands_in
        self.ahead = []
        known = stands_in.get(passed[0])
        for other in self._others() if known is None else (known,):
            plan = stands_in.get(other.at, other)  # the result of that one's own search
            self.release()
            self._begin(plan, source)
            if self._has_record():
                stands_in.update(dict.fromkeys(passed, plan))
                self.borrowed = True
                return
            passed.append(plan.at)
        self.release()
        raise hopeless(self.slots, (), source.proof, ", and all others")

    def _has_record(self) -> bool:
        """Whether any of its positions holds a record; reads no more than is needed to know."""
        for n in range(len(self.tasks)):
            self._read_all([n])
            if self.faults or self.there.any():
                return True
        return False

    def _next_good(self, slot: int) -> int:
        count = len(self.order)
        for k in range(slot + 1, slot + count):
            row = int(self.order[k % count])
            if not self.usable[row]:
                self._load(k % count, k % count + 1)
            if self.usable[row]:
                return row
        if self._source is None or not self.faults:
            raise _NoRecordError
        bad = [(self._where(int(self.ids[row])), each.reason, each.stage) for row, each in self.faults.items()]
        raise hopeless(self.rows, bad, self._source.proof)

    def retire(self, slots: int) -> None:
        """Slots whose batch has left the engine; with the last of them the memory goes back."""
        self.left -= slots
        if self.left == 0:
            self.release()

    def release(self) -> None:
        """Give all memory back; views into it must not be used any more."""
        self.values = {}
        for task, installed in zip(self.tasks, self._installed, strict=True):
            if not installed:
                task.drop()
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()
        if self._give_back is not None:
            self._give_back()
