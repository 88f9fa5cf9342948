"""What a feed's epochs are made of: the source's snapshot, taken once, and the plan of each epoch.

The law: a plan that is made ahead is the one that would be made later. A sampler is asked for an epoch's order when
that epoch begins, for it may have a state of its own: so nothing is made ahead of one.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import InvalidStateError
from contextlib import suppress
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed import sync
from dali_feed.draws import check_seed
from dali_feed.errors import ClosedError, ConfigError, WaitError
from dali_feed.options import Decode
from dali_feed.plan import state as states
from dali_feed.plan.batching import (
    SamplerEpoch,
    Shares,
    check_repeats,
    check_shuffle,
    digest_of,
    go_back,
    indices_of,
    length_of,
    put_back,
    read_order,
    state_of,
)
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.order import EpochPlan, Order, Shuffle, resolve, slots_of, window_sizes
from dali_feed.records.source import MANY_ABSENT, Snapshot, Source

Plan = EpochPlan | MixedPlan

log = logging.getLogger("dali_feed")


def check_order(source: Source, sampler: Iterable[int] | None, *, shuffle: bool | Shuffle) -> None:
    """Raise ConfigError for an object that is no source, and for a shuffle or sampler that is not allowed."""
    if not isinstance(source, Source):
        msg = (
            f"source: must be a source of dali_feed.external_sources; found {type(source).__name__}."
            " For a folder of images use FileList.from_folder(root)"
        )
        raise ConfigError(msg)
    check_shuffle(shuffle)
    if shuffle and sampler is not None:
        msg = "sampler option is mutually exclusive with shuffle"
        raise ConfigError(msg)


class SourceLook:
    """Takes the snapshot of a source, whose lists, indexes and footers may be far away.

    Where the loop does not wait for ever a thread takes it, and who has given up finds it at the next call. One is
    taken at a time, whatever pins are asked for.
    """

    def __init__(self, take: Callable[..., Snapshot]) -> None:
        self._take = take
        self._under_way: dict[sync.Future[Snapshot], tuple[tuple[Any, ...], sync.Thread]] = {}  # and of which pin
        self._closed = False
        self._lock = sync.RLock()  # guards both; reentrant, as a signal's handler may close a feed
        self._turn = sync.Lock()  # of the thread that takes one

    def __call__(self, seconds: float, *pin: Any) -> Snapshot:
        """What the source holds, or held by that pin. WaitError where it is not there in time; 0 waits for ever."""
        limited = 0 < seconds <= sync.TIMEOUT_MAX  # what the system cannot wait for is for ever
        if not limited and not self._under_way:
            return self._take(*pin)
        snapshot = self._begun(pin)
        try:
            snapshot.exception(seconds if limited else None)
        except TimeoutError:
            if not snapshot.done():  # it may have come just now
                name = getattr(self._take, "__self__", "")
                raise WaitError(
                    f"source: {name!r}: what it holds is still being read (its lists, indexes or footers) after "
                    f"{seconds:g} s; timeout= gives it more time"
                ) from None
        self._under_way.pop(snapshot, None)
        try:
            return snapshot.result()
        finally:
            del snapshot  # else its error would hold itself

    def _begun(self, pin: tuple[Any, ...]) -> sync.Future[Snapshot]:
        """The look under way for that pin, or a new one."""
        snapshot = sync.Future[Snapshot]()
        thread = sync.Thread(target=self._run, args=(snapshot, pin), name="dali_feed-snapshot", daemon=True)
        try:
            with self._lock:
                for other, (its, _) in list(self._under_way.items()):
                    if its == pin:
                        return other
                self._under_way[snapshot] = pin, thread
                if self._closed:  # looked at last: a signal's handler may have closed it just now
                    raise _closed()
            thread.start()
        except BaseException as error:  # the system gives no more threads, or Ctrl-C
            self._under_way.pop(snapshot, None)
            with suppress(InvalidStateError):
                snapshot.set_exception(error)
            raise
        return snapshot

    def _run(self, snapshot: sync.Future[Snapshot], pin: tuple[Any, ...]) -> None:
        with self._turn, suppress(InvalidStateError):  # closed meanwhile
            if snapshot.done():
                return
            try:
                taken = self._take(*pin)
            except BaseException as error:  # noqa: BLE001  who waits must hear of it
                snapshot.set_exception(error)
            else:
                snapshot.set_result(taken)
            finally:
                del snapshot  # else its error would hold itself

    def close(self) -> None:
        """Who waits waits no longer; threads are waited for up to a second, as nothing can stop them."""
        with self._lock:
            self._closed = True
            under_way = list(self._under_way.items())
            self._under_way.clear()
        for snapshot, _ in under_way:
            with suppress(InvalidStateError):
                snapshot.set_exception(_closed())
        for _, (_, thread) in under_way:
            if thread.is_alive():  # one that is not yet begun finds that it is closed
                thread.join(1.0 / len(under_way))


def _closed() -> ClosedError:
    return ClosedError("loader: closed while it read what its source holds")


class Planning:
    """Answers what an epoch holds. Of the source a snapshot is taken, and a sampler read, when an answer needs it.

    `take` takes it, as `Source.snapshot` does. `ranks` are the shares until its records, or a state, say how many lanes
    there are. Raises ConfigError for a seed that cannot be, and for a sampler's indices when they are read; a
    SourceError where records cannot be read.
    """

    def __init__(
        self,
        take: Callable[..., Snapshot],
        ranks: Shares,
        *,
        shuffle: bool | Shuffle,
        sampler: Iterable[int] | None,
        seed: int,
        drop_last: bool,
    ) -> None:
        self.seed, self.drop_last = check_seed(seed), bool(drop_last)
        self._ranks = ranks
        self._shares: Shares | None = None  # with as many lanes as there are
        self.patience = 0.0  # seconds that a look at the source may take; 0: any
        self._look, self._shuffle, self._sampler = SourceLook(take), shuffle, sampler
        self.sampler_epoch = SamplerEpoch(sampler)
        self._snapshot: Snapshot | None = None
        self._plan: Plan | None = None
        self._digest: str | None = None  # of what the sampler gave for that plan
        self._sampler_state: dict[str, Any] | None = None  # where its random numbers stood before
        self._checked = False  # whether a sampler without such has been read again
        self._logged = False  # whether the world sizes that a state can go to have been logged
        self._ahead: tuple[int, sync.Future[Plan], sync.Thread] | None = None  # an epoch whose plan is being made

    @property
    def looked(self) -> bool:
        """Whether the snapshot has been taken."""
        return self._snapshot is not None

    @property
    def snapshot(self) -> Snapshot:
        """What the source holds, captured once."""
        if self._snapshot is None:
            self._snapshot = self._look(self.patience)
            if self._snapshot.mix is not None and self.sampled:
                msg = (
                    f"sampler: a mixture has an order of its own; found a sampler for {self._snapshot.source}; leave "
                    "it out"
                )
                raise ConfigError(msg)
            _warn_of_holes(self._snapshot)
        return self._snapshot

    @property
    def shares(self) -> Shares:
        """How global batches are divided."""
        if self._shares is None:
            self._shares = self._ranks.widened(self.snapshot, self.order, drop_last=self.drop_last)
        return self._shares

    @property
    def order(self) -> Order:
        """The shuffle, with what it leaves open filled in for this source."""
        return resolve(self._shuffle, self.snapshot, sampled=self.sampled)

    @property
    def sampled(self) -> bool:
        """Whether a sampler gives the order."""
        return self._sampler is not None

    @property
    def windows(self) -> list[tuple[int, int, int]]:
        """Of each window that a lane has open at once: samples at most, an extent's, and a record's bytes."""
        return window_sizes(self.snapshot, self.order, self.shares.lanes)

    @property
    def plan_bytes(self) -> int:
        """About what a plan takes in memory: that of millions of single records takes seconds to make, too."""
        snapshot, order = self.snapshot, self.order
        several = zip(snapshot.parts, order.parts, strict=True) if snapshot.mix is not None else [(snapshot, order)]
        return sum(32 * (len(part) // its.extent + 1) for part, its in several)

    def plan(self, epoch: int) -> Plan:
        """Which sample comes in which slot of that epoch."""
        if self._plan is None or self._plan.epoch != epoch:
            plan = self._begun(epoch)
            if plan is None:
                plan = self._planned(epoch) if self._sampler is None else self._sampled(self._sampler, epoch)
            self._plan = plan
        return self._plan

    def _sampled(self, sampler: Iterable[int], epoch: int, before: Mapping[str, Any] | None = None) -> Plan:
        """The plan of an order that the sampler gives; `before`: its random numbers stand there, as a state says."""
        count = len(self.snapshot)
        with self.sampler_epoch.ours():
            if before is None:
                self._sampler_state = state_of(sampler)
                items = read_order(sampler, epoch, count)
            else:
                self._sampler_state = dict(before)
                items = go_back(sampler, before, epoch, count)
        return self._ordered(sampler, epoch, items)

    def _ordered(self, sampler: Iterable[int], epoch: int, items: list[Any]) -> Plan:
        """The plan of what a sampler gave for that epoch."""
        indices = indices_of(sampler, epoch, items)
        self._digest = digest_of(sampler, indices)
        return self._planned(epoch, indices)

    def order_state(self, epoch: int) -> dict[str, Any] | None:
        """What a state keeps of the sampler's order beside its digest. StateError for one that cannot be made again."""
        self.plan(epoch)
        if self._sampler is None or self._digest is None:
            return None
        if self._sampler_state is None and not self._checked:
            with self.sampler_epoch.ours():
                check_repeats(self._sampler, epoch, self._digest, len(self.snapshot))
            self._checked = True
        return self._sampler_state

    def _planned(self, epoch: int, indices: NDArray[np.int64] | None = None) -> Plan:
        lanes, drop_last, seed = self.shares.lanes, self.drop_last, self.seed
        if (mix := self.snapshot.mix) is not None:
            return MixedPlan(self.snapshot, mix, self.order, seed=seed, epoch=epoch, lanes=lanes, drop_last=drop_last)
        return EpochPlan(
            self.snapshot, self.order, seed=seed, epoch=epoch, lanes=lanes, drop_last=drop_last, indices=indices
        )

    def _begun(self, epoch: int) -> Plan | None:
        """The plan of an epoch that was begun ahead, when it is there; None too where it could not be made."""
        if self._ahead is None or self._ahead[0] != epoch:
            return None
        plan = self._ahead[1]
        return None if plan.exception() else plan.result()

    def ahead(self, epoch: int) -> sync.Future[Plan]:
        """The plan of a later epoch, which no sampler gives, made in a thread of its own. For any thread.

        Who needs one that could not be made makes it again and meets the error himself.
        """
        if self._ahead is None or self._ahead[0] != epoch:
            plan = sync.Future[Plan]()

            def make() -> None:
                try:
                    plan.set_result(self._planned(epoch))
                except Exception as error:  # noqa: BLE001  it is raised where the plan is needed
                    plan.set_exception(error)

            thread = sync.Thread(target=make, name="dali_feed-plan", daemon=True)
            self._ahead = epoch, plan, thread
            try:
                thread.start()
            except RuntimeError as error:  # the system gives no more threads
                plan.set_exception(error)
        return self._ahead[1]

    def foreseen(self, epoch: int) -> Plan:
        """The plan of a later epoch, which no sampler gives. For any thread."""
        return self._begun(epoch) or self._planned(epoch)

    def close(self) -> None:
        """No look is taken and no plan made ahead any more; one under way is waited for, up to a second."""
        self._look.close()
        if self._ahead is not None and self._ahead[2].ident is not None:
            self._ahead[2].join(1.0)

    def known(self, epoch: int) -> Plan | None:
        """The plan of that epoch, where it is there already."""
        return self._plan if self._plan is not None and self._plan.epoch == epoch else None

    def counts(self, epoch: int, consumed: int = 0) -> list[int]:
        """How many slots of each lane every batch takes, from where `consumed` of a lane have been given."""
        return self.counts_of(self.plan(epoch), consumed)

    @property
    def measured(self) -> bool:
        """Whether a sampler gives the order, and its length before: not one of random numbers, which `len` may draw."""
        return bool(length_of(self._sampler)) and state_of(self._sampler) is None

    def count(self, epoch: int) -> int:
        """How many batches it has. A sampler that says its length is not read for it: it may change before the loop."""
        samples = length_of(self._sampler) if self.known(epoch) is None and self.measured else None
        if samples is None:
            return len(self.counts(epoch))
        length = slots_of(samples, self.shares.lanes, drop_last=self.drop_last)
        return len(self.shares.counts(length, drop_last=self.drop_last))

    def counts_of(self, plan: Plan, consumed: int) -> list[int]:
        """The same of a plan."""
        return self.shares.counts(plan.lane_length - consumed, drop_last=self.drop_last)

    def made_for(self, epoch: int, decode: Decode | None) -> dict[str, Any]:
        """What a position in that epoch depends on: source, order, seed and so on, and how images are decoded.

        `decode`: None where another loader makes the samples.
        """
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

    def describe(self, epoch: int, engine: str) -> str:
        """Six lines: records, order, extents, windows, batches, engine; one more on offsets without a record, if any.

        `engine`: which one runs where. Of several sources a line each says how many samples it has, and its share in
        the epoch.
        """
        snapshot, order, shares = self.snapshot, self.order, self.shares
        window = sum(samples for samples, _, _ in self.windows)
        batches, ranks = self.count(epoch), _many(shares.world_size, "rank")
        samples, megabytes = len(snapshot), snapshot.record_bytes / 1e6
        if self.sampled:
            how = "the sampler's"
        elif not order.shuffled:
            how = "the source's own, not shuffled"
        elif order.extent == 1:
            how = "shuffled uniformly: any sample may stand anywhere"
        else:
            how = f"shuffled by extents, and within windows: a window mixes {window:,} of {samples:,} samples"
        size = f"about {snapshot.record_bytes:,} bytes each"
        read = f"about {order.extent * megabytes:,.1f} MB a read"
        lanes = f"{_many(shares.lanes, 'lane')}, {len(shares.mine)} on this rank"
        kept = f"about {window * megabytes:,.1f} MB in memory per lane; {lanes}"
        return "\n".join(
            (
                f"{snapshot.source}: {_many(samples, 'sample')} in {_many(len(snapshot.names), 'partition')}, {size}",
                *_parts(snapshot, epoch),
                *_holes(snapshot),
                f"order: {how}",
                f"extents: {-(-samples // order.extent):,} of up to {_many(order.extent, 'sample')}, {read}",
                f"windows: {_many(order.window, 'extent')}, {_many(window, 'sample')}, {kept}",
                f"batches: {batches:,} of {shares.batch_size} per rank, {ranks}",
                f"engine: {engine}",
            )
        )

    def tell_world_sizes(self) -> None:
        """Log, once, which world sizes the state of a shuffled run can go to."""
        if self.order.shuffled and not self._logged:
            self._logged = True
            self.shares.log_world_sizes()

    def restored(self, state: Mapping[str, Any], decode: Decode | None) -> Self:
        """The planning to go on with from `state`, on the source as it was then; this one stays as it is.

        Raises StateError that lists every difference where the state was made for something else; the sampler then
        stands where it stood.
        """
        before, number = state_of(self._sampler), self.sampler_epoch.number
        try:
            return self._restored(state, decode)
        except BaseException:
            with self.sampler_epoch.ours():
                put_back(self._sampler, before, number)
            raise

    def _restored(self, state: Mapping[str, Any], decode: Decode | None) -> Self:
        planning, pin = copy.copy(self), state["source"].get("pin")
        if pin is not None and (
            self._snapshot is None or self._snapshot.fingerprint != state["made_for"].get("source")
        ):
            planning._snapshot, planning._plan, planning._ahead = self._look(self.patience, pin), None, None
        planning._shares = self._ranks.of_state(state["made_for"]) or self._shares
        if planning._shares != self._shares:
            planning._plan, planning._ahead = None, None
        epoch, before = state["epoch"], state.get("order")
        if isinstance(before, Mapping) and self._sampler is not None:
            known = planning._plan is not None and planning._plan.epoch == epoch
            if not known or planning._digest != state["made_for"].get("sampler"):
                planning._plan = planning._sampled(self._sampler, epoch, before)
        own, plan = planning.made_for(epoch, decode), planning.plan(epoch)
        states.compare(dict(state), own, planning.snapshot, plan.lane_length)
        return planning


def _warn_of_holes(snapshot: Snapshot) -> None:
    """Warn where more than a few slots of an epoch are known to repeat other records."""
    if snapshot.present is None and snapshot.absent > MANY_ABSENT:
        log.warning(
            "%s: about %.1f %% of its %s positions hold no record; as many slots of an epoch repeat another one, with"
            ' ok False. KafkaTopic(holes="scan") reads the topic once, and then deals each record once',
            snapshot.source,
            100 * snapshot.absent,
            f"{snapshot.positions:,}",
        )


# The text of `describe()`.


def _many(count: int, name: str) -> str:
    """A count with its name: 1 lane, 8 lanes."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _parts(snapshot: Snapshot, epoch: int) -> list[str]:
    """What a source made of several is made of."""
    lines = [f"  {part.source}: {len(part):,} samples" for part in snapshot.parts]
    if snapshot.mix is None:
        return lines
    shares = snapshot.mix.shares(epoch)
    proportion = " : ".join(f"{share:,}" for share in shares)
    stops = {"first": "when the first source would begin again", "all": "when all records of all sources have come"}
    samples = snapshot.mix.samples
    ends = stops[snapshot.mix.stop] if samples is None else f"after {samples:,} samples"
    shown = [f"{line}, {share / sum(shares):.2%} of a batch" for line, share in zip(lines, shares, strict=True)]
    return [f"mixture: {proportion} in epoch {epoch}; an epoch ends {ends}", *shown]


def _holes(snapshot: Snapshot) -> list[str]:
    """A line where positions hold no record, as far as is known."""
    if not snapshot.absent:
        return []
    if snapshot.present is not None:
        share = f"{1 - len(snapshot) / snapshot.positions:.2%} of {snapshot.positions:,} positions hold no record"
        return [f"holes: {share}, and are skipped: {len(snapshot.present.start):,} runs of records"]
    share = f"about {snapshot.absent:.2%} of {snapshot.positions:,} positions hold no record"
    return [f"holes: {share}; other records fill their slots"]
