"""Feed: batches out of a source, a plan and an engine, with a state that says how far they are.

This is the whole loader but for torch: batches hold arrays with `__dlpack__`, for JAX, CuPy or another
engine. `dali_feed.DataLoader` adds torch tensors and torch's argument names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from dali_feed.bad_records import Outbox
from dali_feed.columns.column import Column
from dali_feed.columns.columns import Columns
from dali_feed.draws import check_seed
from dali_feed.engines.choose import compile_images
from dali_feed.errors import DeadLetterError
from dali_feed.feed.batch import Companions
from dali_feed.feed.epochs import Epochs
from dali_feed.feed.machine import Machine
from dali_feed.feed.passes import Batches, Positions
from dali_feed.feed.planning import Plan, Planning, check_order
from dali_feed.feed.stats import Stats
from dali_feed.feed.stream import StreamPosition, check_stream
from dali_feed.options import BadRecords, Decode, Tuning, check_groups
from dali_feed.plan.batching import MOST_LANES, Shares
from dali_feed.plan.order import Shuffle
from dali_feed.records.live import Stream
from dali_feed.records.source import Snapshot, Source


class FeedLoop:
    """A position in records, and the passes from there: what `Feed`, `DataLoader` and DALI's iterators have alike.

    Whatever makes batches stands behind its positions: our engine, or torch's own loader.
    """

    _positions: Positions

    @property
    def _now(self) -> Positions:
        """The positions, in the epoch that the user has given the sampler since, if he has."""
        self._positions.follow()
        return self._positions

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank and wherever the epoch stands."""
        return self._now.count()

    @property
    def rank(self) -> int:
        """Which part of each global batch this process takes; 0 if a sampler divides samples among ranks."""
        return self._positions.ranks.rank

    @property
    def world_size(self) -> int:
        """How many processes share a global batch; 1 if a sampler divides samples among ranks."""
        return self._positions.ranks.world_size

    @property
    def epoch(self) -> int:
        """The epoch that state_dict() stands in; 0 of a stream."""
        return self._now.epoch

    @property
    def batches_left(self) -> int:
        """Batches that the current pass will still give, or the next one: after load_state_dict() the rest of an epoch.

        `len(loader)` is for a whole epoch, so `tqdm(loader, initial=len(loader) - loader.batches_left)`. TypeError for
        a stream, and for an iterable-style dataset, which does not know.
        """
        return self._now.left()

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; if a loaded state is inside that epoch, it continues there.

        A pass under way goes on to its end. Of a stream nothing.
        """
        self._now.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The loop's position: plain JSON. Counts what the loop got, nothing prefetched.

        The same on every rank; of a stream this rank's. Waits until the dead letters of those batches are on disk or in
        their topic; DeadLetterError if that fails.
        """
        positions = self._now
        at, outbox = positions.at(), positions.outbox
        try:
            outbox.drain()  # behind the position: a batch that another thread takes meanwhile is not in it
        except DeadLetterError:
            outbox.heard = True
            raise
        return positions.state(at)

    def load_state_dict(self, state: Any) -> None:
        """Let the next pass continue where `state` was saved, in O(1): reads nothing that came before it.

        For a stream each rank has its own state; to continue at another world size, give a list of the states of all
        ranks.

        Raises a StateError that lists every difference if the state was made for something else, and a SourceError if
        the source no longer holds what it held then; in both cases the current pass continues.
        """
        self._positions.check_open()
        self._now.restore(state)

    def commit(self) -> None:
        """Publish for lag tools how far the epoch is; call it after a checkpoint. A resume reads only the checkpoint.

        Per partition: its first position plus the number of records that all ranks have consumed of it in
        this epoch; its end when the epoch is over. It works on rank 0, with a source that can do it
        (`KafkaTopic(group=...)`); otherwise it does nothing. A failure is one warning in the log, within seconds, and
        never an exception.
        """
        self._positions.check_open()
        self._now.commit()

    def describe(self) -> str:
        """What an epoch is made of, how well it mixes, and what that costs; or what a stream's batches are made of."""
        return self._now.describe()

    def stats(self) -> Stats:
        """Counts and waits since the start; says which stage is the slow one. A stream's empty batches do not count."""
        return self._positions.stats()

    def close(self) -> None:
        """Stop all threads and release engine and connections. Safe to call twice and in any state.

        A decoder cannot be stopped: after some seconds its thread finishes its image (DALI: its batches) by itself, and
        the interpreter waits for it before it exits, 15 s at most. Waits until dead letters are written;
        DeadLetterError if they cannot be written and no error has said so yet.
        """
        self._positions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Feed(FeedLoop):
    """Epochs of batches from a bounded source, or batches of a stream for ever.

    Args:
        source: where records are (`dali_feed.external_sources`); a stream has its own order and no epochs.
        batch_size: samples per batch on this rank; of a stream at most.
        shuffle: False, True, or a `Shuffle`.
        sampler: indices of the source's samples in the order wanted, instead of `shuffle`; read again each epoch.
        drop_last: leave out the last batch if it is not full.
        transform: torchvision transforms, a DALI graph function, or None; a list of transforms gives several
            views of each image, the further ones in `Batch.more`.
        decode: which engine makes images, how, and which are too large.
        device: a CUDA device's number, or None for the CPU.
        seed: of order and augmentation. Of a stream a record's random numbers are those of epoch 0, whatever batch it
            comes in.
        lanes: the largest world size this run may ever resume at; None: see `dali_feed.DataLoader`.
        rank, world_size: which part of each global batch, or of a stream's partitions, this process takes.
        bad: what is done with records that cannot be used. Of a stream a bad record's slot goes to the next good one of
            its batch, a batch without a good record is not handed over, and `limit` is of any `window` records in a
            row, 10,000 unless said.
        tuning: threads, prefetch, memory.
        columns: what a batch holds, by name or as a sequence, of `dali_feed.columns`; None: the source's own.

    Raises ConfigError for values that are not allowed; a SourceError, at the first use, where records cannot be read.
    """

    def __init__(  # noqa: PLR0913  what a run is made of; tuning and policy come in groups
        self,
        source: Source | Stream,
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
        check_groups(decode=decode, bad=bad, tuning=tuning)
        if isinstance(source, Stream):
            check_stream(tuning, shuffle=shuffle, sampler=sampler)
        else:
            check_order(source, sampler, shuffle=shuffle)
        self.columns = Columns(source, columns, transform, decode)
        self.source: Any = source
        if isinstance(source, Stream):
            self.ranks = ranks = Shares(batch_size, rank, world_size, lanes=world_size)
        else:
            most = world_size if self.columns.joined else MOST_LANES
            self.ranks = ranks = Shares.of(batch_size, rank, world_size, lanes, most)
        self.seed, self.device, self.tuning = check_seed(seed), device, tuning
        self.program = compile_images(self.columns, decode, device)
        outbox = Outbox(source, bad.dead_letter)
        machine = Machine(source, self.columns, self.program, ranks.batch_size, device, decode, tuning, outbox)
        self._machine, self._slabs = machine, machine.slabs
        if isinstance(source, Stream):
            self._positions = StreamPosition(source, machine, ranks, bad, self.seed)
            return
        planning = Planning(
            source.snapshot, ranks, shuffle=shuffle, sampler=sampler, seed=self.seed, drop_last=bool(drop_last)
        )
        self._positions = Epochs(source, planning, machine, ranks, bad)

    def __iter__(self) -> Batches:
        """The batches of the next epoch, or the rest of the epoch that a loaded state is in.

        A pass that was left early is over: its iterator raises ClosedError from here on. A pass of which no batch was
        taken does not count, because some frameworks make an iterator and then another one; and a pass of which only
        the first batch was taken does not count either (`dali_feed.feed.passes`). Their epoch comes again.

        Of a stream: batches from where the loop is. An iterator before this one gives no more, and what it had read is
        kept.
        """
        return self._now.batches()

    @property
    def shares(self) -> Shares:
        """How global batches are divided."""
        return self._positions.shares

    @property
    def batch_size(self) -> int:
        """Slots per batch on this rank."""
        return self.ranks.batch_size

    @property
    def _epochs(self) -> Epochs:
        """Of a bounded source; TypeError for a stream."""
        if not isinstance(self._positions, Epochs):
            msg = f"{self.source!r}: a stream does not end, so it has no epochs"
            raise TypeError(msg)
        return self._positions

    @property
    def snapshot(self) -> Snapshot:
        """What the source holds, captured once."""
        return self._epochs.planning.snapshot

    @property
    def plan(self) -> Plan:
        """Which sample comes at which place (slot) of the epoch that state_dict() stands in."""
        return self._epochs.plan

    def leave(self) -> None:
        """End the current pass and go to where the next one begins, as making its iterator does."""
        self._epochs.leave()

    def accompany(self, companions: Companions) -> None:
        """What a loader wants with each batch; the feed thread asks for it."""
        self._machine.companions = companions

    def where(self, sample: int) -> str:
        """The coordinates of the record of that id, as people write them."""
        return self._machine.where(sample)
