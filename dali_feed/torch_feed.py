"""A dataset that only torch can read, run by torch's own DataLoader in our order: same lengths, same state.

The law: order is our plan's, pure in (seed, epoch), or the user's sampler's, so a map-style dataset resumes at the
exact sample. What the dataset draws at random for itself is torch's affair and does not resume. An iterable-style
dataset has no positions and no state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from dali_feed import state as states
from dali_feed.errors import ClosedError, ConfigError, StateError
from dali_feed.feed.sampling import indices_of
from dali_feed.options import whole
from dali_feed.plan import EpochPlan, Order, Shuffle, resolve
from dali_feed.records import Snapshot, unpack_ids
from dali_feed.stats import Meter, Stats

__all__ = ["Passing", "TorchFeed", "moved"]

MAX_EPOCH = 1 << 32


def moved(item: Any, device: torch.device) -> Any:
    """A batch with its tensors on the device, whatever lists, tuples and mappings they lie in."""
    if isinstance(item, torch.Tensor):
        return item.to(device, non_blocking=True)
    if isinstance(item, Mapping):
        return {key: moved(value, device) for key, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(moved(value, device) for value in item))
    if isinstance(item, list | tuple):
        return type(item)(moved(value, device) for value in item)
    return item


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


def _snapshot(dataset: Any) -> Snapshot:
    name, count = f"{type(dataset).__module__}.{type(dataset).__qualname__}", len(dataset)
    return Snapshot(
        source=f"{name} with torch's own DataLoader",
        names=(type(dataset).__name__,),
        starts=np.zeros(1, np.int64),
        stops=np.array([count], np.int64),
        extent=1,
        record_bytes=1,
        random_access=True,
        interleaved=False,
        fingerprint=hashlib.sha256(f"{name} {count}".encode()).hexdigest(),
    )


class TorchFeed:
    """Epochs of batches as torch's loader gives them; the same calls as `Feed`.

    `options` are torch's own arguments for how, not what: num_workers, collate_fn, pin_memory, ...
    """

    def __init__(  # noqa: PLR0913  torch's own
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool | Shuffle,
        sampler: Iterable[int] | None,
        batch_sampler: Iterable[Any] | None,
        drop_last: bool,
        seed: int,
        lanes: int | None,
        rank: int,
        world_size: int,
        options: Mapping[str, Any],
    ) -> None:
        self.dataset, self.batch_size = dataset, whole("batch_size", batch_size, 1)
        self.drop_last, self.seed, self.rank, self.world_size = bool(drop_last), seed, rank, world_size
        self.lanes = world_size if lanes is None else whole("lanes", lanes, 1)
        if self.lanes % world_size or self.batch_size * world_size % self.lanes:
            msg = (
                "lanes: world_size must divide it, and it must divide batch_size * world_size;"
                f" found lanes={self.lanes}, world_size={world_size}, batch_size={batch_size}"
            )
            raise ConfigError(msg)
        self._shuffle, self._sampler, self._batch_sampler = shuffle, sampler, batch_sampler
        self._order = _Batches()
        if isinstance(dataset, IterableDataset):
            given: dict[str, Any] = {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}
            self._loader: Any = TorchLoader(dataset, batch_size, drop_last=drop_last, **given, **options)
            self._snapshot: Snapshot | None = None
        else:
            self._snapshot = _snapshot(dataset)
            self._loader = TorchLoader(dataset, batch_sampler=self._order, **options)
        self._meter = Meter()
        self._epoch = self._consumed = 0
        self._pending, self._closed = True, False
        self._pass: Passing | None = None
        self._plan: _Epoch | None = None

    def _planned(self) -> _Epoch:
        """This rank's part of the epoch that the state stands in."""
        if self._plan is None or self._plan.epoch != self._epoch:
            self._plan = self._dealt()
        return self._plan

    def _dealt(self) -> _Epoch:
        if self._batch_sampler is not None:
            batches = list(self._batch_sampler)
            told = hashlib.sha256(repr(batches).encode()).hexdigest()[:16]
            return _Epoch(self._epoch, told, len(batches), lambda first: batches[first:])
        indices = None if self._sampler is None else indices_of(self._sampler, self._epoch)
        plan = EpochPlan(
            self._positions(),
            self._mixed(),
            seed=self.seed,
            epoch=self._epoch,
            lanes=self.lanes,
            drop_last=self.drop_last,
            indices=indices,
        )
        mine = range(self.rank, self.lanes, self.world_size)
        part, length = self._part, plan.lane_length

        def batches_from(first: int) -> list[list[int]]:
            stop = length - (length - first) % part if self.drop_last else length
            lines = [unpack_ids(plan.ids(lane, first, stop))[1].tolist() for lane in mine]
            return [[i for line in lines for i in line[at : at + part]] for at in range(0, stop - first, part)]

        digest = None if indices is None else hashlib.sha256(indices.tobytes()).hexdigest()[:16]
        return _Epoch(self._epoch, digest, length, batches_from)

    @property
    def _part(self) -> int:
        """What a batch adds to `consumed`: samples of each lane, or one batch of a batch sampler."""
        return 1 if self._batch_sampler is not None else self.batch_size * self.world_size // self.lanes

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
        return len(self._loader) if self._snapshot is None else len(self._planned().batches_from(0))

    @property
    def epoch(self) -> int:
        """The epoch that state_dict() stands in."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; where a restored state stands inside it, it goes on there."""
        epoch = whole("set_epoch", epoch, 0)
        if not (self._pending and epoch == self._epoch):
            self._end()
            self._epoch, self._consumed, self._pending = epoch, 0, True
        inner = getattr(self.dataset, "set_epoch", None)
        if callable(inner):
            inner(epoch)

    def _end(self) -> None:
        run, self._pass = self._pass, None
        if run is not None:
            run.drop()

    def __iter__(self) -> Passing:
        """The next epoch's batches, or the rest of the one that a restored state stands in."""
        if self._closed:
            msg = "loader: used after close(); make a new one"
            raise ClosedError(msg)
        self._end()
        if not self._pending:
            self._epoch, self._consumed, self._pending = self._epoch + 1, 0, True
        if self._snapshot is not None:
            self._order.batches = self._planned().batches_from(self._consumed)
        self._pass = Passing(self, iter(self._loader))
        return self._pass

    def _made_for(self) -> dict[str, Any]:
        snapshot, plan = self._positions(), self._planned()
        return states.made_for(
            snapshot, self._mixed(), seed=self.seed, lanes=self.lanes, drop_last=self.drop_last, sampler=plan.digest
        )

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer stands; counts batches handed over. StateError for an iterable-style dataset."""
        info = {"engine": "torch", "world_size": self.world_size, "batch_size": self.batch_size}
        made = self._made_for()
        return states.pack(made, self._positions(), epoch=self._epoch, consumed=self._consumed, info=info)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on where `state` was taken: no sample before it is read."""
        state, before = states.check(state, MAX_EPOCH), self._epoch
        self._epoch = state["epoch"]
        try:
            states.compare(state, self._made_for(), self._positions(), self._planned().length)
        except BaseException:
            self._epoch = before
            raise
        self._end()
        self._consumed, self._pending = state["consumed"], True

    def commit(self) -> None:
        """There is no group to tell."""

    def describe(self) -> str:
        """Who runs it and why."""
        return f"{type(self.dataset).__qualname__} with torch's own DataLoader, batches of {self.batch_size}"

    def stats(self) -> Stats:
        """Batches and what the trainer waited; torch does not say the rest."""
        return self._meter.stats(0)

    def close(self) -> None:
        """End the workers. Safe to call twice."""
        self._closed = True
        self._end()
        workers = getattr(self._loader, "_iterator", None)
        if workers is not None and hasattr(workers, "_shutdown_workers"):
            workers._shutdown_workers()


class Passing:
    """One pass; each batch taken moves the state."""

    def __init__(self, feed: TorchFeed, batches: Iterator[Any]) -> None:
        self._feed = feed
        self._batches: Iterator[Any] | None = batches
        self._ended = False

    def __len__(self) -> int:
        """Batches still to come."""
        return len(self._feed) - self._feed._consumed

    def __iter__(self) -> Passing:
        return self

    def __next__(self) -> Any:
        return self.take()

    def take(self, timeout: float | None = None) -> Any:
        """The next batch as torch's loader made it, which has its own timeout."""
        del timeout
        feed = self._feed
        if self._ended:
            raise StopIteration
        if self._batches is None:
            msg = "iterator: a newer pass over the same loader, set_epoch() or load_state_dict() has ended this pass"
            raise ClosedError(msg)
        try:
            batch = next(self._batches)
        except StopIteration:
            self._batches, self._ended, feed._pass = None, True, None
            feed._epoch, feed._consumed, feed._pending = feed._epoch + 1, 0, True
            raise
        feed._consumed = min(feed._consumed + feed._part, feed._planned().length) if feed._snapshot is not None else 0
        feed._pending = False
        feed._meter.batches += 1
        return batch

    def drop(self) -> None:
        """Leave it; the workers of one that is not persistent end."""
        self._batches = None
