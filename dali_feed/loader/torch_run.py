"""A dataset that only torch can read, run by torch's own DataLoader in our order: same lengths, same state.

The law: order is our plan's, pure in (seed, epoch), or the user's sampler's, so a map-style dataset resumes at the
exact sample. Random numbers that the dataset draws itself are not ours and do not resume. An iterable-style
dataset has no positions: its state is its own `state_dict()`, where it has one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, IterDataPipe

from dali_feed.bad_records import Outbox
from dali_feed.errors import ClosedError, ConfigError, StateError
from dali_feed.feed.epochs import Epochs
from dali_feed.feed.machine import loop_stages
from dali_feed.feed.meter import Meter
from dali_feed.feed.passes import Batches
from dali_feed.feed.planning import Plan, Planning
from dali_feed.feed.run import Gate
from dali_feed.feed.stats import Running, Stats
from dali_feed.loader.arguments import as_config_error
from dali_feed.loader.dataset_source import snapshot_of
from dali_feed.options import BadRecords
from dali_feed.plan import state as states
from dali_feed.plan.batching import Shares, digest_of, length_of
from dali_feed.plan.order import EpochPlan, Shuffle, resolve
from dali_feed.records.source import Snapshot, unpack_ids


def _of_length(dataset: Any, count: int) -> Snapshot:
    """The dataset's positions, as if it had so many."""
    snapshot = snapshot_of(dataset, count)
    return replace(snapshot, source=f"{snapshot.source} with torch's own DataLoader")


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
        self._dataset = dataset
        if sampler is None and length_of(dataset) is None and not isinstance(dataset, IterableDataset):
            raise ConfigError(
                f"dataset: a map-style one must have a length; found none of {type(dataset).__qualname__}."
                " Give it a __len__, or the loader a sampler"
            )
        super().__init__(
            lambda _=None: _of_length(dataset, length_of(dataset) or 0),
            ranks,
            shuffle=shuffle,
            sampler=sampler,
            seed=seed,
            drop_last=drop_last,
        )
        self._single = single
        self._keys: list[Any] | None = None  # what the sampler gave

    def look(self) -> None:
        """Look at the dataset again, as it may have grown: later epochs have all its samples."""
        if (length_of(self._dataset) or 0) != len(self.snapshot):  # 0 of one without a length
            self._snapshot = self._shares = self._plan = None

    def _ordered(self, sampler: Iterable[Any], epoch: int, items: list[Any]) -> Plan:
        self._keys, self._digest = items, digest_of(sampler, items)
        return self._planned(epoch)

    def _planned(self, epoch: int, indices: NDArray[np.int64] | None = None) -> Plan:
        snapshot, order = self.snapshot, self.order
        if self._keys is not None:
            snapshot = _of_length(self._dataset, len(self._keys))
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


# An iterable-style dataset that torch's loader runs in this process, and where it stands: by its own word.
#
# The law: what is restored is what was saved. As torchdata has it, a dataset goes on from its state before its iterator
# is made, and an iterator, which may be the dataset itself, after that: making it would begin the data again.


@runtime_checkable
class Stateful(Protocol):
    """What says where it stands."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        ...


class OwnState(IterableDataset[Any]):
    """In the dataset's place: it knows the iterator of the pass under way."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._iterator: Any = None
        self._due: Mapping[str, Any] | None = None  # a state that the next iterator goes on from

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        due = self._due or {}
        if "dataset" in due:
            self._dataset.load_state_dict(due["dataset"])
        iterator = iter(self._dataset)
        if "iterator" in due:
            if not isinstance(iterator, Stateful):
                kind = type(self._dataset).__qualname__
                raise StateError(f"state: it has that of an iterator; found one of {kind} without load_state_dict()")
            iterator.load_state_dict(due["iterator"])
        self._due, self._iterator = None, iterator  # last: a start that failed is tried again from the same state
        return cast("Iterator[Any]", iterator)

    def saved(self) -> dict[str, Any] | None:
        """Where it stands: its own state, and its iterator's where that is another; None where neither says it."""
        if self._due is not None:
            return dict(self._due)
        parts: dict[str, Any] = {}
        if isinstance(self._dataset, Stateful) and self._iterator is not self._dataset:
            parts["dataset"] = self._dataset.state_dict()
        if isinstance(self._iterator, Stateful):
            parts["iterator"] = self._iterator.state_dict()
        return parts or None

    def go_to(self, state: Mapping[str, Any]) -> None:
        """The next iterator goes on from there."""
        self._iterator, self._due = None, state

    def ended(self) -> None:
        """The pass is over: what comes next is a new one."""
        self._iterator = None


# What runs it: torch's own DataLoader, in the place of our readers and our engine.


def _loader_class(dataset: Any, options: Mapping[str, Any]) -> Any:
    """Torch's; of an iterable-style dataset in workers torchdata's, where it is there: it gathers their states."""
    if isinstance(dataset, IterableDataset) and options.get("num_workers") and isinstance(dataset, Stateful):
        with contextlib.suppress(ImportError):
            from torchdata.stateful_dataloader import StatefulDataLoader

            return StatefulDataLoader
    return TorchLoader


_END = object()  # in the place of a batch


def _rows(item: Any, size: int) -> int:
    """How many samples are in a batch of unknown size: the rows of the first tensor in it, or else `size`."""
    if isinstance(item, torch.Tensor):
        return len(item) if item.ndim else 1
    if isinstance(item, Mapping):
        item = list(item.values())
    if isinstance(item, list | tuple) and item:
        return len(item) if isinstance(item[0], str | bytes | int | float) else _rows(item[0], size)
    return size


class TorchMachine:
    """Torch's loader; what it makes is given out as it is. `size`: samples in a batch; None: single samples.

    `options` are torch's own arguments for how, not what: num_workers, collate_fn, pin_memory, ...
    """

    threads = ()  # of ours

    def __init__(
        self, dataset: Any, size: int | None, options: Mapping[str, Any], how: Mapping[str, Any] | None = None
    ) -> None:
        self.dataset, self.size, self.meter = dataset, size, Meter()
        self.outbox = Outbox(dataset, None)
        self.order: list[Any] = []  # of the pass that begins: what torch asks the dataset for, in turn
        if how is None:
            how = {"batch_size": None, "sampler": self.order} if size is None else {"batch_sampler": self.order}
        self._left: Any = None  # the state of a pass that was left where the loop had not come to what was fetched
        alone = isinstance(dataset, IterableDataset) and not isinstance(dataset, IterDataPipe)
        self._own = OwnState(dataset) if alone and not options.get("num_workers") else None
        with as_config_error():
            self.loader: Any = _loader_class(dataset, options)(
                dataset if self._own is None else self._own, **how, **options
            )

    def own_state(self) -> Any:
        """Of a dataset without positions what it says of itself; None where it, or its workers, say nothing."""
        if self._left is not None:
            return self._left
        if self._own is not None:
            return self._own.saved()
        if isinstance(self.loader, Stateful):
            return self.loader.state_dict()
        alone = not self.loader.num_workers and isinstance(self.dataset, Stateful)
        return self.dataset.state_dict() if alone else None

    def check(self, own: Any) -> None:
        """StateError where it cannot go on from that: a pass in worker processes says more of itself, or less."""
        workers, pipe = self.loader.num_workers, isinstance(self.dataset, IterDataPipe)
        gathers = isinstance(self.loader, Stateful)
        gathered = isinstance(own, Mapping) and "_snapshot" in own  # by torchdata, from worker processes
        if not workers and (gathered or not (pipe or own.keys() <= {"dataset", "iterator"})):
            raise StateError("state: it is of worker processes; found num_workers=0. Load it with as many as it had")
        if gathered and not gathers:
            raise StateError("state: it is of worker processes; found no torchdata, which goes on from it. Install it")
        if workers and not gathered and (gathers or not (pipe or own.keys() == {"dataset"})):
            raise StateError(f"state: it is of num_workers=0; found num_workers={workers}. Load it with num_workers=0")

    def go_to(self, own: Any) -> None:
        """Let it go on from what it said of itself."""
        self._left = None
        if self._own is not None:
            self._own.go_to(own)
        elif isinstance(self.loader, Stateful):
            self.loader.load_state_dict(own)
        else:
            self.dataset.load_state_dict(own if isinstance(self.dataset, IterDataPipe) else own["dataset"])

    def begin(self) -> Iterator[Any]:
        """A pass."""
        left, self._left = self._left, None
        if left is not None and self._own is not None and "dataset" in left:
            self.dataset.load_state_dict(left["dataset"])  # a batch that nobody was given is not behind it
        return iter(self.loader)

    def leave(self, own: Any) -> None:
        """A pass is left behind what it said then."""
        self._left = own

    def next_of(self, batches: Iterator[Any]) -> Any:
        """The next batch of a pass, or _END."""
        batch = next(batches, _END)
        if batch is _END and self._own is not None:
            self._own.ended()
        return batch

    def stats(self) -> Stats:
        """Samples, batches, and how long the loop was in next() (`engine_wait`) and elsewhere (`trainer_wait`)."""
        loop, stats = self.meter.loop, replace(self.meter.stats(0), cpu=None)
        if not stats.batches:
            return stats
        return replace(
            stats,
            engine_wait=stats.step_wait + loop.handover,
            trainer_wait=loop.worked,
            stages=loop_stages(self.meter),
            running=Running("torch", on_gpu=False, prefetch=self.loader.prefetch_factor or 0, memory=0),
        )

    def close(self, when_free: object) -> None:
        """End the workers."""
        del when_free
        workers = getattr(self.loader, "_iterator", None)
        if workers is not None and hasattr(workers, "_shutdown_workers"):
            workers._shutdown_workers()


class TorchRun:
    """One pass of torch's loader, in the place of `dali_feed.feed.run.Pass`: it has no thread, and ends with its epoch.

    samples  of the batch that was taken last
    """

    alive, ended_epoch = False, -1
    threads = ()  # of ours

    def __init__(self, machine: TorchMachine, order: Sequence[Any], epoch: int) -> None:
        self._machine, self._indices = machine, iter(order)
        self.samples = 0
        self.gate = Gate(epoch)
        self.gate.finish()  # it does not go on with the next epoch
        self._ahead: list[tuple[Any, Any]] = []  # a batch, or _END, fetched to see if one is there; the state before
        self._first = True
        machine.order[:] = order
        self._batches: Iterator[Any] | None = None

    def begin(self) -> None:
        """Have torch's loader begin."""
        self._batches = self._machine.begin()

    def request(self, epoch: int) -> bool:
        """It never goes on with another epoch."""
        del epoch
        return False

    def take(self, timeout: float | None = None) -> Any:
        """The next batch as torch's loader made it, which has its own timeout."""
        del timeout
        loop = self._machine.meter.loop
        loop.begin_wait(first=self._first)
        batch = self._ahead.pop()[0] if self._ahead else self._next()
        if batch is _END:
            raise StopIteration
        loop.came(None, first=self._first)
        self._first = False
        self.samples = self._size(batch)
        return batch

    def _next(self) -> Any:
        batches = self._batches
        if batches is None:
            msg = "iterator: an error, a newer pass over the same loader, or load_state_dict() has ended this pass"
            raise ClosedError(msg)
        return self._machine.next_of(batches)

    def has_more(self) -> bool:
        """Whether a batch is still to come: it is fetched."""
        if not self._ahead:
            before = self._machine.own_state()
            self._ahead.append((self._next(), before))
        return self._ahead[0][0] is not _END

    def own_state(self) -> Any:
        """The dataset's own, behind the batches that were handed over."""
        return self._ahead[0][1] if self._ahead else self._machine.own_state()

    def _size(self, batch: Any) -> int:
        """How many samples are in a batch: as many as its indices."""
        if self._machine.size is None:
            return 1
        indices = next(self._indices, None)
        return len(indices) if isinstance(indices, Sized) else _rows(batch, self._machine.size)

    def close(self) -> None:
        """Leave it; workers that are not persistent end, also where an error's traceback still holds them."""
        if self._ahead:
            self._machine.leave(self._ahead.pop()[1])
        batches, self._batches = self._batches, None
        shutdown = getattr(batches, "_shutdown_workers", None)
        if shutdown is not None and batches is not getattr(self._machine.loader, "_iterator", None):
            shutdown()


class TorchEpochs(Epochs):
    """Epochs of a map-style dataset; `own_batches`: a batch sampler of the user's says what is in a batch."""

    run: Any  # a TorchRun
    _planning: TorchPlanning

    def __init__(
        self, planning: TorchPlanning, machine: TorchMachine, ranks: Shares, *, own_batches: bool = False
    ) -> None:
        self._torch = machine
        in_place: Any = machine  # of ours, which it stands for
        super().__init__(machine.dataset, planning, in_place, ranks, BadRecords())
        self._own_batches = own_batches

    @property
    def planning(self) -> Planning:
        """After a look at the dataset where an epoch is yet to begin: it may have grown."""
        if self._position.fresh and not self._under_way:
            self._planning.look()
        return self._planning

    def last_step(self) -> tuple[int, int, int] | None:
        return None if self._own_batches else super().last_step()

    def _new_pass(self, epoch: int, consumed: int) -> Any:
        if self._position.fresh:  # its token is there already
            self._planning.look()
        return TorchRun(self._torch, self._planning.rest(epoch, consumed), epoch)

    def _go_to(self, epoch: int) -> bool:
        """The dataset hears of it, too."""
        changed = super()._go_to(epoch)
        self._announce(epoch)
        return changed

    def _announce(self, epoch: int) -> None:
        set_epoch = getattr(self._source, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)

    def _samples(self, batch: Any) -> int:
        del batch
        return 0 if self.run is None else int(self.run.samples)

    @property
    def _info(self) -> dict[str, Any]:
        return {"engine": "torch", "world_size": self.ranks.world_size, "batch_size": self.ranks.batch_size}

    @property
    def _decode(self) -> None:
        return None

    def dropped(self, token: object, run: Any) -> None:
        """See `Positions.dropped`: torch's workers end with its iterator."""
        del run
        if token is self._token and self.here:
            self.end()

    def commit(self) -> None:
        """Does nothing: there is no consumer group."""

    def describe(self) -> str:
        """What runs the dataset."""
        how = "one sample at a time" if self._torch.size is None else f"batches of {self.ranks.batch_size}"
        return f"{type(self._source).__qualname__} with torch's own DataLoader, {how}"


class Iterations(TorchEpochs):
    """Epochs of an iterable-style dataset, which has no positions: its state is its own."""

    def count(self) -> int:
        """What torch says, which may be a TypeError."""
        return len(self._torch.loader)

    def left(self, *, of_next: bool = False) -> int:
        """The same: TypeError for a pass that is under way."""
        if self._under_way and not of_next:
            raise TypeError(_NO_LENGTH)
        return self.count()

    @property
    def shares(self) -> Shares:
        """As they are given."""
        return self.ranks

    def last_step(self) -> None:
        """Nobody knows."""

    def begin(self) -> Batches:
        self.leave()
        run: Any = TorchRun(self._torch, (), self.epoch)
        with self._newest() as (token, _):
            return IterationBatches(self, self._begin(run, token), token, None)

    def _go_to(self, epoch: int) -> bool:
        """It has no epochs to go to; the dataset hears of it."""
        self._announce(epoch)
        return False

    def state(self, at: tuple[int, int]) -> dict[str, Any]:
        """The dataset's own."""
        own = self._torch.own_state() if self.run is None else self.run.own_state()
        return states.iterable(self._source, epoch=at[0], own=own, info=self._info)

    def restore(self, state: Any) -> None:
        checked = states.check(state)
        own = states.iterable_of(checked, self._source)
        self._torch.check(own)
        self.end()
        self._torch.go_to(own)
        self._wanted = None
        self._position.go_to(checked["epoch"], 0)


class IterationBatches(Batches):
    """A pass over an iterable-style dataset, which does not say how long it is."""

    def __len__(self) -> int:
        raise TypeError(_NO_LENGTH)

    def at_end(self) -> bool:
        """Whether no batch is still to come: the next is fetched."""
        positions = self._positions
        if self._ended or positions.run is None:
            return False
        try:
            run: Any = positions.run
            return not run.has_more()
        except BaseException:
            positions.failed(self._token)
            raise


_NO_LENGTH = "an iterable-style dataset does not say how many batches are still to come"
