"""A dataset that only torch can read, run by torch's own DataLoader in our order: same lengths, same state.

The law: order is our plan's, pure in (seed, epoch), or the user's sampler's, so a map-style dataset resumes at the
exact sample. Random numbers that the dataset draws itself are not ours and do not resume. An iterable-style
dataset has no positions and no state.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader as TorchLoader

from dali_feed.errors import ClosedError
from dali_feed.feed.meter import Meter
from dali_feed.feed.stages import Running
from dali_feed.feed.stats import Stats
from dali_feed.feed.summary import loop_stages
from dali_feed.loader.arguments import as_config_error
from dali_feed.loader.torch_passes import Passing
from dali_feed.loader.torch_planning import TorchPlanning
from dali_feed.plan import state as states
from dali_feed.plan.order import Shuffle
from dali_feed.plan.position import Position
from dali_feed.plan.shares import MAX_EPOCH, Dealt, Shares, check_epoch, check_shuffle

__all__ = ["TorchFeed"]


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
        self.dataset, self.shares = dataset, Shares.of(1 if batch_size is None else batch_size, rank, world_size, lanes)
        self._planning = TorchPlanning(
            dataset,
            self.shares,
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
            self._loader: Any = TorchLoader(dataset, **order, **options)
        self._meter = Meter()
        self._at, self._closed = Position(), False
        self._pass: weakref.ref[Passing] | None = None  # dropping a pass ends it, and its workers

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
        """Let the next pass be that of `epoch`; where a restored state stands inside it, it goes on there."""
        epoch = check_epoch(epoch)
        if self._at.set_epoch(epoch):
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
        self._check_open()
        self._end()
        self._at.leave()
        rest = self._planned().rest(self._at)
        self._order.batches = rest.asked
        run = Passing(self._loader, rest, self._at, self._meter)
        self._pass = weakref.ref(run)
        return run

    def _check_open(self) -> None:
        if self._closed:
            msg = "loader: used after close(); make a new one"
            raise ClosedError(msg)

    def state_dict(self) -> dict[str, Any]:
        """The training loop's position; counts batches handed over. StateError for an iterable-style dataset."""
        info = {"engine": "torch", "world_size": self.world_size, "batch_size": self.batch_size}
        planning, at = self._planned(), self._at
        made = planning.made_for(at.epoch)
        return states.pack(made, planning.positions, epoch=at.epoch, consumed=at.consumed, info=info)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on where `state` was taken: no sample before it is read."""
        self._check_open()
        state = states.check(state, MAX_EPOCH)
        self._planning = self._planning.restored(state, anew=not state["consumed"] and self._running is None)
        self._end()
        self._at.go_to(state["epoch"], state["consumed"])

    def commit(self) -> None:
        """Does nothing: there is no consumer group."""

    def describe(self) -> str:
        """What runs the dataset, and why."""
        how = "one sample at a time" if self._planning.single else f"batches of {self.batch_size}"
        return f"{type(self.dataset).__qualname__} with torch's own DataLoader, {how}"

    def stats(self) -> Stats:
        """Samples, batches, and how long the loop was in next() (`engine_wait`) and elsewhere (`trainer_wait`).

        Worker processes work beside the loop: where it waits for a tenth of its own time, they are too slow.
        """
        found = self._meter.stats(0)
        share = 0.1 if self._loader.num_workers else 1.0
        slow = found.engine_wait > share * found.trainer_wait
        if not found.batches:
            return replace(found, bottleneck="", cpu=None)
        running = Running("torch", on_gpu=False, prefetch=self._loader.prefetch_factor or 0, memory=0)
        who = "torch" if slow else "trainer"
        return replace(found, bottleneck=who, stages=loop_stages(self._meter), running=running, cpu=None)

    def close(self) -> None:
        """End the workers. Safe to call twice."""
        self._closed = True
        self._end()
        workers = getattr(self._loader, "_iterator", None)
        if workers is not None and hasattr(workers, "_shutdown_workers"):
            workers._shutdown_workers()
