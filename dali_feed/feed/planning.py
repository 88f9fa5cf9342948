"""What a feed's epochs are made of: the source's snapshot, taken once, and the plan of each epoch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dali_feed.errors import ConfigError
from dali_feed.feed.describe import warn_of_holes
from dali_feed.plan import state as states
from dali_feed.plan.draws import check_seed
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.order import EpochPlan, Order, Shuffle, resolve
from dali_feed.plan.sampler import digest_of, indices_of
from dali_feed.plan.shares import Shares, check_shuffle
from dali_feed.records.source import Snapshot, Source, lacking
from dali_feed.transforms.recipe import Recipe

__all__ = ["Planning", "check_order"]


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
    a seed that cannot be, and for a sampler's indices when they are read; a SourceError where records cannot be had.
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

    @property
    def snapshot(self) -> Snapshot:
        """What the source holds, captured once."""
        if self._snapshot is None:
            self._may_look()
            self._snapshot = self._source.snapshot()
            if self._snapshot.mix is not None and self.sampled:
                msg = f"sampler: a mixture has an order of its own; found one beside {self._snapshot.source}"
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

    def plan(self, epoch: int) -> EpochPlan | MixedPlan:
        """Which sample comes in which slot of that epoch."""
        if self._plan is None or self._plan.epoch != epoch:
            if (mix := self.snapshot.mix) is not None:
                self._plan = MixedPlan(
                    self.snapshot,
                    mix,
                    self.order,
                    seed=self.seed,
                    epoch=epoch,
                    lanes=self.shares.lanes,
                    drop_last=self.drop_last,
                )
                return self._plan
            indices = None if self._sampler is None else indices_of(self._sampler, epoch, len(self.snapshot))
            self._plan = EpochPlan(
                self.snapshot,
                self.order,
                seed=self.seed,
                epoch=epoch,
                lanes=self.shares.lanes,
                drop_last=self.drop_last,
                indices=indices,
            )
            self._digest = None if indices is None else digest_of(self._sampler, indices)
        return self._plan

    def foreseen(self, epoch: int) -> EpochPlan | MixedPlan | None:
        """The plan of a later epoch; None where only a sampler knows it, which is not asked before its time."""
        if self._sampler is not None:
            return None
        found = copy.copy(self)
        found._plan = None
        return found.plan(epoch)

    def made(self, epoch: int) -> EpochPlan | MixedPlan | None:
        """The plan of that epoch, where it is there already."""
        return self._plan if self._plan is not None and self._plan.epoch == epoch else None

    def counts(self, epoch: int, consumed: int = 0) -> list[int]:
        """How many slots of each lane every batch takes, from where `consumed` of a lane have been given."""
        return self.shares.counts(self.plan(epoch).lane_length - consumed, drop_last=self.drop_last)

    def made_for(self, epoch: int, recipe: Recipe) -> dict[str, Any]:
        """What a position in that epoch depends on: source, order, seed and so on, and how images are decoded."""
        self.plan(epoch)
        return states.made_for(
            self.snapshot,
            self.order,
            seed=self.seed,
            lanes=self.shares.lanes,
            drop_last=self.drop_last,
            sampler=self._digest,
            hw_decoder_load=recipe.hw_decoder_load,
            exif=recipe.exif,
        )

    def restored(self, state: Mapping[str, Any], recipe: Recipe) -> Planning:
        """The planning to go on with from `state`, on the source as it was then; this one stays as it is.

        Raises StateError that lists every difference where the state was made for something else.
        """
        found, pin = copy.copy(self), state["source"].get("pin")
        if pin is not None and (
            self._snapshot is None or self._snapshot.fingerprint != state["made_for"].get("source")
        ):
            found._snapshot, found._plan = self._source.snapshot(pin), None
        epoch = state["epoch"]
        made, plan = found.made_for(epoch, recipe), found.plan(epoch)
        states.compare(dict(state), made, found.snapshot, plan.lane_length)
        return found
