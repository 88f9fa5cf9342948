"""The epochs of a source that ends: where the loop is in them, and what the pass that gives their batches is fed with.

The law: one pass is under way at most. Where the next epoch begins exactly where that pass stands, it goes on with it;
otherwise nothing of it is left.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dali_feed import sync
from dali_feed.bad_records import BadRecord, Quarantine
from dali_feed.errors import ConfigError
from dali_feed.feed.batch import Batch, Course, Flight
from dali_feed.feed.direct import DirectLanes
from dali_feed.feed.lane import Draw, Lane, MixedLane, Piece
from dali_feed.feed.machine import Machine, slab_bytes
from dali_feed.feed.passes import Batches, Position, Positions
from dali_feed.feed.planning import Plan, Planning
from dali_feed.feed.reading import ReadPool
from dali_feed.feed.run import EpochEnd, Gate, Pass, Supply
from dali_feed.feed.stats import Stats
from dali_feed.feed.window import MeanSize, WindowSource, window_memory
from dali_feed.options import BadRecords, Decode, Tuning
from dali_feed.plan import state as states
from dali_feed.plan.batching import MAX_EPOCH, Shares, check_epoch
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.order import Windowed
from dali_feed.plan.state import progress
from dali_feed.records.source import Int64s, Snapshot

log = logging.getLogger("dali_feed")

Place = tuple[int, int]  # an epoch, and the samples of each lane that have been given


class Epochs(Positions):
    """Epochs of a bounded source: `planning` says what they hold, and `Positions` what its methods are for."""

    def __init__(self, source: Any, planning: Planning, machine: Machine, ranks: Shares, bad: BadRecords) -> None:
        super().__init__(machine, ranks, bad)
        self._planning = planning
        self._source = source
        self._position = Position()
        self._stands: Place | None = None  # where the pass goes on, if the loop has taken all before
        self._all_taken, self._last = False, -1  # whether all batches of the epoch under way have been taken; which one
        self._wanted: int | None = None  # the next epoch, where the user has said it while one was under way
        self._dropped: object = None  # the newest iterator's token, if that is gone
        self._placing = _Placing()

    @property
    def planning(self) -> Planning:
        """What epochs hold. ClosedError or ConfigError where the source would have to be looked at and must not be."""
        if not self._planning.looked:
            self.check_open()
        return self._planning

    def wait_at_most(self, seconds: float) -> None:
        self._planning.patience = seconds

    @property
    def shares(self) -> Shares:
        """See `Positions.shares`: with as many lanes as the records, or a state, say where nobody did."""
        return self.planning.shares

    @property
    def plan(self) -> Plan:
        """Which sample comes in which slot of the epoch that the loop is in."""
        return self.planning.plan(self.epoch)

    @property
    def epoch(self) -> int:
        return self._position.epoch

    @property
    def _under_way(self) -> bool:
        """Whether an iterator may still give batches."""
        return self._token is not None and self._token is not self._dropped

    def count(self) -> int:
        return self.planning.count(self.epoch)

    def left(self, *, of_next: bool = False) -> int:
        at, planning = self._position, self.planning
        epoch, consumed = at.place if self._under_way and not of_next else at.next
        if of_next and self._wanted not in (None, epoch):
            consumed = 0
        plan = planning.known(epoch)
        if plan is None and planning.measured and not consumed:
            return planning.count(epoch)
        if plan is None:  # a sampler is not asked for an epoch before that begins: all of its epochs are as long
            mixes = planning.snapshot.mix is not None
            plan = planning.foreseen(epoch) if mixes else planning.plan(at.epoch)
        return len(planning.counts_of(plan, consumed))

    def at_end(self) -> bool:
        at = self._position
        return not self._under_way and at.pending and at.consumed > 0 and not self.left()

    def last_step(self) -> tuple[int, int, int] | None:
        plan = self.plan
        samples, tail = self.shares.last_step(plan.lane_length)
        if self.planning.drop_last:
            return samples, 0, tail
        if isinstance(plan, MixedPlan) or (plan.mixes and plan.repeats):
            return None
        return samples, plan.repeats, tail

    # Where the next epoch begins.

    def begin(self) -> Batches:
        """The batches of the next epoch, or the rest of the one that a loaded state is in."""
        self.leave()
        with self._newest() as (token, under_way):
            place, run = self._position.place, under_way  # of this token: who moves the position ends that
            if run is not None and not run.request(place[0]):  # it has failed ahead of its time
                self._close(run)
                run = None
            if run is None:
                self._wait()
                run = self._begin(self._new_pass(*place), token)
            return Batches(self, run, token, self.planning.counts(*place))

    def _stays(self) -> bool:
        stands, self._stands = self._stands, None  # if an interrupt comes from here on the pass is no use any more
        self._all_taken = False
        return stands == self._position.place

    def _new_pass(self, epoch: int, consumed: int) -> Pass:
        """A pass that begins there."""
        planning, machine, gate = self.planning, self._machine, Gate(epoch)
        check_memory(machine.tuning, planning, planning.plan(epoch))
        pool = machine.reading(planning.snapshot)
        engine = machine.engaged(self)
        supply = EpochSupply(planning, machine, self._bad, pool, gate, epoch=epoch, consumed=consumed)
        return Pass(machine, engine, supply, gate, len(planning.shares.mine))

    def leave(self) -> None:
        """The epoch under way is over, and the position is where the next one begins."""
        with self._lock:
            epoch, self._wanted = self._wanted, None
            if epoch is not None:
                self._go_to(epoch)
            self._position.leave()
        self._settle()

    def skip(self) -> None:
        """The epoch of which a batch was taken is over, even if that was only a look at the data."""
        with self._lock:
            self._position.skip()
        self._settle()

    def set_epoch(self, epoch: int) -> None:
        """The next epoch is that one; one that is under way goes on."""
        with self._lock:
            self._wanted = check_epoch(epoch)
            if self._under_way:
                return
            self._wanted = None
            changed = self._go_to(epoch)
        if changed:
            self._settle()

    def follow(self) -> None:
        epoch = self._planning.sampler_epoch.news()
        if epoch is not None:
            self.set_epoch(epoch)

    def _go_to(self, epoch: int) -> bool:
        """The next epoch is that one; False where it is already. Under the lock."""
        return self._position.set_epoch(epoch)

    def _settle(self) -> None:
        """The epoch under way is over; the pass stays where it goes on exactly where the next one begins."""
        with self._lock:
            run, at, self._token = self.run, self._position, None
            if run is not None and self._all_taken and run.ended_epoch >= self._last:
                self._stands = self._last + 1, 0
            stays = run is not None and not run.gate.over and at.fresh and self._stands == at.place
        if not stays:
            self.end()

    # What the iterator reports.

    def took(self, token: object, batch: Batch, count: int, *, last: bool) -> bool:
        with self._lock:
            self.check(token)
            self._position.took(count, last=last)
            self._all_taken, self._last = last, self.epoch
        self._machine.meter.hand_over(self._samples(batch))
        return True

    def _samples(self, batch: Any) -> int:
        """How many are in a batch."""
        return len(batch)

    def ended(self, token: object) -> None:
        """See `Positions.ended`: the pass goes on with the next epoch, or has ended."""
        with self._lock:
            self.check(token)  # another thread may have loaded a state, which this must not move
            self._stands = self.epoch + 1, 0
            self._all_taken, self._token = False, None
            self._position.ended()
            epoch, self._wanted = self._wanted, None
            if epoch is not None:
                self._go_to(epoch)
        self._settle()

    def failed(self, token: object) -> None:
        with self._lock:
            if token is not self._token:  # else another thread has ended it, and a newer pass may be under way
                return
            self._position.failed()
        self.end()

    def dropped(self, token: object, run: Pass) -> None:
        """See `Positions.dropped`: the pass is of no use any more, unless all of its epoch has been given."""
        if token is self._token and self.here:
            self._dropped = token
            if not self._all_taken:
                run.drop()

    # State.

    def at(self) -> Place:
        return self._position.place

    def state(self, at: Place) -> dict[str, Any]:
        (epoch, consumed), planning = at, self.planning
        own = planning.made_for(epoch, self._decode)
        planning.tell_world_sizes()
        position = {"epoch": epoch, "consumed": consumed, "source": states.source_of(planning.snapshot)}
        if (order := planning.order_state(epoch)) is not None:
            position["order"] = order
        return states.pack(own, self._info, **position)

    @property
    def _decode(self) -> Decode | None:
        """How images are decoded; None where another loader makes them."""
        return self._machine.decode

    @property
    def _info(self) -> dict[str, Any]:
        """What a state names for people alone."""
        machine, ranks = self._machine, self.ranks
        who = {"world_size": ranks.world_size, "batch_size": ranks.batch_size}
        return {"engine": machine.program.engine, **machine.decode.informing, **who}

    def restore(self, state: Any) -> None:
        checked = states.check(state)
        planning = self.planning.restored(checked, self._decode)
        with self._lock:
            self._token = None
            self._planning, self._wanted = planning, None
            self._position.go_to(checked["epoch"], checked["consumed"])
        self.end()

    def commit(self) -> None:
        """See `Positions.commit`: where the source can, on rank 0; any failure is one warning in the log."""
        if self.ranks.rank or not self._source.commits:
            return
        try:
            self._source.commit(_progress(self.planning, self._position))
        except Exception as error:  # noqa: BLE001  a figure for lag tools must not end a training
            what = str(error)  # a record in a log must not keep the frames, and the connection, alive
            log.warning("commit: %s. The training goes on; its checkpoints own the position", what)

    def stats(self) -> Stats:
        return self._placing.placed(super().stats(), self._planning, self._position)

    def describe(self) -> str:
        return self.planning.describe(self.epoch, self._machine.describe_engine())

    def _end_all(self) -> None:
        self._planning.close()  # first: who begins a pass may wait for what the source holds
        super()._end_all()


# How far the loop is in each partition: told to a group, for lag tools, and to whoever asks for stats.
#
# The law: only the checkpoint's position is ever gone on from. What is published here is for people who watch, and
# where it cannot be published the training goes on.


COST = 20  # times what it takes


def _progress(planning: Planning, at: Position) -> Int64s:
    left = bool(planning.counts(at.epoch, at.consumed))
    return progress(planning.snapshot, planning.plan(at.epoch), at.epoch, at.consumed, left=left)


class _Placing:
    """Says in stats where the loop stands. For a large topic that takes a tenth of a second, so it is worked out anew
    only where that is a twentieth of the time since the last at most; nothing is planned, or looked at, for it.
    """

    def __init__(self) -> None:
        self._known: tuple[Plan | None, dict[int, int]] | None = None
        self._again = 0.0

    def placed(self, stats: Stats, planning: Planning, at: Position) -> Stats:
        """The same, with the position in each partition, and where the snapshot ends."""
        plan = planning.known(at.epoch)
        if stats.kafka is None or (plan is None and not at.between):
            return stats
        begun, snapshot = sync.monotonic(), planning.snapshot
        if plan is None or at.between:  # the epoch before is over
            self._known = plan, dict(enumerate(snapshot.stops.tolist()))
        elif self._known is None or self._known[0] is not plan or begun >= self._again:
            reached = _progress(planning, at)
            self._known = plan, dict(enumerate(reached.tolist()))
            ended = sync.monotonic()
            self._again = ended + COST * (ended - begun)
        ours = _measured(snapshot)
        stands = {partition: position for partition, position in self._known[1].items() if partition in ours}
        ends = dict(enumerate(snapshot.stops.tolist()))
        return replace(stats, kafka=stats.kafka.at_positions(stands, ends))


def _measured(snapshot: Snapshot) -> range | set[int]:
    """The partitions that clients of a cluster read: of a source made of several those of the parts with a pin."""
    ours, first = set[int](), 0
    for part in snapshot.parts:
        if part.pin is not None:
            ours.update(range(first, first + len(part.starts)))
        first += len(part.starts)
    return ours if snapshot.parts else range(len(snapshot.starts))


# What a pass over epochs is fed with: lanes that read ahead by the plan, one epoch behind the other.
#
# The law: of an epoch that the training loop has not asked for no more is done than this: `prefetch` batches, and the
# windows that those need, one of each lane at least, in the memory that the epoch before has given back. Nothing of it
# is counted, written as a dead letter or reported as an error.


SHOWN = 3  # reads that a message names


@dataclass(slots=True)
class OpenEpoch:
    """An epoch whose lanes are open: batch k takes `counts[k]` slots of every lane.

    narrow  whether its reads go no further than the first windows
    dealt   chunks that its lanes had dealt when its reads were looked at
    """

    course: Course
    lanes: Sequence[Lane | MixedLane | DirectLanes]
    counts: Sequence[int]
    sizes: MeanSize
    narrow: bool
    flown: int = 0
    dealt: int = 0

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

    What its methods are for says `Supply`. Raises, where it is made, what the plan of the epoch raises, and ConfigError
    where its windows need more memory.
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
            if self._may_read_on(now):
                self._try_read_ahead(now)
            if self._fails or not all(strand.all_read for strand in now.strands):
                return self._fails
        return all(lane.ready(now.counts[now.flown]) for lane in now.lanes)

    def take(self) -> tuple[Course, list[Piece]] | EpochEnd | None:
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
        self._read_on(now)
        with self.machine.meter.at("source"):
            for lane in now.lanes:
                known = bool(now.sizes)
                lane.wait(count)
                if not known and now.sizes:
                    self._read_ahead(now)
        self._read_on(now)  # a chunk that came makes room for another before its batches are handed over
        pieces = [piece for lane in now.lanes for piece in lane.take(count)]
        now.flown += 1
        if 2 * now.flown >= len(now.counts) and self._goes_on():
            self._planning.ahead(now.epoch + 1)
        return pieces

    # Reads.

    def _may_read_on(self, now: OpenEpoch) -> bool:
        """Whether more reads may be asked for than at the last look, which this is."""
        dealt = sum(lane.dealt for lane in now.lanes)
        more = self._look or dealt != now.dealt
        self._look, now.dealt = False, dealt
        return more

    def _read_on(self, now: OpenEpoch) -> None:
        """Request the reads that may be asked for now."""
        if self._may_read_on(now) or (now.narrow and now.epoch <= self._gate.requested):
            self._read_ahead(now)

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
        self._pool.halt()

    def resume(self, seconds: float) -> None:
        self._pool.resume(seconds)

    def release(self) -> None:
        for opened in list(self._open):
            self.end(opened.epoch)
        self._now = self._next = None

    def at_work(self) -> str:
        """The work of each reader thread, the longest first."""
        reads = []
        for task, since, trouble in sorted(self._pool.doing(), key=lambda read: read[1]):
            first = self.machine.where(int(task.extents[:1].ids()[0]))
            more = f", {trouble}" if trouble else ""
            records, seconds = task.extents.positions, sync.monotonic() - since
            reads.append(f"{records} records from {first} ({seconds:.0f} s{more})")
        more = f", and {len(reads) - SHOWN} more" if len(reads) > SHOWN else ""
        return f"source: {self.source} is being read: {'; '.join(reads[:SHOWN]) or 'nothing'}{more}"
