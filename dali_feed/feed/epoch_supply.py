"""What a pass over epochs is fed with: lanes that read ahead by the plan, one epoch behind the other.

The law: of an epoch that the training loop has not asked for no more is done than this: `prefetch` batches, and the
windows that those need, one of each lane at least, in the memory that the epoch before has given back. Nothing of it is
counted, written as a dead letter or reported as an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dali_feed import sync
from dali_feed.bad_records import BadRecord, Quarantine
from dali_feed.errors import ConfigError
from dali_feed.feed.batch import Batch, Course, Flight
from dali_feed.feed.direct import DirectLanes
from dali_feed.feed.lane import Draw, Lane, MixedLane, Piece
from dali_feed.feed.machine import Machine, slab_bytes
from dali_feed.feed.planning import Plan, Planning
from dali_feed.feed.reading import ReadPool
from dali_feed.feed.run import EpochEnd, Gate, Supply
from dali_feed.feed.window import MeanSize, WindowSource, window_memory
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan.batching import MAX_EPOCH
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.order import Windowed

SHOWN = 3  # reads that a message names


@dataclass(slots=True)
class OpenEpoch:
    """An epoch whose lanes are open: batch k takes `counts[k]` slots of every lane.

    narrow  whether its reads go no further than the first windows
    """

    course: Course
    lanes: Sequence[Lane | MixedLane | DirectLanes]
    counts: Sequence[int]
    sizes: MeanSize
    narrow: bool
    flown: int = 0

    @property
    def epoch(self) -> int:
        """Its number."""
        return self.course.epoch

    @property
    def strands(self) -> list[Lane | DirectLanes]:
        """What reads for its lanes."""
        return [strand for lane in self.lanes for strand in lane.strands]


def check_memory(tuning: Tuning, planning: Planning, plan: Plan) -> None:
    """Raise ConfigError, with the figure that would do, where what must be in memory at once does not fit."""
    shares, windows = planning.shares, planning.windows
    lanes, slots = len(shares.mine), shares.per_lane * (tuning.prefetch + 1)

    def least(memory: int) -> int:
        need = 0
        for window, extent, record_bytes in windows:
            # those that batches in flight, and one, touch
            touched = min(-(-(slots - 1) // window) + 1, -(-plan.lane_length // window))
            need += touched * window_memory(window, extent, record_bytes, slab_bytes(memory)) * lanes
        return need

    memory = tuning.memory_bytes
    while (need := least(memory)) > memory:
        memory = need  # slabs, and what their ends waste, grow with it
    if memory > tuning.memory_bytes:
        window, _, record_bytes = max(windows, key=lambda its: its[0] * its[2])
        fewer = f", or lanes={shares.world_size}, as each lane has windows of its own" if lanes > 1 else ""
        msg = (
            f"Tuning(memory={tuning.memory!r}): must hold the windows that batches in flight touch;"
            f" a window is {window} records of about {record_bytes} bytes, and this rank"
            f" has {lanes} lanes. Give memory={memory} or more, or a narrower"
            f" Shuffle(window=...){fewer}"
        )
        raise ConfigError(msg)


class EpochSupply(Supply):
    """Slots from where `consumed` of each lane of `epoch` have been given, to the end of that epoch or of all.

    Raises, where it is made, what the plan of the epoch raises, and ConfigError where its windows need more memory.
    """

    def __init__(
        self,
        planning: Planning,
        machine: Machine,
        bad: BadRecords,
        pool: ReadPool,
        gate: Gate,
        *,
        epoch: int,
        consumed: int,
    ) -> None:
        super().__init__(machine, planning.snapshot.source)
        self._planning, self._mine, self._bad = planning, planning.shares.mine, bad
        self._pool, self._gate, self._memory = pool, gate, machine.tuning.memory_bytes
        self._open: list[OpenEpoch] = []  # whose batches have not all been handed over: two at most
        self._look = True  # reads may be asked for since the last look
        self._over = False  # nothing comes behind the epochs that were given
        self._wrong: tuple[int, Exception] | None = None  # what was found in an epoch while the one before was fed
        fits = planning.plan_bytes <= machine.tuning.memory_bytes
        self._ahead = machine.tuning.next_epoch and not planning.sampled and fits
        self._sizes = MeanSize(planning.snapshot.record_bytes, machine.slabs.slab_bytes, self._memory)
        self.epoch = epoch
        self._now: OpenEpoch | None = self._opened(epoch, planning.plan(epoch), consumed)
        self._next: OpenEpoch | None = None

    def _opened(self, epoch: int, plan: Plan, consumed: int = 0) -> OpenEpoch:
        planning, slots = self._planning, plan.lane_length * len(self._mine)
        course = self.machine.course(planning.seed, epoch, Quarantine(self._bad, slots))
        counts = planning.counts_of(plan, consumed)
        lanes = self._lanes(plan, consumed, counts, course.draw)
        opened = OpenEpoch(course, lanes, counts, self._sizes, narrow=epoch > self._gate.requested)
        self._open.append(opened)
        return opened

    def _lanes(
        self, plan: Plan, consumed: int, counts: Sequence[int], draw: Draw
    ) -> list[Lane] | list[MixedLane] | list[DirectLanes]:
        """This rank's lanes of a plan, from where `consumed` of each have been given, in batches of `counts`."""
        machine, pool, mine = self.machine, self._pool, self._mine
        source = WindowSource(machine.columns, machine.where, pool, self._sizes, machine.proof)
        strands = {lane: plan.strands(lane, consumed) for lane in mine}
        reads = -(-pool.count // max(1, sum(map(len, strands.values()))))

        def opened(strand: Windowed, lane: int, taken: int) -> Lane:
            return Lane(strand, lane, taken, source=source, draw=draw, reads=reads)

        if isinstance(plan, MixedPlan):
            return [
                MixedLane(plan, lane, consumed, [opened(strand, lane, taken) for strand, taken in strands[lane]], at)
                for at, lane in enumerate(mine)
            ]
        if machine.reads_directly(self._planning.snapshot, plan.order):
            lane, ready = partial(opened, plan), machine.tuning.prefetch
            return [DirectLanes(plan, mine, consumed, counts, source=source, lane=lane, draw=draw, prefetch=ready)]
        return [opened(plan, lane, consumed) for lane in mine]

    # What comes next.

    def ready(self) -> bool:
        """See `Supply.ready`."""
        if self._over or (self._now is None and not self._open_next()) or self._fails:
            return self._over or self._fails
        if self._now is None:
            self._now, self._next = self._next, None
        now = self._now
        if now is None or self._rests(now):
            return False
        if now.flown == len(now.counts):
            return True
        if now.epoch > self._gate.requested:
            if self._look:
                self._look = False
                self._try_read_ahead(now)
            if self._fails or not all(strand.all_read for strand in now.strands):
                return self._fails
        return all(lane.ready(now.counts[now.flown]) for lane in now.lanes)

    def take(self) -> tuple[Course, list[Piece]] | EpochEnd | None:
        """See `Supply.take`."""
        if self._over:
            return None
        now = self._now or self._begin_next()
        if self._wrong is not None and self._wrong[0] == self.epoch:
            raise self._wrong[1]
        if self._rests(now):
            self._gate.until_requested(now.epoch, self.machine.meter)
        if now.flown < len(now.counts):
            return now.course, self._cut(now)
        self._look_beyond()
        more = self._goes_on()
        self._over, self._now, self._next = not more, self._next, None
        self.epoch += more
        return EpochEnd(now.epoch, more)

    @property
    def _fails(self) -> bool:
        """Whether `take` raises what was found before."""
        return self._wrong is not None and self._wrong[0] == self.epoch

    def _rests(self, now: OpenEpoch) -> bool:
        """Whether no more is done of that epoch before the loop asks for it."""
        return now.epoch > self._gate.requested and now.flown >= min(self.machine.tuning.prefetch, len(now.counts))

    def _cut(self, now: OpenEpoch) -> list[Piece]:
        """The slots of its next batch. Waits for their reads."""
        count = now.counts[now.flown]
        if self._look or (now.narrow and now.epoch <= self._gate.requested):
            self._look = False
            self._read_ahead(now)
        with self.machine.meter.at("source"):
            for lane in now.lanes:
                known = bool(now.sizes)
                lane.wait(count)
                if not known and now.sizes:
                    self._read_ahead(now)
        pieces = list[Piece]()
        for lane in now.lanes:
            dealt = lane.dealt
            pieces += lane.take(count)
            self._look |= lane.dealt > dealt
        now.flown += 1
        if 2 * now.flown >= len(now.counts) and self._goes_on():
            self._planning.ahead(now.epoch + 1)
        return pieces

    # Reads.

    def _read_ahead(self, opened: OpenEpoch) -> None:
        """Request reads in order of need, lane by lane in turn, as far as each lane's part of the memory allows.

        What the epoch before still holds is taken off it, and what readers keep. Before the first read is done only a
        sample of sizes is known: no more reads than there are readers.
        """
        strands = opened.strands
        part = (self._memory - self.machine.slabs.kept) // len(strands)
        most = math.inf if opened.sizes else self._pool.count
        opened.narrow = opened.narrow and opened.epoch > self._gate.requested
        before = [lane.memory() for other in self._open if other.epoch < opened.epoch for lane in other.strands]
        ahead = [
            (lane, lane.reads_ahead(narrow=opened.narrow), other)
            for lane, other in zip(strands, before or [0] * len(strands), strict=True)
        ]
        while ahead:
            for turn in list(ahead):
                lane, reads, other = turn
                task = next(reads, None)
                if task is None or other + lane.memory() + task.memory > part:
                    ahead.remove(turn)
                else:
                    self._pool.request(task)
                    most -= 1
                if most <= 0:
                    return
        if opened is self._now:
            self._look_beyond()

    def _try_read_ahead(self, opened: OpenEpoch) -> None:
        """The same of an epoch that nobody has asked for: what it raises is met again where that is asked for."""
        try:
            self._read_ahead(opened)
        except Exception as error:  # noqa: BLE001  whatever it is, it is none of the epoch before
            self._wrong = opened.epoch, error

    # The next epoch.

    def _goes_on(self) -> bool:
        """Whether the next epoch is begun ahead: not where a sampler gives the order, or plans take much."""
        return self._ahead and self.epoch + 1 < MAX_EPOCH

    def _look_beyond(self) -> None:
        """Where all reads of the epoch have been asked for: ask for the first of the next one."""
        now = self._now
        if now is None or now.epoch > self._gate.requested or not self._goes_on():
            return
        if all(strand.all_requested for strand in now.strands):
            self._open_next()
            if self._next is not None:
                self._try_read_ahead(self._next)

    def _open_next(self) -> bool:
        """Open the epoch behind the one that is open where its plan is there; whether it is, or never will be."""
        epoch = self.epoch if self._now is None else self.epoch + 1
        if self._next is None and (self._wrong is None or self._wrong[0] != epoch):
            if not self._planning.ahead(epoch).done():
                return False
            self._sizes = self._sizes.anew()
            try:
                plan = self._planning.foreseen(epoch)
                check_memory(self.machine.tuning, self._planning, plan)
                self._next = self._opened(epoch, plan)
            except Exception as error:  # noqa: BLE001  it is met again where the epoch is asked for
                self._wrong = epoch, error
        return True

    def _begin_next(self) -> OpenEpoch:
        """Stand in the epoch behind the last one, of which the plan is waited for."""
        planned = self._planning.ahead(self.epoch)
        planned.add_done_callback(lambda _: self._gate.wake())
        with self.machine.meter.at("rest"):
            self._gate.wait(planned.done)
        self._open_next()
        now, self._next = self._next, None
        if now is None:
            raise self._wrong[1] if self._wrong is not None else RuntimeError
        self._now = now
        return now

    # What became of batches.

    def bad(self, flight: Flight, slot: int, bad: BadRecord) -> None:
        """Count it here and now; its letter is posted before its batch is handed over."""
        where = self.machine.where(bad.sample)
        self.count(flight.course, flight.course.landed + slot, bad, where, lambda: self._post(where, bad))

    def _post(self, where: str, bad: BadRecord) -> None:
        if self.machine.outbox.wanted:
            with self.machine.meter.at("dead letters"):
                self.machine.outbox.post(self.letter(where, bad), self._gate.is_closed)

    def landed(self, flight: Flight, batch: Batch) -> None:
        """Memory of its windows may have gone back, for reads to come."""
        del batch
        if any(piece.chunk.window.left == 0 for piece in flight.pieces):
            self._look = True
            if self._next is not None:
                self._look_beyond()

    def end(self, epoch: int) -> None:
        """See `Supply.end`: windows that drop_last left unused go back."""
        for opened in [each for each in self._open if each.epoch == epoch]:
            self._open.remove(opened)
            for lane in opened.lanes:
                lane.close()

    def halt(self) -> None:
        """See `Supply.halt`."""
        self._pool.halt()

    def resume(self, seconds: float) -> None:
        """See `Supply.resume`."""
        self._pool.resume(seconds)

    def release(self) -> None:
        """See `Supply.release`."""
        for opened in list(self._open):
            self.end(opened.epoch)
        self._now = self._next = None

    def at_work(self) -> str:
        """The work of each reader thread, the longest first."""
        reads = []
        for task, since, trouble in sorted(self._pool.doing(), key=lambda read: read[1]):
            first = self.machine.where(int(task.extents[:1].ids()[0]))
            more = f", {trouble}" if trouble else ""
            records, seconds = int(task.extents.lengths.sum()), sync.monotonic() - since
            reads.append(f"{records} records from {first} ({seconds:.0f} s{more})")
        more = f", and {len(reads) - SHOWN} more" if len(reads) > SHOWN else ""
        return f"source: {self.source} is being read: {'; '.join(reads[:SHOWN]) or 'nothing'}{more}"
