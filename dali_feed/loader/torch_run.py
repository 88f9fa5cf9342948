"""A dataset that only torch can read, run by torch's own DataLoader in our order: same lengths, same state.

The law: order is our plan's, pure in (seed, epoch), or the user's sampler's, so a map-style dataset resumes at the
exact sample. Random numbers that the dataset draws itself are not ours and do not resume. An iterable-style
dataset has no positions: its state is its own `state_dict()`, where it has one.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from dali_feed.draws import check_seed
from dali_feed.errors import ClosedError, ConfigError, StateError
from dali_feed.feed.machine import loop_stages
from dali_feed.feed.meter import Meter
from dali_feed.feed.stats import Running, Stats
from dali_feed.loader.arguments import as_config_error
from dali_feed.loader.dataset_source import chosen_of
from dali_feed.plan import state as states
from dali_feed.plan.batching import (
    MAX_EPOCH,
    Dealt,
    Shares,
    check_epoch,
    check_shuffle,
)
from dali_feed.plan.order import EpochPlan, Order, Shuffle, resolve
from dali_feed.plan.samplers import (
    announce_epoch,
    check_repeats,
    digest_of,
    go_back,
    length_of,
    read_whole,
    state_of,
)
from dali_feed.plan.state import Position
from dali_feed.records.source import Snapshot, unpack_ids

__all__ = ["TorchFeed"]


# What the epochs of torch's own loader are made of: our order, or a sampler's, over a dataset's positions.
#
# The law: order is our plan's, pure in (seed, epoch), or the user's sampler's, so a map-style dataset resumes at the
# exact sample. An iterable-style dataset has no positions and no state.


@dataclass(frozen=True, slots=True)
class _Epoch:
    """An epoch's order: `batches_from` position `consumed` on, of `length` positions in all; a sampler's digest."""

    epoch: int
    digest: str | None
    length: int
    batches_from: Callable[[int], list[Any]]
    repeats: int = 0


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
        fingerprint=hashlib.sha256(f"{name} {count} {chosen_of(dataset)}".encode()).hexdigest(),
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
        ranks: Shares,
        *,
        shuffle: bool | Shuffle,
        sampler: Iterable[int] | None,
        batch_sampler: Iterable[Any] | None,
        drop_last: bool,
        seed: int,
        single: bool,
    ) -> None:
        self.drop_last, self.seed = bool(drop_last), check_seed(seed)
        self._ranks = ranks
        self._of_state: Shares | None = None  # with the lanes of a state that was loaded
        self._said = False  # whether the world sizes that a state can go to have been logged
        self.single = single
        self._dataset, self._shuffle, self._sampler, self._batch_sampler = dataset, shuffle, sampler, batch_sampler
        self._snapshot = _whole(dataset, ranks, ordered=sampler is not None or batch_sampler is not None)
        self._epoch: _Epoch | None = None
        self._sampler_state: dict[str, Any] | None = None  # where its random numbers stood before that epoch
        self._checked = False  # whether a sampler without such has been read again

    @property
    def shares(self) -> Shares:
        """How global batches are divided; by the dataset's length where nobody gave `lanes`."""
        if self._of_state is not None:
            return self._of_state
        if self._snapshot is None or self._batch_sampler is not None:
            return self._ranks
        return self._ranks.widened(self._snapshot, self._mixed(), drop_last=self.drop_last)

    def tell_world_sizes(self) -> None:
        """See `dali_feed.feed.planning.Planning.tell_world_sizes`."""
        if self._mixed().shuffled and not self._said:
            self._said = True
            self.shares.log_world_sizes()

    @property
    def has_positions(self) -> bool:
        """Whether the dataset is a map-style one."""
        return self._snapshot is not None

    @property
    def part(self) -> int:
        """Positions that a batch takes: samples of each lane, or one batch of a batch sampler."""
        return 1 if self._batch_sampler is not None else self.shares.per_lane

    def lane_length(self, epoch: int) -> int:
        """Positions in that epoch."""
        return self._of(epoch).length

    def last_step(self, epoch: int) -> tuple[int, int, int] | None:
        """See `dali_feed.feed.Feed.last_step`."""
        if self._snapshot is None or self._batch_sampler is not None:
            return None
        its = self._of(epoch)
        samples, tail = self.shares.last_step(its.length)
        return samples, 0 if self.drop_last else its.repeats, tail

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
        return left // self.part if self.drop_last and self._batch_sampler is None else -(-left // self.part)

    def rest(self, at: Position) -> Rest:
        """What is left of the epoch that `at` stands in."""
        size = self.shares.batch_size
        if self._snapshot is None:
            return Rest((), None, 0, self.part, size, self.single)
        epoch = self._of(at.epoch)
        asked, count = epoch.batches_from(at.consumed), self.count(at.epoch, at.consumed)
        return Rest(asked, count, epoch.length, self.part, size, self.single)

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
        found._of_state = self._ranks.of_state(state["made_for"])
        if found.shares != self.shares:
            found._epoch = None
        before = state.get("order")
        known = found._epoch is not None and found._epoch.epoch == epoch
        if isinstance(before, Mapping) and (not known or found._of(epoch).digest != state["made_for"].get("sampler")):
            found._epoch = found._dealt(epoch, before)
        states.compare(dict(state), found.made_for(epoch), found.positions, found._of(epoch).length)
        return found

    def _mixed(self) -> Order:
        return resolve(self._shuffle, self.positions, sampled=self._sampler is not None)

    def _of(self, epoch: int) -> _Epoch:
        if self._epoch is None or self._epoch.epoch != epoch:
            self._epoch = self._dealt(epoch)
        return self._epoch

    def _read(self, sampler: Any, epoch: int, before: Mapping[str, Any] | None) -> list[Any]:
        """What it gives for that epoch; `before`: its random numbers stand there, as a state says."""
        if before is not None:
            self._sampler_state = dict(before)
            return go_back(sampler, before, epoch, len(self.positions))
        self._sampler_state = state_of(sampler)
        announce_epoch(sampler, epoch)
        return read_whole(sampler, len(self.positions))

    def order_state(self, epoch: int) -> dict[str, Any] | None:
        """See `dali_feed.feed.planning.Planning.order_state`."""
        its = self._of(epoch)
        sampler = self._sampler if self._batch_sampler is None else self._batch_sampler
        if sampler is None or its.digest is None:
            return None
        if self._sampler_state is None and not self._checked:
            check_repeats(sampler, epoch, its.digest, len(self.positions))
            self._checked = True
        return self._sampler_state

    def _dealt(self, epoch: int, before: Mapping[str, Any] | None = None) -> _Epoch:
        """This rank's part of that epoch."""
        if self._batch_sampler is not None:
            batches = self._read(self._batch_sampler, epoch, before)
            return _Epoch(epoch, digest_of(self._batch_sampler, batches), len(batches), lambda first: batches[first:])
        if self._sampler is None:
            keys, digest, positions, order = None, None, self.positions, self._mixed()
        else:  # indices may be of any type that the dataset takes: the plan orders their places in a list
            keys = self._read(self._sampler, epoch, before)
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
        part, length = self.part, plan.lane_length

        def batches_from(first: int) -> list[Any]:
            stop = length - (length - first) % part if self.drop_last else length
            lines: list[list[Any]] = [unpack_ids(plan.ids(lane, first, stop))[1].tolist() for lane in self.shares.mine]
            lines = lines if keys is None else [[keys[i] for i in line] for line in lines]
            if self.single:  # of one line, for lanes divide the samples of a step
                return lines[0]
            return [[i for line in lines for i in line[at : at + part]] for at in range(0, stop - first, part)]

        return _Epoch(epoch, digest, length, batches_from, plan.repeats)


# One pass of torch's own DataLoader: each batch taken moves the position, and is counted.


def _rows(item: Any, size: int) -> int:
    """How many samples are in a batch of unknown size: the rows of the first tensor in it, or else `size`."""
    if isinstance(item, torch.Tensor):
        return len(item) if item.ndim else 1
    if isinstance(item, Mapping):
        item = list(item.values())
    if isinstance(item, list | tuple) and item:
        return len(item) if isinstance(item[0], str | bytes | int | float) else _rows(item[0], size)
    return size


class Passing:
    """One pass; each batch taken moves the position. Dropping it ends the pass."""

    def __init__(
        self, loader: TorchLoader[Any], rest: Rest, at: Position, meter: Meter, state: Callable[[], Any]
    ) -> None:
        self._loader, self._rest, self._at, self._meter = loader, rest, at, meter
        self._state = state  # the dataset's own, where it has no positions
        self._ahead: list[
            tuple[Any, Any]
        ] = []  # a batch that was fetched to see whether it is there, and the state before
        self._left = rest.count
        self._asked = iter(rest.asked)
        self._batch = 0
        self._batches: Iterator[Any] | None = iter(loader)
        self._ended = False

    @property
    def under_way(self) -> bool:
        """Whether it may still give batches."""
        return self._batches is not None

    def __len__(self) -> int:
        """Batches still to come; TypeError for an iterable-style dataset."""
        if self._left is None:
            msg = "an iterable-style dataset does not say how many batches are still to come"
            raise TypeError(msg)
        return self._left

    def __iter__(self) -> Passing:
        return self

    def __next__(self) -> Any:
        return self.take()

    def take(self, timeout: float | None = None, make: Callable[[Any], Any] | None = None) -> Any:
        """The next batch as torch's loader made it, which has its own timeout. An error of it ends the pass."""
        del timeout
        if self._ended:
            raise StopIteration
        if self._batches is None:
            msg = "iterator: an error, a newer pass over the same loader, or load_state_dict() has ended this pass"
            raise ClosedError(msg)
        self._meter.loop.asked(first=not self._batch)
        try:
            batch = self._ahead.pop()[0] if self._ahead else next(self._batches)
        except StopIteration:
            self._batches, self._ended = None, True
            self._at.ended()
            raise
        except BaseException:  # a batch is missing: none behind it may count
            self._failed()
            raise
        self._meter.loop.came(None, first=not self._batch)
        self._batch += 1
        try:
            batch = batch if make is None else make(batch)
        except BaseException:
            self._failed()
            raise
        self._meter.given(self._size(batch))
        count = 0
        if self._left is not None:
            self._left -= 1
            count = min(self._rest.part, self._rest.length - self._at.consumed)
        self._at.took(count, last=self._left == 0)
        return batch

    def at_end(self) -> bool:
        """Whether no batch is still to come. Where the dataset does not say how many there are, the next is fetched."""
        if self._left is not None:
            return self._left == 0
        if not self._ahead and self._batches is not None:
            before = self._state()
            try:
                self._ahead.append((next(self._batches), before))
            except StopIteration:
                return True
            except BaseException:
                self._failed()
                raise
        return False

    def state(self) -> Any:
        """The dataset's own, behind the batches that were handed over."""
        return self._ahead[0][1] if self._ahead else self._state()

    def _size(self, batch: Any) -> int:
        """Samples in a batch: as many as its indices."""
        if self._rest.single:
            return 1
        asked = next(self._asked, None)
        return len(asked) if isinstance(asked, Sized) else _rows(batch, self._rest.size)

    def _failed(self) -> None:
        self._at.failed()
        self.drop()

    def drop(self) -> None:
        """Leave the pass; workers that are not persistent end, also where an error's traceback still holds them."""
        batches, self._batches = self._batches, None
        shutdown = getattr(batches, "_shutdown_workers", None)
        if shutdown is not None and batches is not getattr(self._loader, "_iterator", None):
            shutdown()


@runtime_checkable
class _Stateful(Protocol):
    """What has a state of its own."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> None: ...


def _loader_class(dataset: Any, options: Mapping[str, Any]) -> Any:
    """Torch's; of an iterable-style dataset in workers torchdata's, where it is there: it gathers their states."""
    if isinstance(dataset, IterableDataset) and options.get("num_workers") and isinstance(dataset, _Stateful):
        with contextlib.suppress(ImportError):
            from torchdata.stateful_dataloader import StatefulDataLoader

            return StatefulDataLoader
    return TorchLoader


class _Batches:
    """The batch sampler that torch gets: it gives the batches of the next epoch."""

    def __init__(self) -> None:
        self.batches: Sequence[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


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
        mixed: bool | Shuffle = False if shuffle is None else shuffle
        check_shuffle(mixed)
        single = batch_size is None and batch_sampler is None
        self.dataset, self.ranks = dataset, Shares.of(1 if batch_size is None else batch_size, rank, world_size, lanes)
        self._planning = TorchPlanning(
            dataset,
            self.ranks,
            shuffle=mixed,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            seed=seed,
            single=single,
        )
        self.drop_last, self.seed = self._planning.drop_last, self._planning.seed
        self._order = _Batches()
        order: dict[str, Any]
        if not self._planning.has_positions:
            order = {"batch_size": None if single else self.batch_size, "drop_last": drop_last, "shuffle": shuffle}
        else:
            order = {"batch_size": None, "sampler": self._order} if single else {"batch_sampler": self._order}
        with as_config_error():
            self._loader: Any = _loader_class(dataset, options)(dataset, **order, **options)
        self._meter = Meter()
        self._at, self._closed = Position(), False
        self._next_epoch: int | None = None  # where the user has said it while a pass was under way
        self._pass: weakref.ref[Passing] | None = None  # dropping a pass ends it, and its workers

    @property
    def shares(self) -> Shares:
        """How global batches are divided."""
        return self._planning.shares

    def _planned(self) -> TorchPlanning:
        """The planning, after a look at the dataset where an epoch is yet to begin."""
        if self._at.fresh and self._running is None:
            self._planning.look()
        return self._planning

    def __len__(self) -> int:
        """Batches in an epoch; of an iterable-style dataset what torch says, which may be a TypeError."""
        return self._planned().count(self.epoch) if self._planning.has_positions else len(self._loader)

    @property
    def batches_left(self) -> int:
        """Batches that the pass under way still gives, or else the next one will; TypeError if unknown."""
        run = self._running
        if run is not None:
            return len(run)
        _, consumed = self._at.next
        return self._planned().count(self.epoch, consumed) if self._planning.has_positions else len(self._loader)

    @property
    def epoch(self) -> int:
        """The epoch that state_dict() stands in."""
        return self._at.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; where a restored state stands inside it, it goes on there.

        A pass under way goes on to its end.
        """
        epoch = check_epoch(epoch)
        if self._running is not None:
            self._next_epoch = epoch
            return
        self._next_epoch = None
        self._go_on(epoch)

    def _go_on(self, epoch: int) -> None:
        """The next pass is that of `epoch`, and the dataset hears of it."""
        if self._planning.has_positions and self._at.set_epoch(epoch):
            self._end()
        inner = getattr(self.dataset, "set_epoch", None)
        if callable(inner):
            inner(epoch)

    @property
    def _running(self) -> Passing | None:
        run = None if self._pass is None else self._pass()
        return run if run is not None and run.under_way else None

    def _end(self) -> None:
        run, self._pass = self._running, None
        if run is not None:
            run.drop()

    def __iter__(self) -> Passing:
        """The next epoch's batches, or the rest of the one that a restored state stands in."""
        self.check()
        self.leave()
        rest = self._planned().rest(self._at)
        self._order.batches = rest.asked
        run = Passing(self._loader, rest, self._at, self._meter, self._own_state)
        self._pass = weakref.ref(run)
        return run

    def leave(self) -> None:
        """End the current pass and go to where the next one begins."""
        self._end()
        epoch, self._next_epoch = self._next_epoch, None
        if epoch is not None:
            self._go_on(epoch)
        self._at.leave()

    @property
    def per_lane(self) -> int:
        """Positions of each lane that a full batch takes."""
        return self._planning.part

    @property
    def at_end(self) -> bool:
        """See `dali_feed.feed.Feed.at_end`."""
        at = self._at
        return self._running is None and at.pending and at.consumed > 0 and not self.batches_left

    @property
    def lane_length(self) -> int:
        """Positions of a lane in the epoch that state_dict() stands in."""
        return self._planning.lane_length(self.epoch)

    def last_step(self) -> tuple[int, int, int] | None:
        """See `dali_feed.feed.Feed.last_step`."""
        return self._planned().last_step(self.epoch)

    def _own_state(self) -> Any:
        """Of a dataset without positions what it says of itself; None where it says nothing."""
        owner = self._loader if isinstance(self._loader, _Stateful) else self.dataset
        own = getattr(owner, "state_dict", None)
        return own() if callable(own) and self._keeps_state else None

    @property
    def _keeps_state(self) -> bool:
        """Whether it can go on from such a state: worker processes have datasets of their own."""
        if isinstance(self._loader, _Stateful):
            return True
        return not self._loader.num_workers and isinstance(self.dataset, _Stateful)

    def check(self) -> None:
        """Raise ClosedError after close()."""
        if self._closed:
            msg = "loader: used after close(); make a new one"
            raise ClosedError(msg)

    def state_dict(self) -> dict[str, Any]:
        """The training loop's position; counts batches handed over. Of an iterable-style dataset its own state."""
        info = {"engine": "torch", "world_size": self.world_size, "batch_size": self.batch_size}
        planning, at = self._planned(), self._at
        if not planning.has_positions:
            run = self._running
            own = self._own_state() if run is None else run.state()
            return states.iterable(self.dataset, epoch=at.epoch, own=own, info=info)
        made = planning.made_for(at.epoch)
        planning.tell_world_sizes()
        order = planning.order_state(at.epoch)
        return states.pack(made, planning.positions, epoch=at.epoch, consumed=at.consumed, info=info, order=order)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on where `state` was taken: no sample before it is read."""
        self.check()
        state = states.check(state, MAX_EPOCH)
        if not self._planning.has_positions:
            own = states.iterable_of(state, self.dataset)
            self._end()
            (self._loader if isinstance(self._loader, _Stateful) else self.dataset).load_state_dict(own)
        else:
            self._planning = self._planning.restored(state, anew=not state["consumed"] and self._running is None)
            self._end()
        self._next_epoch = None
        self._at.go_to(state["epoch"], state["consumed"])

    def commit(self) -> None:
        """Does nothing: there is no consumer group."""

    def describe(self) -> str:
        """What runs the dataset, and why."""
        how = "one sample at a time" if self._planning.single else f"batches of {self.batch_size}"
        return f"{type(self.dataset).__qualname__} with torch's own DataLoader, {how}"

    def stats(self) -> Stats:
        """Samples, batches, and how long the loop was in next() (`engine_wait`) and elsewhere (`trainer_wait`)."""
        loop, stats = self._meter.loop, replace(self._meter.stats(0), cpu=None)
        if not stats.batches:
            return stats
        return replace(
            stats,
            engine_wait=stats.step_wait + loop.handover,
            trainer_wait=loop.worked,
            stages=loop_stages(self._meter),
            running=Running("torch", on_gpu=False, prefetch=self._loader.prefetch_factor or 0, memory=0),
        )

    def close(self) -> None:
        """End the workers. Safe to call twice."""
        self._closed = True
        self._end()
        workers = getattr(self._loader, "_iterator", None)
        if workers is not None and hasattr(workers, "_shutdown_workers"):
            workers._shutdown_workers()
