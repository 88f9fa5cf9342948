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
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from dali_feed.draws import check_seed
from dali_feed.errors import ClosedError, ConfigError
from dali_feed.feed.machine import loop_stages
from dali_feed.feed.meter import Meter
from dali_feed.feed.planning import Plan, Planning
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
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.order import EpochPlan, Shuffle, resolve
from dali_feed.plan.samplers import (
    digest_of,
    length_of,
)
from dali_feed.plan.state import Position
from dali_feed.records.source import Snapshot, unpack_ids

__all__ = ["TorchFeed"]


class _Positions:
    """A dataset's positions 0..len-1, as a plan has them; `snapshot` is all that a planning asks of a source."""

    def __init__(self, dataset: Any, *, ordered: bool) -> None:
        self._dataset = dataset
        if not ordered and length_of(dataset) is None:
            msg = (
                f"dataset: a map-style one must have a length; found none of {type(dataset).__qualname__}."
                " Give it a __len__, or the loader a sampler"
            )
            raise ConfigError(msg)

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """What the dataset has now."""
        del pin
        return self.of_length(length_of(self._dataset) or 0)

    def of_length(self, count: int) -> Snapshot:
        """As if it had so many."""
        name = f"{type(self._dataset).__module__}.{type(self._dataset).__qualname__}"
        return Snapshot(
            source=f"{name} with torch's own DataLoader",
            names=(type(self._dataset).__name__,),
            starts=np.zeros(1, np.int64),
            stops=np.array([count], np.int64),
            extent=1,
            record_bytes=1,
            random_access=True,
            interleaved=False,
            fingerprint=hashlib.sha256(f"{name} {count} {chosen_of(self._dataset)}".encode()).hexdigest(),
        )


class TorchPlanning(Planning):
    """The epochs of a map-style dataset, as lists of indices for torch's loader.

    A sampler's indices may be of any type that the dataset takes, and a batch sampler's batches are taken as they are:
    the plan orders their places. `single`: torch takes them one by one.
    """

    def __init__(
        self,
        dataset: Any,
        ranks: Shares,
        *,
        shuffle: bool | Shuffle,
        sampler: Iterable[Any] | None,
        seed: int,
        drop_last: bool,
        single: bool,
    ) -> None:
        self._positions = _Positions(dataset, ordered=sampler is not None)
        super().__init__(
            self._positions,
            ranks,
            shuffle=shuffle,
            sampler=sampler,
            seed=seed,
            drop_last=drop_last,
            may_look=lambda: None,
        )
        self._single = single
        self._keys: list[Any] | None = None  # what the sampler gave

    def look(self) -> None:
        """Look at the dataset again, as it may have grown: later epochs have all its samples."""
        if len(self._positions.snapshot()) != len(self.snapshot):
            self._snapshot = self._shares = self._plan = None

    def _ordered(self, sampler: Iterable[Any], epoch: int, items: list[Any]) -> Plan:
        self._keys, self._digest = items, digest_of(sampler, items)
        return self._made(epoch)

    def _made(self, epoch: int, indices: NDArray[np.int64] | None = None) -> Plan:
        snapshot, order = self.snapshot, self.order
        if self._keys is not None:
            snapshot = self._positions.of_length(len(self._keys))
            order = resolve(shuffle=False, snapshot=snapshot)
        return EpochPlan(
            snapshot,
            order,
            seed=self.seed,
            epoch=epoch,
            lanes=self.shares.lanes,
            drop_last=self.drop_last,
            indices=indices,
            may_be_empty=True,
        )

    def rest(self, epoch: int, consumed: int) -> list[Any]:
        """What torch's loader is asked for from there on: lists of indices, or what it takes one by one."""
        plan, part = self.plan(epoch), self.shares.per_lane
        stop = consumed + sum(self.counts_of(plan, consumed))
        lines: list[list[Any]] = [unpack_ids(plan.ids(lane, consumed, stop))[1].tolist() for lane in self.shares.mine]
        if self._keys is not None:
            lines = [[self._keys[i] for i in line] for line in lines]
        if self._single:  # of one line, for lanes divide the samples of a step
            return lines[0]
        return [[i for line in lines for i in line[at : at + part]] for at in range(0, stop - consumed, part)]


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
    """One pass; each batch taken moves the position. Dropping it ends the pass.

    order   what torch's loader is asked for; empty where the dataset itself says what comes
    counts  samples of each lane, of each batch; None where nobody knows how many there are
    size    samples in each batch, where `order` does not say; None: each is a single sample
    """

    def __init__(
        self,
        loader: TorchLoader[Any],
        order: Sequence[Any],
        counts: Sequence[int] | None,
        size: int | None,
        at: Position,
        meter: Meter,
        state: Callable[[], Any],
    ) -> None:
        self._loader, self._counts, self._size, self._at, self._meter = loader, counts, size, at, meter
        self._state = state  # the dataset's own, where it has no positions
        self._ahead: list[tuple[Any, Any]] = []  # a batch that was fetched to see whether it is there, the state before
        self._order = iter(order)
        self._taken = 0
        self._batches: Iterator[Any] | None = iter(loader)
        self._ended = False

    @property
    def under_way(self) -> bool:
        """Whether it may still give batches."""
        return self._batches is not None

    def __len__(self) -> int:
        """Batches still to come; TypeError for an iterable-style dataset."""
        if self._counts is None:
            msg = "an iterable-style dataset does not say how many batches are still to come"
            raise TypeError(msg)
        return len(self._counts) - self._taken

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
        self._meter.loop.asked(first=not self._taken)
        try:
            batch = self._ahead.pop()[0] if self._ahead else next(self._batches)
        except StopIteration:
            self._batches, self._ended = None, True
            self._at.ended()
            raise
        except BaseException:  # a batch is missing: none behind it may count
            self._failed()
            raise
        self._meter.loop.came(None, first=not self._taken)
        try:
            batch = batch if make is None else make(batch)
        except BaseException:
            self._failed()
            raise
        self._meter.given(self._samples(batch))
        count = 0 if self._counts is None else self._counts[self._taken]
        self._taken += 1
        self._at.took(count, last=self._counts is not None and self._taken == len(self._counts))
        return batch

    def at_end(self) -> bool:
        """Whether no batch is still to come. Where the dataset does not say how many there are, the next is fetched."""
        if self._counts is not None:
            return self._taken == len(self._counts)
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

    def _samples(self, batch: Any) -> int:
        """How many are in a batch: as many as its indices."""
        if self._size is None:
            return 1
        indices = next(self._order, None)
        return len(indices) if isinstance(indices, Sized) else _rows(batch, self._size)

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
        own = batch_sampler is not None
        self._single = single = batch_size is None and not own
        self.dataset, self.ranks = dataset, Shares.of(1 if batch_size is None else batch_size, rank, world_size, lanes)
        self.drop_last, self.seed = bool(drop_last), check_seed(seed)
        self._own_batches = own
        self._planning: TorchPlanning | None = None  # None: an iterable-style dataset says itself what comes
        self._order = _Batches()
        order: dict[str, Any]
        if isinstance(dataset, IterableDataset):
            if world_size > 1:
                msg = (
                    f"dataset: an iterable-style one gives every rank the same samples; found world_size={world_size}."
                    " Divide its samples inside the dataset, and give rank=0, world_size=1"
                )
                raise ConfigError(msg)
            order = {"batch_size": None if single else self.batch_size, "drop_last": drop_last, "shuffle": shuffle}
        else:
            self._planning = TorchPlanning(
                dataset,
                self.ranks,
                shuffle=mixed,
                sampler=batch_sampler if own else sampler,
                seed=seed,
                drop_last=self.drop_last,
                single=single or own,
            )
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
        return self.ranks if self._planning is None else self._planning.shares

    def _planned(self) -> TorchPlanning | None:
        """The planning, after a look at the dataset where an epoch is yet to begin; None of an iterable-style one."""
        if self._planning is not None and self._at.fresh and self._running is None:
            self._planning.look()
        return self._planning

    def __len__(self) -> int:
        """Batches in an epoch; of an iterable-style dataset what torch says, which may be a TypeError."""
        planning = self._planned()
        return len(self._loader) if planning is None else len(planning.counts(self.epoch))

    @property
    def batches_left(self) -> int:
        """Batches that the pass under way still gives, or else the next one will; TypeError if unknown."""
        run, planning = self._running, self._planned()
        if run is not None:
            return len(run)
        _, consumed = self._at.next
        return len(self._loader) if planning is None else len(planning.counts(self.epoch, consumed))

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
        if self._planning is not None and self._at.set_epoch(epoch):
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
        planning, at = self._planned(), self._at
        counts = None if planning is None else planning.counts(at.epoch, at.consumed)
        self._order.batches = () if planning is None else planning.rest(at.epoch, at.consumed)
        size = None if self._single else self.batch_size
        run = Passing(self._loader, self._order.batches, counts, size, at, self._meter, self._own_state)
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
    def at_end(self) -> bool:
        """See `dali_feed.feed.Feed.at_end`."""
        at = self._at
        return self._running is None and at.pending and at.consumed > 0 and not self.batches_left

    @property
    def lane_length(self) -> int:
        """Positions of a lane in the epoch that state_dict() stands in."""
        return 0 if self._planning is None else self._planning.plan(self.epoch).lane_length

    def last_step(self) -> tuple[int, int, int] | None:
        """See `dali_feed.feed.Feed.last_step`."""
        planning = self._planned()
        if planning is None or self._own_batches:
            return None
        plan = planning.plan(self.epoch)
        samples, tail = self.shares.last_step(plan.lane_length)
        return samples, 0 if self.drop_last or isinstance(plan, MixedPlan) else plan.repeats, tail

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
        if planning is None:
            run = self._running
            own = self._own_state() if run is None else run.state()
            return states.iterable(self.dataset, epoch=at.epoch, own=own, info=info)
        made = planning.made_for(at.epoch, None)
        planning.tell_world_sizes()
        order = planning.order_state(at.epoch)
        return states.pack(made, planning.snapshot, epoch=at.epoch, consumed=at.consumed, info=info, order=order)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on where `state` was taken: no sample before it is read."""
        self.check()
        state = states.check(state, MAX_EPOCH)
        if self._planning is None:
            own = states.iterable_of(state, self.dataset)
            self._end()
            (self._loader if isinstance(self._loader, _Stateful) else self.dataset).load_state_dict(own)
        else:
            planning = copy.copy(self._planning)
            if not state["consumed"] and self._running is None:
                planning.look()
            self._planning = planning.restored(state, None)
            self._end()
        self._next_epoch = None
        self._at.go_to(state["epoch"], state["consumed"])

    def commit(self) -> None:
        """Does nothing: there is no consumer group."""

    def describe(self) -> str:
        """What runs the dataset, and why."""
        how = "one sample at a time" if self._single else f"batches of {self.batch_size}"
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
