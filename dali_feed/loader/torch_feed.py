"""A dataset that only torch can read, run by torch's own DataLoader in our order: same lengths, same state.

The law: order is our plan's, pure in (seed, epoch), or the user's sampler's, so a map-style dataset resumes at the
exact sample. What the dataset draws at random for itself is torch's affair and does not resume. An iterable-style
dataset has no positions and no state.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from dali_feed.errors import ClosedError, ConfigError, StateError
from dali_feed.feed.stats import Meter, Stats
from dali_feed.loader.arguments import as_config_error
from dali_feed.loader.torch_passes import Passing
from dali_feed.plan import state as states
from dali_feed.plan.draws import check_seed
from dali_feed.plan.order import EpochPlan, Order, Shuffle, resolve
from dali_feed.plan.position import Position
from dali_feed.plan.sampler import digest_of, length_of, read_whole, told_epoch
from dali_feed.plan.shares import MAX_EPOCH, Dealt, Shares, check_epoch, check_shuffle
from dali_feed.records.source import Snapshot, unpack_ids

__all__ = ["TorchFeed"]


class _Batches:
    """What torch takes for a batch sampler: the batches of the epoch that is next."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@dataclass(frozen=True, slots=True)
class _Epoch:
    """An epoch's order: `batches_from` position `consumed` on, of `length` positions in all; a sampler's digest."""

    epoch: int
    digest: str | None
    length: int
    batches_from: Callable[[int], list[Any]]


def _chosen(dataset: Any) -> str:
    """What tells a Subset from another one of the same size."""
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


class TorchFeed(Dealt):
    """Epochs of batches as torch's loader gives them; the same calls as `Feed`.

    `batch_size` None gives samples, or the batches of a batch sampler. `options` are torch's own arguments for how, not
    what: num_workers, collate_fn, pin_memory, ...
    """

    def __init__(  # noqa: PLR0913  torch's own
        self,
        dataset: Any,
        batch_size: int | None,
        *,
        shuffle: bool | Shuffle | None,
        sampler: Iterable[int] | None,
        batch_sampler: Iterable[Any] | None,
        drop_last: bool,
        seed: int,
        lanes: int | None,
        rank: int,
        world_size: int,
        options: Mapping[str, Any],
    ) -> None:
        self._shuffle: bool | Shuffle = False if shuffle is None else shuffle
        check_shuffle(self._shuffle)
        self._single = batch_size is None and batch_sampler is None
        self.shares = Shares.of(1 if batch_size is None else batch_size, rank, world_size, lanes)
        self.dataset, self.drop_last, self.seed = dataset, bool(drop_last), check_seed(seed)
        self._sampler, self._batch_sampler = sampler, batch_sampler
        self._order = _Batches()
        self._snapshot: Snapshot | None = None
        if isinstance(dataset, IterableDataset):
            if self.world_size > 1:
                msg = (
                    f"dataset: an iterable-style one gives every rank the same samples; found world_size={world_size}."
                    " Shard it inside, and give rank=0, world_size=1"
                )
                raise ConfigError(msg)
            size = None if self._single else self.batch_size
            order: dict[str, Any] = {"batch_size": size, "drop_last": drop_last, "shuffle": shuffle}
        else:
            length = length_of(dataset)
            if length is None and sampler is None and batch_sampler is None:
                msg = (
                    f"dataset: a map-style one must have a length; found none of {type(dataset).__qualname__}."
                    " Give it a __len__, or the loader a sampler"
                )
                raise ConfigError(msg)
            self._snapshot = _snapshot(dataset, length or 0)
            order = {"batch_size": None, "sampler": self._order} if self._single else {"batch_sampler": self._order}
        with as_config_error():
            self._loader: Any = TorchLoader(dataset, **order, **options)
        self._meter = Meter()
        self._at, self._closed = Position(), False
        self._pass: weakref.ref[Passing] | None = None  # dropping a pass ends it, and its workers
        self._plan: _Epoch | None = None

    def _planned(self) -> _Epoch:
        """This rank's part of the epoch that the state stands in; of all that a growing dataset has as it begins."""
        running = self._at.consumed or not self._at.pending or self._running is not None
        if self._snapshot is not None and not running:
            length = length_of(self.dataset) or 0
            if length != len(self._snapshot):
                self._snapshot, self._plan = _snapshot(self.dataset, length), None
        if self._plan is None or self._plan.epoch != self._at.epoch:
            self._plan = self._dealt()
        return self._plan

    def _dealt(self) -> _Epoch:
        if self._batch_sampler is not None:
            told_epoch(self._batch_sampler, self._at.epoch)
            batches = read_whole(self._batch_sampler, len(self._positions()))
            return _Epoch(
                self._at.epoch, digest_of(self._batch_sampler, batches), len(batches), lambda first: batches[first:]
            )
        if self._sampler is None:
            keys, digest, positions, order = None, None, self._positions(), self._mixed()
        else:  # whatever the dataset takes: the plan deals places in the list of them
            told_epoch(self._sampler, self._at.epoch)
            keys = read_whole(self._sampler, len(self._positions()))
            digest, positions = digest_of(self._sampler, keys), _snapshot(self.dataset, len(keys))
            order = resolve(shuffle=False, snapshot=positions)
        if not len(positions):
            return _Epoch(self._at.epoch, digest, 0, lambda _: [])
        plan = EpochPlan(
            positions,
            order,
            seed=self.seed,
            epoch=self._at.epoch,
            lanes=self.lanes,
            drop_last=self.drop_last,
            indices=None,
        )
        mine = self.shares.mine
        part, length = self._part, plan.lane_length

        def batches_from(first: int) -> list[Any]:
            stop = length - (length - first) % part if self.drop_last else length
            lines: list[list[Any]] = [unpack_ids(plan.ids(lane, first, stop))[1].tolist() for lane in mine]
            lines = lines if keys is None else [[keys[i] for i in line] for line in lines]
            if self._single:  # of one line, for lanes divide the samples of a step
                return lines[0]
            return [[i for line in lines for i in line[at : at + part]] for at in range(0, stop - first, part)]

        return _Epoch(self._at.epoch, digest, length, batches_from)

    def _count(self, first: int) -> int:
        """How many batches there are from position `first` on."""
        left = self._planned().length - first
        return left // self._part if self.drop_last and self._batch_sampler is None else -(-left // self._part)

    @property
    def _part(self) -> int:
        """What a batch adds to `consumed`: samples of each lane, or one batch of a batch sampler."""
        return 1 if self._batch_sampler is not None else self.per_lane

    def _positions(self) -> Snapshot:
        if self._snapshot is None:
            msg = (
                "state: an iterable-style dataset has no positions, so there is nothing to go on from; make it a"
                " map-style one, or a source of dali_feed.external_sources"
            )
            raise StateError(msg)
        return self._snapshot

    def _mixed(self) -> Order:
        return resolve(self._shuffle, self._positions(), sampled=self._sampler is not None)

    def __len__(self) -> int:
        """Batches in an epoch; of an iterable-style dataset what torch says, which may be a TypeError."""
        return len(self._loader) if self._snapshot is None else self._count(0)

    @property
    def batches_left(self) -> int:
        """Batches that the pass under way still gives, or else the next one will; TypeError where nobody knows."""
        run = self._running
        if run is not None:
            return len(run)
        _, consumed = self._at.next
        return len(self) if self._snapshot is None else self._count(consumed)

    @property
    def epoch(self) -> int:
        """The epoch that state_dict() stands in."""
        return self._at.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; where a restored state stands inside it, it goes on there."""
        epoch = check_epoch(epoch)
        if self._at.set_epoch(epoch):
            self._end()
        inner = getattr(self.dataset, "set_epoch", None)
        if callable(inner):
            inner(epoch)

    @property
    def _running(self) -> Passing | None:
        return None if self._pass is None else self._pass()

    def _end(self) -> None:
        run, self._pass = self._running, None
        if run is not None:
            run.drop()

    def _leave(self) -> None:
        self._end()
        self._at.leave()

    def __iter__(self) -> Passing:
        """The next epoch's batches, or the rest of the one that a restored state stands in."""
        self._check_open()
        self._leave()
        if self._snapshot is not None:
            self._order.batches = self._planned().batches_from(self._at.consumed)
        run = Passing(self, iter(self._loader), None if self._snapshot is None else self._count(self._at.consumed))
        self._pass = weakref.ref(run)
        return run

    def _check_open(self) -> None:
        if self._closed:
            msg = "loader: used after close(); make a new one"
            raise ClosedError(msg)

    def _made_for(self) -> dict[str, Any]:
        snapshot, plan = self._positions(), self._planned()
        return states.made_for(
            snapshot, self._mixed(), seed=self.seed, lanes=self.lanes, drop_last=self.drop_last, sampler=plan.digest
        )

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer stands; counts batches handed over. StateError for an iterable-style dataset."""
        info = {"engine": "torch", "world_size": self.world_size, "batch_size": self.batch_size}
        made = self._made_for()
        return states.pack(made, self._positions(), epoch=self._at.epoch, consumed=self._at.consumed, info=info)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on where `state` was taken: no sample before it is read."""
        self._check_open()
        state, before = states.check(state, MAX_EPOCH), (self._at, self._plan)
        self._at = Position(state["epoch"], state["consumed"])
        try:
            states.compare(state, self._made_for(), self._positions(), self._planned().length)
        except BaseException:
            self._at, self._plan = before
            raise
        self._end()

    def commit(self) -> None:
        """There is no group to tell."""

    def describe(self) -> str:
        """Who runs it and why."""
        how = "one sample at a time" if self._single else f"batches of {self.batch_size}"
        return f"{type(self.dataset).__qualname__} with torch's own DataLoader, {how}"

    def stats(self) -> Stats:
        """Samples, batches, and how long the trainer was in next() (`engine_wait`) and elsewhere (`trainer_wait`).

        Worker processes work beside the trainer: where it waits for a tenth of its own time, they are too slow.
        """
        found = self._meter.stats(0)
        share = 0.1 if self._loader.num_workers else 1.0
        slow = found.engine_wait > share * found.trainer_wait
        return replace(found, bottleneck=("torch" if slow else "trainer") if found.batches else "")

    def close(self) -> None:
        """End the workers. Safe to call twice."""
        self._closed = True
        self._end()
        workers = getattr(self._loader, "_iterator", None)
        if workers is not None and hasattr(workers, "_shutdown_workers"):
            workers._shutdown_workers()
