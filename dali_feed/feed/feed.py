"""Feed: epochs of batches out of a source, a plan and an engine, with a state that says how far they are.

This is the whole loader but for torch: batches hold arrays with `__dlpack__`, for JAX, CuPy or another
engine. `dali_feed.DataLoader` adds torch tensors and torch's argument names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from dali_feed.columns.column import Column
from dali_feed.columns.columns import Columns
from dali_feed.dead_letters import Outbox
from dali_feed.engines.choose import compile_images
from dali_feed.feed.batch import Companions, none
from dali_feed.feed.commit import Placing, commit, progress
from dali_feed.feed.describe import described, running
from dali_feed.feed.epoch import Epochs
from dali_feed.feed.machine import Machine
from dali_feed.feed.passes import Batches, Life, Passes
from dali_feed.feed.planning import Planning, check_order
from dali_feed.feed.stats import Stats
from dali_feed.options import BadRecords, Decode, Tuning, check_groups
from dali_feed.plan import state as states
from dali_feed.plan.batching import MAX_EPOCH, MOST_LANES, Dealt, Shares, check_epoch
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.order import EpochPlan, Order, Shuffle
from dali_feed.records.source import Snapshot, Source, unpack_id

__all__ = ["Feed"]


class Feed(Dealt):
    """Epochs of batches from a bounded source.

    Args:
        source: where records are (`dali_feed.external_sources`).
        batch_size: samples per batch on this rank.
        shuffle: False, True, or a `Shuffle`.
        sampler: indices of the source's samples in the order wanted, instead of `shuffle`; read again each epoch.
        drop_last: leave out the last batch if it is not full.
        transform: torchvision transforms, a DALI graph function, or None; a list of transforms gives several
            views of each image, the further ones in `Batch.more`.
        decode: which engine makes images, how, and which are too large.
        device: a CUDA device's number, or None for the CPU.
        seed: of order and augmentation.
        lanes: the largest world size this run may ever resume at; None: see `dali_feed.DataLoader`.
        rank, world_size: which part of each global batch this process takes.
        bad: what is done with records that cannot be used.
        tuning: threads, prefetch, memory.
        columns: what a batch holds, by name or as a sequence, of `dali_feed.columns`; None: the source's own.

    Raises ConfigError for values that are not allowed; a SourceError, at the first use, where records cannot be read.
    """

    def __init__(  # noqa: PLR0913  what a run is made of; tuning and policy come in groups
        self,
        source: Source,
        batch_size: int = 1,
        *,
        shuffle: bool | Shuffle = False,
        sampler: Iterable[int] | None = None,
        drop_last: bool = False,
        transform: object = None,
        decode: Decode = Decode(),
        device: int | None = None,
        seed: int = 0,
        lanes: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        bad: BadRecords = BadRecords(),
        tuning: Tuning = Tuning(),
        columns: Mapping[str, Column] | Sequence[Column] | None = None,
    ) -> None:
        check_order(source, sampler, shuffle=shuffle)
        check_groups(decode=decode, bad=bad, tuning=tuning)
        self.columns = Columns.of(source, columns, transform, decode)
        self.source = source
        most = world_size if self.columns.joined else MOST_LANES
        self.ranks = Shares.of(batch_size, rank, world_size, lanes, most)
        self._life = Life()
        self._planning = Planning(
            source,
            self.ranks,
            shuffle=shuffle,
            sampler=sampler,
            seed=seed,
            drop_last=drop_last,
            may_look=self._life.check,
        )
        self.seed, self.drop_last, self.device = self._planning.seed, self._planning.drop_last, device
        self.decode, self.bad, self.tuning = decode, bad, tuning
        self.program = compile_images(self.columns, decode, device)
        self.companions: Companions = none  # what a loader wants with each batch; the feed thread asks for it
        self._outbox = Outbox(source, self.bad.dead_letter)
        self._machine = Machine(
            source, self.columns, self.program, self.batch_size, device, decode, self.tuning, self._outbox
        )
        self._slabs = self._machine.slabs
        self._passes = Passes(self._life, self._machine.meter)
        self._placing = Placing()

    # What is fixed once the source has been looked at.

    @property
    def shares(self) -> Shares:
        """How global batches are divided."""
        return self._planning.shares

    @property
    def snapshot(self) -> Snapshot:
        """What the source holds, captured once."""
        return self._planning.snapshot

    @property
    def order(self) -> Order:
        """The shuffle, with what it leaves open filled in for this source."""
        return self._planning.order

    @property
    def has_sampler(self) -> bool:
        """Whether a sampler gives the order."""
        return self._planning.sampled

    @property
    def window_samples(self) -> int:
        """How many samples a window holds at most: those in memory, and shuffled with each other, at one time."""
        return self._planning.window_samples

    @property
    def plan(self) -> EpochPlan | MixedPlan:
        """Which sample comes at which place (slot) of the epoch that state_dict() stands in."""
        return self._planning.plan(self.epoch)

    @property
    def slots(self) -> int:
        """Samples of an epoch on this rank, counting those that drop_last leaves out at its end."""
        return self.plan.lane_length * len(self.shares.mine)

    def check(self) -> None:
        """Raise ClosedError after close(), ConfigError in another process."""
        self._life.check()

    @property
    def at_end(self) -> bool:
        """Whether a state was loaded of an epoch's end: no batch of it is left, and no pass has begun since."""
        at = self._passes.at
        return self._passes.run is None and at.pending and at.consumed > 0 and not self.batches_left

    @property
    def lane_length(self) -> int:
        """Samples of a lane in the epoch that state_dict() stands in."""
        return self.plan.lane_length

    def last_step(self) -> tuple[int, int, int] | None:
        """Samples of all ranks' last batches, repeats at the epoch's end, and samples of a lane in those batches.

        None where repeats are not the end of the order: of a mixture, and where windows are shuffled.
        """
        plan = self.plan
        samples, tail = self.shares.last_step(plan.lane_length)
        if self.drop_last:
            return samples, 0, tail
        if isinstance(plan, MixedPlan) or (plan.mixes and plan.repeats):
            return None
        return samples, plan.repeats, tail

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return len(self._planning.counts(self.epoch))

    def where(self, sample: int) -> str:
        """The coordinates of the record of that id, as people write them."""
        return self.source.where(*unpack_id(sample))

    # Passes.

    @property
    def epoch(self) -> int:
        """The epoch that state_dict() stands in."""
        return self._passes.at.epoch

    @property
    def batches_left(self) -> int:
        """Batches that the current pass will still give, or, if there is none, the next one."""
        at = self._passes.at
        _, consumed = at.next if self._passes.run is None else (at.epoch, at.consumed)
        return len(self._planning.counts(at.epoch, consumed))

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; if a loaded state is inside that epoch, it continues there.

        A pass under way goes on to its end.
        """
        self._passes.set_epoch(check_epoch(epoch))

    def leave(self) -> None:
        """End the current pass and go to where the next one begins, as making its iterator does."""
        self._passes.leave()

    def skip(self) -> None:
        """End a pass that gave a batch, and its epoch, even if that pass was only a look at the data."""
        self._passes.skip()

    def __iter__(self) -> Batches:
        """The batches of the next epoch, or the rest of the epoch that a loaded state is in.

        A pass that was left early is over: its iterator raises ClosedError from here on. A pass of which no batch was
        taken does not count, because some frameworks make an iterator and then another one; and a pass of which only
        the first batch was taken does not count either (`dali_feed.plan.state`). Their epoch comes again.
        """
        self.check()
        self._outbox.retry()
        run, at, planning = self._passes.begun(), self._passes.at, self._planning
        if run is None:
            self._passes.wait()
            parts = self.source, planning, self._machine, self.shares, self.tuning, self.bad, self.companions
            run = self._passes.start(Epochs(*parts, owner=self).run(at.epoch, at.consumed))
        return Batches(self, self._passes, run, planning.counts(at.epoch, at.consumed))

    # State.

    def state_dict(self) -> dict[str, Any]:
        """The loop's position: plain JSON, the same on every rank. Counts what the loop got, nothing prefetched.

        Waits until the dead letters of those batches are on disk or in their topic; DeadLetterError if that fails.
        """
        self._outbox.drain()
        info = {
            "engine": self.program.engine,
            **self.decode.informing,
            "world_size": self.world_size,
            "batch_size": self.batch_size,
        }
        at = self._passes.at
        made = self._planning.made_for(at.epoch, self.decode)
        self._planning.tell_world_sizes()
        order = self._planning.order_state(at.epoch)
        return states.pack(made, self.snapshot, epoch=at.epoch, consumed=at.consumed, info=info, order=order)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass continue where `state` was saved. Reads nothing that came before it.

        Raises a StateError that lists every difference if the state was made for something else, and a SourceError if
        the source no longer holds what it held then; in both cases the current pass continues.
        """
        self.check()
        state = states.check(state, MAX_EPOCH)
        self._planning = self._planning.restored(state, self.decode)
        self._passes.go_to(state["epoch"], state["consumed"])

    def commit(self) -> None:
        """Publish for lag tools how far the epoch is; call it after a checkpoint. See `dali_feed.DataLoader.commit`."""
        self.check()
        at = self._passes.at
        commit(
            self.source,
            self.rank,
            lambda: progress(self.snapshot, self.plan, at, left=bool(self._planning.counts(at.epoch, at.consumed))),
        )

    # The rest.

    def describe(self) -> str:
        """What an epoch is made of, how well it mixes, and what that costs."""
        return described(
            self.snapshot,
            self.order,
            self.shares,
            sampled=self.has_sampler,
            window=self.window_samples,
            batches=len(self),
            engine=running(self.program.engine, self.device, self.program.recipe),
            epoch=self.epoch,
        )

    def stats(self) -> Stats:
        """Counts and waits since the start."""
        return self._placing.placed(self._machine.stats(), self._planning, self._passes.at)

    def close(self) -> None:
        """Stop all threads and release engine and connections. Safe to call twice and in any state.

        A decoder cannot be stopped: after some seconds its thread finishes its image (DALI: its batches) by itself, and
        the interpreter waits for it before it exits. Waits until dead letters are written; DeadLetterError if they
        cannot be written and no error has said so yet.
        """
        if self._life.closed or not self._life.here:
            return
        self._life.closed = True
        self._passes.end()
        self._planning.close()
        self._machine.close(self._passes.at_end)
        self.companions = none  # it belongs to a loader, which holds this feed
        self._outbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
