"""Where passes begin: the one that the training loop asks for, and the one behind it before it is asked for.

The law: whatever is begun ahead gives the batches that it would give if it were begun later. A sampler is asked for an
epoch's order when that epoch begins, for it may have a state of its own: so nothing is begun ahead of one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from dali_feed.feed.beside import Companions
from dali_feed.feed.epoch import EpochRun, Stretch
from dali_feed.feed.exits import Closes
from dali_feed.feed.machine import Machine
from dali_feed.feed.memory import check_memory
from dali_feed.feed.planning import Planning
from dali_feed.feed.setting import EpochSetting
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.order import EpochPlan
from dali_feed.plan.shares import MAX_EPOCH, Shares
from dali_feed.quarantine.budget import Quarantine
from dali_feed.records.source import Source, unpack_id

__all__ = ["Begins"]


@dataclass(frozen=True, slots=True)
class Begins:
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
        """A pass from where `consumed` of each lane have been given. Errors of `check_memory`, and of a source."""
        self._check(self.planning.plan(epoch))

        def stretch() -> Stretch:
            return self._stretch(setting, self.planning.plan(epoch), epoch, consumed)

        setting = self._setting(epoch)
        return EpochRun(setting, epoch, len(self.shares.mine), stretch, following=self._following(epoch + 1))

    def behind(self, before: EpochRun, epoch: int) -> EpochRun:
        """The whole pass of that epoch, begun by the thread of the pass `before`. Nothing is waited for here."""
        setting = replace(self._setting(epoch), sizes=before.setting.sizes.anew())
        planned = threading.Event()

        def stretch() -> Stretch:
            plan = self.planning.foreseen(epoch)
            self._check(plan)
            return self._stretch(setting, plan, epoch, 0)

        run = EpochRun(
            setting,
            epoch,
            len(self.shares.mine),
            stretch,
            following=self._following(epoch + 1),
            behind=before,
            planned=planned,
        )
        self.planning.ahead(epoch).then(planned.set)
        return run

    def _following(self, epoch: int) -> _Following | None:
        """None where a sampler gives the order, and where two plans would take much memory."""
        planning, tuning = self.planning, self.tuning
        fits = epoch < MAX_EPOCH and planning.plan_bytes <= tuning.memory_bytes
        return _Following(self, epoch) if tuning.next_epoch and not planning.sampled and fits else None

    def _check(self, plan: EpochPlan | MixedPlan) -> None:
        check_memory(self.tuning, self.shares, windows=self.planning.windows, lane_length=plan.lane_length)

    def _setting(self, epoch: int) -> EpochSetting:
        planning = self.planning
        return self.machine.setting(
            planning.snapshot, planning.seed, epoch, owner=self.owner, where=self._where, companions=self.companions
        )

    def _stretch(self, setting: EpochSetting, plan: EpochPlan | MixedPlan, epoch: int, consumed: int) -> Stretch:
        mine = self.shares.mine
        return Stretch(
            self.machine.lanes(setting, plan, mine, consumed),
            self.planning.counts_of(plan, consumed),
            Quarantine(self.bad, plan.lane_length * len(mine)),
        )

    def _where(self, sample: int) -> str:
        return self.source.where(*unpack_id(sample))


@dataclass(frozen=True, slots=True)
class _Following:
    """The pass of that epoch."""

    begins: Begins
    epoch: int

    def prepare(self) -> None:
        """Its plan is begun."""
        self.begins.planning.ahead(self.epoch)

    def begin(self, behind: EpochRun) -> EpochRun:
        """Behind that one."""
        return self.begins.behind(behind, self.epoch)
