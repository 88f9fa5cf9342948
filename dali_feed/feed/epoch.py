"""One pass over an epoch: lanes that read ahead by its plan, and batches of known sizes.

The law: a pass that is begun before the training loop asks for it counts nothing, writes no dead letter and reports no
error: where it finds something to count it waits, and one that fails is dropped and begun again in its time. It makes
`prefetch` batches and reads the windows that those need, one of each lane at least, in the memory that the pass before
has given back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dali_feed import sync
from dali_feed.bad_records import Quarantine
from dali_feed.errors import ClosedError
from dali_feed.feed.batch import Companions
from dali_feed.feed.exits import Closes
from dali_feed.feed.lane import Lane, MixedLane, Piece
from dali_feed.feed.machine import Machine, check_memory
from dali_feed.feed.planning import Plan, Planning
from dali_feed.feed.run import EpochSetting, FeedRun, reads
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan.batching import MAX_EPOCH, Shares
from dali_feed.records.source import Source, unpack_id

__all__ = ["EpochRun", "Epochs"]


@dataclass(frozen=True, slots=True)
class Epochs:
    """Begins passes over one planning's epochs. `owner` is what is closed at the interpreter's end."""

    source: Source
    planning: Planning
    machine: Machine
    shares: Shares
    tuning: Tuning
    bad: BadRecords
    companions: Companions
    owner: Closes

    def run(self, epoch: int, consumed: int = 0) -> EpochRun:
        """A pass from where `consumed` of each lane have been given. Raises as `check`, and what a source raises."""
        self.check(self.planning.plan(epoch))
        return EpochRun(self, self._setting(epoch), epoch, consumed)

    def behind(self, before: EpochRun) -> EpochRun:
        """The whole next epoch's pass, fed by the thread of the pass `before`. Nothing is waited for here."""
        epoch = before.epoch + 1
        setting = replace(self._setting(epoch), sizes=before.setting.sizes.anew())
        return EpochRun(self, setting, epoch, before=before)

    def goes_on(self, epoch: int) -> bool:
        """Whether that epoch's pass may be begun ahead: not where a sampler gives the order, or plans take much."""
        planning, tuning = self.planning, self.tuning
        fits = epoch < MAX_EPOCH and planning.plan_bytes <= tuning.memory_bytes
        return tuning.next_epoch and not planning.sampled and fits

    def check(self, plan: Plan) -> None:
        """Raise ConfigError where the memory is too small for the windows of that plan."""
        check_memory(self.tuning, self.shares, windows=self.planning.windows, lane_length=plan.lane_length)

    def _setting(self, epoch: int) -> EpochSetting:
        planning = self.planning
        return self.machine.setting(
            planning.snapshot, planning.seed, epoch, owner=self.owner, where=self._where, companions=self.companions
        )

    def _where(self, sample: int) -> str:
        return self.source.where(*unpack_id(sample))


class EpochRun(FeedRun):
    """An iterator over the batches of an epoch: batch k takes counts[k] slots of every lane.

    Args:
        epochs: what begins it, and the pass behind it.
        setting: what it works with.
        epoch: whose it is.
        consumed: samples of each lane that have been given.
        before: the pass whose thread feeds this one too; its plan is then made ahead, in a thread of its own.
    """

    setting: EpochSetting

    def __init__(
        self, epochs: Epochs, setting: EpochSetting, epoch: int, consumed: int = 0, before: EpochRun | None = None
    ) -> None:
        self.epoch, self.setting = epoch, setting
        self._epochs, self._consumed = epochs, consumed
        self._goes_on = epochs.goes_on(epoch + 1)
        self._lanes: Sequence[Lane | MixedLane] = ()
        self._counts: Sequence[int] = ()
        self._flown = 0
        self._opened = False
        self._look_ahead = True  # reads may be asked for since the last look
        self._narrow = before is not None  # reads go no further than the first windows
        self._wanted = before is None  # by the training loop
        self._certain = sync.Event()  # that it is wanted, or that it has been closed
        self._planned: sync.Event | None = None  # set when the plan need not be waited for
        self._holds = False
        self.well = False  # it came to a good end, and all its batches are there
        self._wrong: BaseException | None = None  # what was found while the pass before was still fed
        if before is None:
            self._certain.set()
            self._open()
        else:
            planned = self._planned = sync.Event()
            epochs.planning.ahead(epoch).add_done_callback(lambda _: planned.set())
        super().__init__(setting, len(epochs.shares.mine), behind=before)

    def _open(self) -> None:
        epochs, planning = self._epochs, self._epochs.planning
        if self._planned is None:
            plan = planning.plan(self.epoch)
        else:
            plan = planning.foreseen(self.epoch)
            epochs.check(plan)
        mine = epochs.shares.mine
        self._lanes = epochs.machine.lanes(self.setting, plan, mine, self._consumed)
        self._counts = planning.counts_of(plan, self._consumed)
        self._quarantine = Quarantine(epochs.bad, plan.lane_length * len(mine))
        self._opened = True

    # Of passes that follow each other, for the training loop's thread.

    def hand_on(self) -> EpochRun | None:
        """The pass begun behind this one, where all of this one went well; its batches must have been taken."""
        self._ended = True
        return self.next if self.well and isinstance(self.next, EpochRun) else None

    def want(self) -> bool:
        """From here on it counts; False where it has failed ahead of its time, and is to be begun again."""
        with self._lock:
            if self._wrong is not None or self._ended:
                return False
            self._wanted = True
        self._certain.set()
        return True

    def _end(self) -> None:
        super()._end()
        self._certain.set()
        if self._planned is not None:
            self._planned.set()

    # For the thread that feeds.

    def _halt(self) -> None:
        self.setting.pool.halt()

    def _resume(self) -> None:
        self.setting.pool.resume()

    def _source(self) -> str:
        return reads(self.setting)

    @property
    def rests(self) -> bool:
        """Whether all has been done that may be done before the training loop asks for it."""
        return self._holds or self._wrong is not None

    def _hold(self) -> None:
        self._holds = not self._certain.is_set()
        with self.setting.meter.at("rest"):
            self._certain.wait()
        self._holds = False
        self._check_open()

    def _check_open(self) -> None:
        if self._ended:
            msg = "pass: closed before it was asked for"
            raise ClosedError(msg)

    def _last(self, item: BaseException | None) -> None:
        with self._lock:
            if item is not None and not self._wanted:
                self._wrong = self._wrong or item
                return
            self.well = item is None
        super()._last(item)

    def _feed(self) -> BaseException | None:
        self.setting.engine.enter()
        self.setting.meter.clock()  # runs from here on
        wrong = self._wrong or self._fly_all()
        while self._flying:
            if wrong is not None or not self._flies_next():
                self._land()  # an error ends the pass: no later batch may come in this one's place
        if wrong is None:
            self._finish()
        return wrong

    def _fly_all(self) -> BaseException | None:
        """Fly every batch; an error that ends the pass early is returned."""
        if not self._opened:
            if self._planned is not None:
                with self.setting.meter.at("rest"):
                    self._planned.wait()
            self._check_open()
            try:
                self._open()
            except Exception as error:  # noqa: BLE001  whatever it is, it is met again where the pass is asked for
                return error
        while self._flown < len(self._counts):
            if self._flown >= self.setting.prefetch:
                self._settle()
            self._make_room(self._counts[self._flown])
            try:
                self._fly()
            except Exception as error:  # noqa: BLE001  whatever it is, the trainer must see it, and in its place
                error.add_note("Stage: feed")
                return error
        self._settle()
        self._look_beyond()
        return None

    def _settle(self) -> None:
        """Of a pass that is not wanted yet no more is done than this."""
        if not self._certain.is_set():
            while self._flying:
                self._land()
            self._hold()

    def _make_room(self, count: int) -> None:
        """Hand over finished batches until the next one can be filled and submitted without delaying any."""
        while self._flying:
            full = len(self._flying) >= self.setting.engine.depth
            if not full and all(lane.ready(count) for lane in self._lanes):
                return
            self._land()

    def _fly(self) -> None:
        count = self._counts[self._flown]
        if self._look_ahead or (self._narrow and self._wanted):
            self._look_ahead = False
            self._read_ahead()
        with self.setting.meter.at("source"):
            for lane in self._lanes:
                known = bool(self.setting.sizes)
                lane.wait(count)
                if not known and self.setting.sizes:
                    self._read_ahead()
        pieces = list[Piece]()
        for lane in self._lanes:
            dealt = lane.dealt
            pieces += lane.take(count)
            self._look_ahead |= lane.dealt > dealt
        self._start(pieces)
        self._flown += 1
        if self._goes_on and 2 * self._flown >= len(self._counts):
            self._epochs.planning.ahead(self.epoch + 1)

    def _land(self) -> None:
        flight, batch = self._landed_batch()
        went_back = 0 in [piece.chunk.window.left for piece in flight.pieces]
        self._look_ahead |= went_back
        if went_back and self.next is not None:
            self._look_beyond()
        self._hand_over(batch)

    def _strands(self) -> list[Lane]:
        return [strand for lane in self._lanes for strand in lane.strands]

    def _read_ahead(self, before: EpochRun | None = None) -> None:
        """Request reads in order of need, lane by lane in turn, as far as each lane's part of the memory allows.

        What the pass `before` still holds is taken off it. Before the first read is done only a sample of sizes is
        known: no more reads than there are readers.
        """
        strands = self._strands()
        part = self.setting.memory // len(strands)
        most = math.inf if self.setting.sizes else self.setting.readers
        self._narrow = self._narrow and not self._wanted
        others = [] if before is None else before._strands()
        held = [lane.held() for lane in others] or [0] * len(strands)
        ahead = [
            (lane, lane.reads_ahead(narrow=self._narrow), other) for lane, other in zip(strands, held, strict=True)
        ]
        while ahead:
            for turn in list(ahead):
                lane, reads, other = turn
                task = next(reads, None)
                if task is None or other + lane.held() + task.held > part:
                    ahead.remove(turn)
                else:
                    self.setting.pool.request(task)
                    most -= 1
                if most <= 0:
                    return
        self._look_beyond()

    def _release(self) -> None:
        for lane in self._lanes:
            lane.close()
        self._lanes = ()

    # What is done for the next pass while this one is fed.

    def _look_beyond(self) -> None:
        """Where all reads have been asked for: ask for the first of the next pass."""
        if not self._goes_on or not self._wanted or not all(strand.all_asked for strand in self._strands()):
            return
        if self.next is None:
            behind = self._epochs.behind(self)
            with self._lock:
                if self._ended:
                    return
                self.next = behind
        if isinstance(self.next, EpochRun):
            self.next._read_first(self)

    def _read_first(self, before: EpochRun) -> None:
        there = self._opened or self._planned is None or self._planned.is_set()
        if self._wrong is not None or self._ended or not there:
            return
        try:
            if not self._opened:
                self._open()
            self._read_ahead(before)
        except Exception as error:  # noqa: BLE001  whatever it is, it is none of the pass before
            self._wrong = error

    def _flies_next(self) -> bool:
        """Whether a batch of the next pass could be begun behind those that are still in flight."""
        self._look_beyond()
        return isinstance(self.next, EpochRun) and self.next._flies_beside(len(self._flying))

    def _flies_beside(self, others: int) -> bool:
        """Fly a batch behind so many others of the pass before, where that waits for nothing."""
        full = others + len(self._flying) >= self.setting.engine.depth
        if full or self._wrong is not None or self._flown >= min(self.setting.prefetch, len(self._counts)):
            return False
        count = self._counts[self._flown]
        try:
            if not all(strand.all_read for strand in self._strands()) or not all(
                lane.ready(count) for lane in self._lanes
            ):
                return False
            self._fly()
        except Exception as error:  # noqa: BLE001  whatever it is, it is none of the pass before
            error.add_note("Stage: feed")
            self._wrong = error
            return False
        return True
