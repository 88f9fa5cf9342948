"""Where passes begin: the one that the training loop asks for, and the one behind it before it is asked for.

The law: whatever is begun ahead gives the batches that it would give if it were begun later. A sampler is asked for an
epoch's order when that epoch begins, for it may have a state of its own: so nothing is begun ahead of one.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.bad_records import Quarantine
from dali_feed.draws import check_seed
from dali_feed.errors import ConfigError
from dali_feed.feed.batch import Companions
from dali_feed.feed.describe import warn_of_holes
from dali_feed.feed.epoch import EpochRun, Stretch
from dali_feed.feed.exits import Closes
from dali_feed.feed.machine import Machine, check_memory
from dali_feed.feed.run import EpochSetting
from dali_feed.options import BadRecords, Decode, Tuning
from dali_feed.plan import state as states
from dali_feed.plan.batching import MAX_EPOCH, Shares, check_shuffle, digest_of, indices_of
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.order import EpochPlan, Order, Shuffle, resolve
from dali_feed.records.source import Snapshot, Source, lacking, unpack_id

__all__ = ["Begins", "Planning", "check_order"]


# A value that is made in a thread of its own: what takes seconds is there when it is asked for.


T = TypeVar("T")


class Later(Generic[T]):
    """Begun when it is made. None in place of a value that could not be made: who needs it meets the error himself."""

    def __init__(self, make: Callable[[], T], name: str) -> None:
        self._make = make
        self._value: T | None = None
        self._done = threading.Event()
        self._then = list[Callable[[], None]]()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system gives no more threads
            self._finish()

    def _run(self) -> None:
        try:
            self._value = self._make()
        except Exception:  # noqa: BLE001, S110  it is made again where it is needed, and raises there
            pass
        finally:
            self._finish()

    def _finish(self) -> None:
        with self._lock:
            self._done.set()
        for call in self._then:
            call()

    def then(self, call: Callable[[], None]) -> None:
        """Call it when the value is there: in the thread that made it, or at once."""
        with self._lock:
            if not self._done.is_set():
                self._then.append(call)
                return
        call()

    def result(self) -> T | None:
        """The value, when it is there."""
        self._done.wait()
        return self._value

    def close(self, timeout: float = 2.0) -> None:
        """Wait up to `timeout` seconds for its thread: nothing can stop it."""
        if self._thread.ident is not None:
            self._thread.join(timeout)


# What a feed's epochs are made of: the source's snapshot, taken once, and the plan of each epoch.


def check_order(source: Source, sampler: Iterable[int] | None, *, shuffle: bool | Shuffle) -> None:
    """Raise ConfigError for an object that is no source, and for a shuffle or sampler that is not allowed."""
    missing = lacking(source)
    if missing:
        msg = (
            f"source: must be a source of dali_feed.external_sources; found {type(source).__name__}, which has no"
            f" {', '.join(missing)}. For a folder of images use FileList.from_folder(root)"
        )
        raise ConfigError(msg)
    check_shuffle(shuffle)
    if shuffle and sampler is not None:
        msg = "sampler option is mutually exclusive with shuffle"
        raise ConfigError(msg)


class Planning:
    """Answers what an epoch holds. The source is looked at, and a sampler read, when an answer needs it; then kept.

    `may_look` is called before the source is looked at, and raises where that must not be. Raises ConfigError for
    a seed that cannot be, and for a sampler's indices when they are read; a SourceError where records cannot be read.
    """

    def __init__(
        self,
        source: Source,
        shares: Shares,
        *,
        shuffle: bool | Shuffle,
        sampler: Iterable[int] | None,
        seed: int,
        drop_last: bool,
        may_look: Callable[[], None],
    ) -> None:
        self.shares, self.seed, self.drop_last = shares, check_seed(seed), bool(drop_last)
        self._source, self._shuffle, self._sampler, self._may_look = source, shuffle, sampler, may_look
        self._snapshot: Snapshot | None = None
        self._plan: EpochPlan | MixedPlan | None = None
        self._digest: str | None = None  # of what the sampler gave for that plan
        self._later: tuple[int, Later[EpochPlan | MixedPlan]] | None = None  # an epoch whose plan is being made

    @property
    def snapshot(self) -> Snapshot:
        """What the source holds, captured once."""
        if self._snapshot is None:
            self._may_look()
            self._snapshot = self._source.snapshot()
            if self._snapshot.mix is not None and self.sampled:
                msg = (
                    f"sampler: a mixture has an order of its own; found a sampler for {self._snapshot.source}; leave "
                    "it out"
                )
                raise ConfigError(msg)
            warn_of_holes(self._snapshot)
        return self._snapshot

    @property
    def order(self) -> Order:
        """The shuffle, with what it leaves open filled in for this source."""
        return resolve(self._shuffle, self.snapshot, sampled=self.sampled)

    @property
    def sampled(self) -> bool:
        """Whether a sampler gives the order."""
        return self._sampler is not None

    @property
    def window_samples(self) -> int:
        """Samples that a window holds at most."""
        return sum(samples for samples, _, _ in self.windows)

    @property
    def windows(self) -> list[tuple[int, int, int]]:
        """Of each window that a lane has open at once: samples at most, an extent's, and a record's bytes."""
        snapshot, order, lanes = self.snapshot, self.order, self.shares.lanes
        several = zip(snapshot.parts, order.parts, strict=True) if snapshot.mix is not None else [(snapshot, order)]
        return [
            (min(its.extent * its.window, -(-len(part) // lanes)), its.extent, part.record_bytes)
            for part, its in several
        ]

    @property
    def plan_bytes(self) -> int:
        """About what a plan takes in memory: that of millions of single records takes seconds to make, too."""
        snapshot, order = self.snapshot, self.order
        several = zip(snapshot.parts, order.parts, strict=True) if snapshot.mix is not None else [(snapshot, order)]
        return sum(32 * (len(part) // its.extent + 1) for part, its in several)

    def plan(self, epoch: int) -> EpochPlan | MixedPlan:
        """Which sample comes in which slot of that epoch."""
        if self._plan is None or self._plan.epoch != epoch:
            found = self._begun(epoch)
            if found is None:
                indices = None if self._sampler is None else indices_of(self._sampler, epoch, len(self.snapshot))
                found = self._made(epoch, indices)
                self._digest = None if indices is None else digest_of(self._sampler, indices)
            self._plan = found
        return self._plan

    def _made(self, epoch: int, indices: NDArray[np.int64] | None = None) -> EpochPlan | MixedPlan:
        lanes, drop_last, seed = self.shares.lanes, self.drop_last, self.seed
        if (mix := self.snapshot.mix) is not None:
            return MixedPlan(self.snapshot, mix, self.order, seed=seed, epoch=epoch, lanes=lanes, drop_last=drop_last)
        return EpochPlan(
            self.snapshot, self.order, seed=seed, epoch=epoch, lanes=lanes, drop_last=drop_last, indices=indices
        )

    def _begun(self, epoch: int) -> EpochPlan | MixedPlan | None:
        """The plan of an epoch that was begun ahead, when it is there."""
        later = self._later
        return later[1].result() if later is not None and later[0] == epoch else None

    def ahead(self, epoch: int) -> Later[EpochPlan | MixedPlan]:
        """The plan of a later epoch, which no sampler gives, made in a thread of its own. For any thread."""
        later = self._later
        if later is None or later[0] != epoch:
            later = self._later = epoch, Later(partial(self._made, epoch), "dali_feed-plan")
        return later[1]

    def foreseen(self, epoch: int) -> EpochPlan | MixedPlan:
        """The plan of a later epoch, which no sampler gives. For any thread."""
        return self._begun(epoch) or self._made(epoch)

    def close(self) -> None:
        """No plan is made ahead any more."""
        if self._later is not None:
            self._later[1].close()

    def made(self, epoch: int) -> EpochPlan | MixedPlan | None:
        """The plan of that epoch, where it is there already."""
        return self._plan if self._plan is not None and self._plan.epoch == epoch else None

    def counts(self, epoch: int, consumed: int = 0) -> list[int]:
        """How many slots of each lane every batch takes, from where `consumed` of a lane have been given."""
        return self.counts_of(self.plan(epoch), consumed)

    def counts_of(self, plan: EpochPlan | MixedPlan, consumed: int) -> list[int]:
        """The same of a plan."""
        return self.shares.counts(plan.lane_length - consumed, drop_last=self.drop_last)

    def made_for(self, epoch: int, decode: Decode) -> dict[str, Any]:
        """What a position in that epoch depends on: source, order, seed and so on, and how images are decoded."""
        self.plan(epoch)
        return states.made_for(
            self.snapshot,
            self.order,
            seed=self.seed,
            lanes=self.shares.lanes,
            drop_last=self.drop_last,
            sampler=self._digest,
            decode=decode,
        )

    def restored(self, state: Mapping[str, Any], decode: Decode) -> Planning:
        """The planning to go on with from `state`, on the source as it was then; this one stays as it is.

        Raises StateError that lists every difference where the state was made for something else.
        """
        found, pin = copy.copy(self), state["source"].get("pin")
        if pin is not None and (
            self._snapshot is None or self._snapshot.fingerprint != state["made_for"].get("source")
        ):
            found._snapshot, found._plan, found._later = self._source.snapshot(pin), None, None
        epoch = state["epoch"]
        made, plan = found.made_for(epoch, decode), found.plan(epoch)
        states.compare(dict(state), made, found.snapshot, plan.lane_length)
        return found


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
