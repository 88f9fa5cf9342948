"""The epochs of a source that ends: where the loop is in them, and the pass that gives their batches.

The law: one pass is under way at most. Where the next epoch begins exactly where that pass stands, it goes on with it;
otherwise nothing of it is left.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from dali_feed import sync
from dali_feed.feed.batch import Batch
from dali_feed.feed.epoch_supply import EpochSupply, check_memory
from dali_feed.feed.machine import Machine
from dali_feed.feed.passes import Batches, Positions
from dali_feed.feed.planning import Plan, Planning
from dali_feed.feed.run import Gate, Pass
from dali_feed.feed.stats import Stats
from dali_feed.options import BadRecords, Decode
from dali_feed.plan import state as states
from dali_feed.plan.batching import Shares, check_epoch
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.state import Position, progress
from dali_feed.records.source import Int64s, Snapshot

log = logging.getLogger("dali_feed")

Place = tuple[int, int]  # an epoch, and the samples of each lane that have been given


class Epochs(Positions):
    """Epochs of a bounded source: `planning` says what they hold."""

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
        """See `Positions.wait_at_most`."""
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
        """See `Positions.epoch`."""
        return self._position.epoch

    @property
    def _under_way(self) -> bool:
        """Whether an iterator may still give batches."""
        return self._token is not None and self._token is not self._dropped

    def count(self) -> int:
        """See `Positions.count`."""
        return len(self.planning.counts(self.epoch))

    def left(self) -> int:
        """See `Positions.left`."""
        at, planning = self._position, self.planning
        epoch, consumed = at.place if self._under_way else at.next
        plan = planning.known(epoch)
        if plan is None:  # a sampler is not asked for an epoch before that begins: all of its epochs are as long
            mixes = planning.snapshot.mix is not None
            plan = planning.foreseen(epoch) if mixes else planning.plan(at.epoch)
        return len(planning.counts_of(plan, consumed))

    def at_end(self) -> bool:
        """See `Feed.at_end`."""
        at = self._position
        return not self._under_way and at.pending and at.consumed > 0 and not self.left()

    def last_step(self) -> tuple[int, int, int] | None:
        """See `Feed.last_step`."""
        plan = self.plan
        samples, tail = self.shares.last_step(plan.lane_length)
        if self.planning.drop_last:
            return samples, 0, tail
        if isinstance(plan, MixedPlan) or (plan.mixes and plan.repeats):
            return None
        return samples, plan.repeats, tail

    # Where the next epoch begins.

    def begin(self, owner: Any) -> Batches:
        """The batches of the next epoch, or the rest of the one that a loaded state is in."""
        self.leave()
        with self._newest() as (token, under_way):
            place, run = self._position.place, under_way  # of this token: who moves the position ends that
            if run is not None and not run.request(place[0]):  # it has failed ahead of its time
                self._close(run)
                run = None
            if run is None:
                self._wait()
                run = self._begin(self._new_pass(*place, owner), token)
            return Batches(owner, self, run, token, self.planning.counts(*place))

    def _stays(self) -> bool:
        """See `Positions._stays`."""
        stands, self._stands = self._stands, None  # if an interrupt comes from here on the pass is no use any more
        self._all_taken = False
        return stands == self._position.place

    def _new_pass(self, epoch: int, consumed: int, owner: Any) -> Pass:
        """A pass that begins there."""
        planning, machine, gate = self.planning, self._machine, Gate(epoch)
        check_memory(machine.tuning, planning, planning.plan(epoch))
        pool = machine.reading(planning.snapshot)
        engine = machine.engaged(owner)
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
        """See `Positions.took`."""
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
        """See `Positions.failed`."""
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
        """See `Positions.at`."""
        return self._position.place

    def state(self, at: Place) -> dict[str, Any]:
        """See `Positions.state`."""
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
        machine, ranks = self._machine, self._ranks
        who = {"world_size": ranks.world_size, "batch_size": ranks.batch_size}
        return {"engine": machine.program.engine, **machine.decode.informing, **who}

    def restore(self, state: Any) -> None:
        """See `Positions.restore`."""
        checked = states.check(state)
        planning = self.planning.restored(checked, self._decode)
        with self._lock:
            self._token = None
            self._planning, self._wanted = planning, None
            self._position.go_to(checked["epoch"], checked["consumed"])
        self.end()

    def commit(self) -> None:
        """See `Positions.commit`: where the source can, on rank 0; any failure is one warning in the log."""
        if self._ranks.rank or not self._source.commits:
            return
        try:
            self._source.commit(_progress(self.planning, self._position))
        except Exception as error:  # noqa: BLE001  a figure for lag tools must not end a training
            what = str(error)  # a record in a log must not keep the frames, and the connection, alive
            log.warning("commit: %s. The training goes on; its checkpoints own the position", what)

    def placed(self, stats: Stats) -> Stats:
        """See `Positions.placed`."""
        return self._placing.placed(stats, self._planning, self._position)

    def describe(self) -> str:
        """See `Positions.describe`."""
        return self.planning.describe(self.epoch, self._machine.describe_engine())

    def close(self) -> None:
        """See `Positions.close`."""
        self._planning.close()  # first: who begins a pass may wait for what the source holds
        self.end()
        super().close()


# How far the loop is in each partition: told to a group, for lag tools, and to whoever asks for stats.
#
# The law: only the checkpoint's position is ever gone on from. What is published here is for people who watch, and
# where it cannot be published the training goes on.


COST = 20  # times what it takes


def _progress(planning: Planning, at: Position) -> Int64s:
    left = bool(planning.counts(at.epoch, at.consumed))
    return progress(planning.snapshot, planning.plan(at.epoch), at, left=left)


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
