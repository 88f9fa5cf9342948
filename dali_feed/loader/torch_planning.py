"""What the epochs of torch's own loader are made of: our order, or a sampler's, over a dataset's positions.

The law: order is our plan's, pure in (seed, epoch), or the user's sampler's, so a map-style dataset resumes at the
exact sample. An iterable-style dataset has no positions and no state.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from dali_feed.draws.philox import check_seed
from dali_feed.errors import ConfigError, StateError
from dali_feed.plan import state as states
from dali_feed.plan.order import EpochPlan, Order, Shuffle, resolve
from dali_feed.plan.position import Position
from dali_feed.plan.sampler import digest_of, length_of, read_whole, told_epoch
from dali_feed.plan.shares import Shares
from dali_feed.records.source import Snapshot, unpack_ids

__all__ = ["Rest", "TorchPlanning"]


@dataclass(frozen=True, slots=True)
class _Epoch:
    """An epoch's order: `batches_from` position `consumed` on, of `length` positions in all; a sampler's digest."""

    epoch: int
    digest: str | None
    length: int
    batches_from: Callable[[int], list[Any]]


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of an epoch, as torch's loader gets it.

    asked   lists of indices, or of `single` samples the indices; empty where the dataset itself says what comes
    count   how many there are; None if unknown
    length  of the epoch, in positions
    part    positions that each takes: samples of each lane, or one batch of a batch sampler
    size    samples in each, where the batches are not counted
    """

    asked: Sequence[Any]
    count: int | None
    length: int
    part: int
    size: int
    single: bool


def _chosen(dataset: Any) -> str:
    """What makes a Subset different from another one of the same size."""
    indices = getattr(dataset, "indices", None)
    return "" if indices is None or callable(indices) else hashlib.sha256(repr(list(indices)).encode()).hexdigest()[:16]


def _snapshot(dataset: Any, count: int) -> Snapshot:
    name = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    return Snapshot(
        source=f"{name} with torch's own DataLoader",
        names=(type(dataset).__name__,),
        starts=np.zeros(1, np.int64),
        stops=np.array([count], np.int64),
        extent=1,
        record_bytes=1,
        random_access=True,
        interleaved=False,
        fingerprint=hashlib.sha256(f"{name} {count} {_chosen(dataset)}".encode()).hexdigest(),
    )


def _whole(dataset: Any, shares: Shares, *, ordered: bool) -> Snapshot | None:
    """All positions of a dataset, None of an iterable-style one; `ordered`: samplers say which. ConfigError."""
    if isinstance(dataset, IterableDataset):
        if shares.world_size > 1:
            msg = (
                "dataset: an iterable-style one gives every rank the same samples; found "
                f"world_size={shares.world_size}. Divide its samples inside the dataset, and give rank=0, "
                "world_size=1"
            )
            raise ConfigError(msg)
        return None
    length = length_of(dataset)
    if length is None and not ordered:
        msg = (
            f"dataset: a map-style one must have a length; found none of {type(dataset).__qualname__}."
            " Give it a __len__, or the loader a sampler"
        )
        raise ConfigError(msg)
    return _snapshot(dataset, length or 0)


class TorchPlanning:
    """Answers what an epoch holds; a sampler is read when an answer needs it, and what it gave is kept.

    `single`: samples are taken one by one. Raises ConfigError for values that are not allowed.
    """

    def __init__(
        self,
        dataset: Any,
        shares: Shares,
        *,
        shuffle: bool | Shuffle,
        sampler: Iterable[int] | None,
        batch_sampler: Iterable[Any] | None,
        drop_last: bool,
        seed: int,
        single: bool,
    ) -> None:
        self.shares, self.drop_last, self.seed = shares, bool(drop_last), check_seed(seed)
        self.single = single
        self._dataset, self._shuffle, self._sampler, self._batch_sampler = dataset, shuffle, sampler, batch_sampler
        self._snapshot = _whole(dataset, shares, ordered=sampler is not None or batch_sampler is not None)
        self._epoch: _Epoch | None = None

    @property
    def has_positions(self) -> bool:
        """Whether the dataset is a map-style one."""
        return self._snapshot is not None

    @property
    def positions(self) -> Snapshot:
        """What the dataset has. StateError for an iterable-style one."""
        if self._snapshot is None:
            msg = (
                "state: an iterable-style dataset has no positions, so there is nothing to go on from; make it a"
                " map-style one, or a source of dali_feed.external_sources"
            )
            raise StateError(msg)
        return self._snapshot

    def look(self) -> None:
        """Look at the dataset again, as it may have grown: later epochs have all its samples."""
        if self._snapshot is None:
            return
        length = length_of(self._dataset) or 0
        if length != len(self._snapshot):
            self._snapshot, self._epoch = _snapshot(self._dataset, length), None

    def count(self, epoch: int, first: int = 0) -> int:
        """How many batches there are of that epoch from position `first` on."""
        left = self._of(epoch).length - first
        return left // self._part if self.drop_last and self._batch_sampler is None else -(-left // self._part)

    def rest(self, at: Position) -> Rest:
        """What is left of the epoch that `at` stands in."""
        size = self.shares.batch_size
        if self._snapshot is None:
            return Rest((), None, 0, self._part, size, self.single)
        epoch = self._of(at.epoch)
        asked, count = epoch.batches_from(at.consumed), self.count(at.epoch, at.consumed)
        return Rest(asked, count, epoch.length, self._part, size, self.single)

    def made_for(self, epoch: int) -> dict[str, Any]:
        """What a position in that epoch depends on: dataset, order, seed. StateError for an iterable-style dataset."""
        return states.made_for(
            self.positions,
            self._mixed(),
            seed=self.seed,
            lanes=self.shares.lanes,
            drop_last=self.drop_last,
            sampler=self._of(epoch).digest,
        )

    def restored(self, state: Mapping[str, Any], *, anew: bool) -> TorchPlanning:
        """The planning to go on with from `state`; `anew`: after a look. This one stays as it is.

        Raises StateError that lists every difference where the state was made for something else.
        """
        found, epoch = copy.copy(self), state["epoch"]
        if anew:
            found.look()
        states.compare(dict(state), found.made_for(epoch), found.positions, found._of(epoch).length)
        return found

    @property
    def _part(self) -> int:
        return 1 if self._batch_sampler is not None else self.shares.per_lane

    def _mixed(self) -> Order:
        return resolve(self._shuffle, self.positions, sampled=self._sampler is not None)

    def _of(self, epoch: int) -> _Epoch:
        if self._epoch is None or self._epoch.epoch != epoch:
            self._epoch = self._dealt(epoch)
        return self._epoch

    def _dealt(self, epoch: int) -> _Epoch:
        """This rank's part of that epoch."""
        if self._batch_sampler is not None:
            told_epoch(self._batch_sampler, epoch)
            batches = read_whole(self._batch_sampler, len(self.positions))
            return _Epoch(epoch, digest_of(self._batch_sampler, batches), len(batches), lambda first: batches[first:])
        if self._sampler is None:
            keys, digest, positions, order = None, None, self.positions, self._mixed()
        else:  # indices may be of any type that the dataset takes: the plan orders their places in a list
            told_epoch(self._sampler, epoch)
            keys = read_whole(self._sampler, len(self.positions))
            digest, positions = digest_of(self._sampler, keys), _snapshot(self._dataset, len(keys))
            order = resolve(shuffle=False, snapshot=positions)
        if not len(positions):
            return _Epoch(epoch, digest, 0, lambda _: [])
        plan = EpochPlan(
            positions,
            order,
            seed=self.seed,
            epoch=epoch,
            lanes=self.shares.lanes,
            drop_last=self.drop_last,
            indices=None,
        )
        part, length = self._part, plan.lane_length

        def batches_from(first: int) -> list[Any]:
            stop = length - (length - first) % part if self.drop_last else length
            lines: list[list[Any]] = [unpack_ids(plan.ids(lane, first, stop))[1].tolist() for lane in self.shares.mine]
            lines = lines if keys is None else [[keys[i] for i in line] for line in lines]
            if self.single:  # of one line, for lanes divide the samples of a step
                return lines[0]
            return [[i for line in lines for i in line[at : at + part]] for at in range(0, stop - first, part)]

        return _Epoch(epoch, digest, length, batches_from)
