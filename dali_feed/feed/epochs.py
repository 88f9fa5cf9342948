"""The epochs of a source that ends: where the loop is in them, and the pass that gives their batches.

The law: one pass is under way at most. Where the next epoch begins exactly where that pass stands, it goes on with it;
otherwise nothing of it is left.
"""

from __future__ import annotations

from typing import Any

from dali_feed.feed.batch import Batch
from dali_feed.feed.commit import Placing, commit, progress
from dali_feed.feed.describe import described, running
from dali_feed.feed.epoch_supply import EpochSupply, check_memory
from dali_feed.feed.machine import Machine
from dali_feed.feed.passes import Batches, Life, Positions
from dali_feed.feed.planning import Plan, Planning
from dali_feed.feed.run import Gate, Pass
from dali_feed.feed.stats import Stats
from dali_feed.options import BadRecords, Decode
from dali_feed.plan import state as states
from dali_feed.plan.batching import MAX_EPOCH, Shares, check_epoch
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.state import Position

Place = tuple[int, int]  # an epoch, and the samples of each lane that have been given


class Epochs(Positions):
    """Epochs of a bounded source: `planning` says what they hold."""

    def __init__(
        self, source: Any, planning: Planning, machine: Machine, ranks: Shares, bad: BadRecords, life: Life
    ) -> None:
        super().__init__(machine, ranks, bad, life)
        self.planning = planning
        self._source = source
        self._position = Position()
        self._stands: Place | None = None  # where the pass goes on, if the loop has taken all before
        self._given, self._last = False, -1  # whether all batches of the epoch under way have been taken; which one
        self._wanted: int | None = None  # the next epoch, where the user has said it while one was under way
        self._dropped: object = None  # the newest iterator's token, if that is gone
        self._placing = Placing()

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
        plan = planning.made(epoch)
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
        at, run = self._position, self.run
        self._stands = None  # if an interrupt comes from here on the pass is no use any more
        if run is not None and not run.request(at.epoch):  # it has failed ahead of its time
            self.end()
            run = None
        if run is None:
            self._wait()
            run = self._start(at.epoch, at.consumed, owner)
        self._given = False
        return self._iterator(owner, run, self.planning.counts(*at.place))

    def _start(self, epoch: int, consumed: int, owner: Any) -> Pass:
        """A pass that begins there: known here before its thread runs, so that no interrupt leaves one to itself."""
        planning, machine, gate = self.planning, self._machine, Gate(epoch)
        check_memory(machine.tuning, planning, planning.plan(epoch))
        pool = machine.reading(planning.snapshot)
        setting = machine.setting(planning.snapshot.source, owner, len(planning.shares.mine))
        supply = EpochSupply(planning, machine, self._bad, setting, pool, gate, epoch=epoch, consumed=consumed)
        return self._begin(Pass(setting, supply, gate))

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
            if run is not None and self._given and run.ended_epoch >= self._last:
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
            self._given, self._last = last, self.epoch
        self._machine.meter.given(self._samples(batch))
        return True

    def _samples(self, batch: Any) -> int:
        """How many are in a batch."""
        return len(batch)

    def ended(self, token: object) -> None:
        """See `Positions.ended`: the pass goes on with the next epoch, or has ended."""
        with self._lock:
            self.check(token)  # another thread may have loaded a state, which this must not move
            self._stands = self.epoch + 1, 0
            self._given, self._token = False, None
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
        if token is self._token and self._life.here:
            self._dropped = token
            if not self._given:
                run.drop()

    # State.

    def at(self) -> Place:
        """See `Positions.at`."""
        return self._position.place

    def state(self, at: Place) -> dict[str, Any]:
        """See `Positions.state`."""
        (epoch, consumed), planning = at, self.planning
        made = planning.made_for(epoch, self._decode)
        planning.tell_world_sizes()
        order = planning.order_state(epoch)
        return states.pack(made, planning.snapshot, epoch=epoch, consumed=consumed, info=self._info, order=order)

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
        checked = states.check(state, MAX_EPOCH)
        planning = self.planning.restored(checked, self._decode)
        with self._lock:
            self._token = None
            self.planning, self._wanted = planning, None
            self._position.go_to(checked["epoch"], checked["consumed"])
        self.end()

    def commit(self) -> None:
        """See `Positions.commit`."""
        at, planning = self._position, self.planning
        commit(
            self._source,
            self._ranks.rank,
            lambda: progress(planning.snapshot, self.plan, at, left=bool(planning.counts(at.epoch, at.consumed))),
        )

    def placed(self, stats: Stats) -> Stats:
        """See `Positions.placed`."""
        return self._placing.placed(stats, self.planning, self._position)

    def describe(self) -> str:
        """See `Positions.describe`."""
        planning, machine = self.planning, self._machine
        return described(
            planning.snapshot,
            planning.order,
            self.shares,
            sampled=planning.sampled,
            window=planning.window_samples,
            batches=self.count(),
            engine=running(machine.program.engine, machine.device, machine.program.recipe),
            epoch=self.epoch,
        )

    def close(self) -> None:
        """See `Positions.close`."""
        self.end()
        self.planning.close()
        super().close()
