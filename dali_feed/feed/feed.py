"""Feed: a source, a plan and an engine made into epochs of batches, with the state of where they stand.

This is the whole loader but for torch: batches hold arrays that speak __dlpack__, for JAX, CuPy or another
engine. `dali_feed.DataLoader` adds torch tensors and torch's argument names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.columns.kind import Kind
from dali_feed.columns.source import Columnar, with_columns
from dali_feed.compiler.program import Parameters
from dali_feed.engines.choose import make_engine
from dali_feed.engines.compiling import compiled, followed, no_image
from dali_feed.engines.engine import Engine
from dali_feed.engines.following import FollowingEngine, with_rows
from dali_feed.errors import ClosedError, ConfigError
from dali_feed.feed.beside import Beside, Companions, none
from dali_feed.feed.commit import commit
from dali_feed.feed.describe import described, warn_of_holes
from dali_feed.feed.exits import close_at_exit
from dali_feed.feed.hopeless import Proof
from dali_feed.feed.lane import Lane, OpenWindow
from dali_feed.feed.measured import Measured
from dali_feed.feed.memory import check_memory, slab_bytes
from dali_feed.feed.passes import Batches
from dali_feed.feed.reading import ReadPool
from dali_feed.feed.run import EpochRun, Setting
from dali_feed.feed.stats import Meter, Stats
from dali_feed.feed.usable import looker
from dali_feed.feed.window import Empty, Window
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan import state as states
from dali_feed.plan.draws import check_seed
from dali_feed.plan.order import EpochPlan, Order, Shuffle, WindowPlan, resolve
from dali_feed.plan.position import Standing
from dali_feed.plan.sampler import digest_of, indices_of
from dali_feed.plan.shares import MAX_EPOCH, check_epoch, check_shares, check_shuffle
from dali_feed.quarantine.budget import Quarantine
from dali_feed.quarantine.outbox import Outbox
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Snapshot, Source, unpack_id
from dali_feed.transforms.rules import Decoding, Layout

__all__ = ["Feed"]


class Feed:
    """Epochs of batches from a bounded source.

    Args:
        source: where records are (`dali_feed.external_sources`).
        batch_size: slots per batch on this rank.
        shuffle: False, True, or a `Shuffle`.
        sampler: indices of the source's samples in the order wanted, instead of `shuffle`; read anew each epoch.
        drop_last: leave out the last batch where it is not full.
        transform: torchvision transforms, a DALI graph function, or None; a list of transforms, or `Views`, gives
            several views of each image, the further ones in `Batch.more`.
        layout: of a batch in memory, "NCHW" or "NHWC"; a DALI graph function has its own.
        decode: "reduced" lets the host engine decode large JPEGs smaller, "region" lets a GPU decode windows alone;
            both change pixels.
        hw_decoder_load: share of a batch that a GPU's JPEG engine decodes; above 0 pixels depend on the batch.
        device: a CUDA device's number, or None for the CPU.
        engine: "dali", "host", or None: dali on a GPU or for a DALI graph function, host on the CPU.
        seed: of order and augmentation.
        lanes: the largest world size this run may ever resume at; None: today's.
        rank, world_size: which part of each global batch this process takes.
        bad: what is done with records that cannot be used.
        tuning: threads, prefetch, memory.
        columns: what a batch holds, name -> kind of `dali_feed.columns`, or a sequence of kinds.

    Raises ConfigError for arguments that cannot be; a SourceError, at the first use, where records cannot be had.
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
        layout: Layout = "NCHW",
        decode: Decoding = "exact",
        hw_decoder_load: float = 0.0,
        device: int | None = None,
        engine: str | None = None,
        seed: int = 0,
        lanes: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        bad: BadRecords | None = None,
        tuning: Tuning | None = None,
        columns: Mapping[str, Kind] | Sequence[Kind] | None = None,
    ) -> None:
        missing = [name for name in ("snapshot", "reader", "where", "fields") if not hasattr(source, name)]
        if missing:
            msg = (
                f"source: must be a source of dali_feed.external_sources; found {type(source).__name__}, which has no"
                f" {', '.join(missing)}. For a folder of images use FileList.from_folder(root)"
            )
            raise ConfigError(msg)
        if columns is not None:
            source, transform = with_columns(source, columns, transform)
        check_shuffle(shuffle)
        if shuffle and sampler is not None:
            msg = "sampler option is mutually exclusive with shuffle"
            raise ConfigError(msg)
        self.source = source
        self.batch_size, self.rank, self.world_size, self.lanes = check_shares(batch_size, rank, world_size, lanes)
        self.seed = check_seed(seed)
        self.device, self.drop_last = device, bool(drop_last)
        self.bad, self.tuning = bad or BadRecords(), tuning or Tuning()
        if isinstance(source, Columnar) and source.image is None:
            self.engine_name, self.program = no_image()
        else:
            self.engine_name, self.program = compiled(
                transform, layout, decode, engine, device, self.tuning, hw_decoder_load
            )
        self._followed = followed(source, self.program)
        self._shuffle, self._sampler = shuffle, sampler
        self._at, self._proof = Standing(), Proof()
        self._loaded: dict[str, Any] | None = None
        self._snapshot: Snapshot | None = None
        self._plan: EpochPlan | None = None
        self._engine: Engine | None = None
        self._pool: ReadPool | None = None
        self._run: EpochRun | None = None
        self.companions: Companions = none  # what a loader wants with each batch; the feed thread asks for it
        self._beside: Beside | None = None
        self._leaving: EpochRun | None = None  # a pass that is over, while a decoder keeps its thread
        self._slabs, self._meter = SlabPool(slab_bytes(self.tuning.memory), most=self.tuning.memory), Meter()
        self._outbox = Outbox(source, self.bad.dead_letter)
        self._closed, self._pid = False, os.getpid()

    # What is fixed once the source has been looked at.

    @property
    def snapshot(self) -> Snapshot:
        """What the source holds, captured once."""
        if self._snapshot is None:
            self._check_open()
            self._snapshot = self.source.snapshot()
            warn_of_holes(self._snapshot)
        return self._snapshot

    @property
    def order(self) -> Order:
        """Shuffle, resolved for this source."""
        return resolve(self._shuffle, self.snapshot, sampled=self.has_sampler)

    @property
    def per_lane(self) -> int:
        """Slots that a full batch takes from each lane."""
        return self.batch_size * self.world_size // self.lanes

    def _planned(self) -> EpochPlan:
        if self._plan is None or self._plan.epoch != self._at.epoch:
            indices = None if self._sampler is None else indices_of(self._sampler, self._at.epoch, len(self.snapshot))
            self._plan = EpochPlan(
                self.snapshot,
                self.order,
                seed=self.seed,
                epoch=self._at.epoch,
                lanes=self.lanes,
                drop_last=self.drop_last,
                indices=indices,
            )
            self._sampler_hash = None if indices is None else digest_of(self._sampler, indices)
        if self._loaded is not None:
            loaded, self._loaded = self._loaded, None
            states.compare(loaded, self._made_for(), self.snapshot, self._plan.lane_length)
        return self._plan

    _sampler_hash: str | None = None

    def _counts(self, plan: EpochPlan, consumed: int) -> list[int]:
        full, rest = divmod(plan.lane_length - consumed, self.per_lane)
        return [self.per_lane] * full + ([rest] if rest and not self.drop_last else [])

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return len(self._counts(self._planned(), 0))

    @property
    def batches_left(self) -> int:
        """Batches that the pass under way still gives; where there is none, those that the next one will."""
        plan, at = self._planned(), self._at
        epoch, consumed = at.next if self._run is None else (at.epoch, at.consumed)
        return len(self._counts(plan, consumed if epoch == at.epoch else 0))

    # Passes.

    @property
    def epoch(self) -> int:
        """The epoch that state_dict() stands in."""
        return self._at.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; where a restored state stands inside it, it goes on there."""
        epoch = check_epoch(epoch)
        if self._at.pending and epoch == self._at.epoch:
            return
        if self._at.stays_in(epoch):
            self._leave()
            return
        self._end_pass()
        self._at.go_to(epoch, 0)
        self._loaded = None

    def __iter__(self) -> Batches:
        """The next epoch's batches, or the rest of the one that a restored state stands in.

        A pass that was left early is over: its iterator raises ClosedError from here on. One of which no batch was
        taken was none, for frameworks that make an iterator and then another, and neither is a look at the first
        (see `standing`): the epoch is still to come.
        """
        self._check_open()
        self._leave()
        if self._leaving is not None:
            self._leaving.wait()
            self._leaving = None
        plan = self._planned()
        check_memory(self)
        self._outbox.retry()
        setting = self._setting()
        mine = range(self.rank, self.lanes, self.world_size)
        open_window, draw, prepare = self._opener(setting), setting.draw, setting.engine.prepare
        lanes = [
            Lane(plan, lane, self._at.consumed, open_window=open_window, draw=draw, prepare=prepare) for lane in mine
        ]
        counts = self._counts(plan, self._at.consumed)
        slots = plan.lane_length * len(mine)
        self._run = EpochRun(setting, lanes, counts, Quarantine(self.bad, slots))
        return Batches(self, self._run, counts)

    def _leave(self) -> None:
        """Any pass under way is over, and the state stands where the next one begins."""
        self._end_pass()
        self._at.leave()

    def _end_pass(self) -> None:
        """The pass under way is over: batches it might still give would not be counted from here."""
        run, self._run = self._run, None
        if run is not None:
            run.close()
            self._leaving = run if run.alive else self._leaving

    def _setting(self) -> Setting:
        if self._pool is None:
            self._pool = ReadPool(self.source, self._slabs, self.tuning.readers)
        if self._engine is None:
            self._engine = make_engine(
                self.engine_name, self.program, batch_size=self.batch_size, device=self.device, tuning=self.tuning
            )
            if self._followed is not None and isinstance(self.source, Columnar):
                self._engine = FollowingEngine(self._engine, self._followed, self.source.followers, self.tuning)
            close_at_exit(self)
        self._beside = beside = self._beside or Beside.on(self.device, self.companions)
        epoch, program, seed = self._at.epoch, self.program, self.seed
        return Setting(
            engine=self._engine,
            pool=self._pool,
            meter=self._meter,
            outbox=self._outbox,
            source=self.snapshot.source,
            where=self._where,
            draw=lambda sizes, ids: self._drawn(sizes, ids, seed, epoch),
            beside=lambda batch: beside(batch, epoch),
            memory=self.tuning.memory,
            sizes=Measured(self.snapshot.record_bytes, self._slabs.slab_bytes, self.tuning.memory),
            readers=self.tuning.readers,
            prefetch=self.tuning.prefetch,
            same_size=program.fixed and program.size is None,
            made=self.source.batch if isinstance(self.source, Columnar) else None,
            watchdog=self.tuning.watchdog,
        )

    def _drawn(self, sizes: NDArray[Any], ids: NDArray[np.int64], seed: int, epoch: int) -> Parameters:
        own = self.program.parameters(sizes, ids, seed, epoch)
        return own if self._followed is None else with_rows(own, self._followed, sizes, ids, seed, epoch)

    def _opener(self, setting: Setting) -> OpenWindow:
        look, empty = looker(self.program, self.tuning), Empty()

        def open_window(plan: WindowPlan, first_slot: int, others: Callable[[], Iterator[WindowPlan]]) -> Window:
            return Window(
                plan,
                first_slot,
                sizes=setting.sizes,
                look=look,
                pool=setting.pool,
                where=setting.where,
                proof=self._proof,
                empty=empty,
                others=others,
            )

        return open_window

    def _where(self, sample: int) -> str:
        return self.source.where(*unpack_id(sample))

    @property
    def has_sampler(self) -> bool:
        """Whether a sampler gives the order."""
        return self._sampler is not None

    @property
    def window_samples(self) -> int:
        """Samples that a window holds at most."""
        return min(self.order.extent * self.order.window, -(-len(self.snapshot) // self.lanes))

    # State.

    def _made_for(self) -> dict[str, Any]:
        return states.made_for(
            self.snapshot,
            self.order,
            seed=self.seed,
            lanes=self.lanes,
            drop_last=self.drop_last,
            sampler=self._sampler_hash,
            hw_decoder_load=self.program.recipe.hw_decoder_load,
        )

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer stands: plain JSON, the same on every rank. Counts batches handed over, not prefetched.

        Waits until the dead letters of those batches are durable; DeadLetterError where they cannot be.
        """
        self._outbox.drain()
        self._planned()
        info = {
            "engine": self.engine_name,
            "decode": self.program.recipe.decode,
            "world_size": self.world_size,
            "batch_size": self.batch_size,
        }
        return states.pack(self._made_for(), self.snapshot, epoch=self._at.epoch, consumed=self._at.consumed, info=info)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on where `state` was taken. Reads nothing that came before it.

        Raises StateError that lists every difference where the state was made for something else, and a
        SourceError where the source no longer holds what it held then.
        """
        self._check_open()
        state = states.check(state, MAX_EPOCH)
        pin = state["source"].get("pin")
        before = (self._snapshot, self._plan, self._sampler_hash, self._at)
        if pin is not None and (
            self._snapshot is None or self._snapshot.fingerprint != state["made_for"].get("source")
        ):
            self._snapshot, self._plan = self.source.snapshot(pin), None
        self._at, self._loaded = Standing(state["epoch"], state["consumed"]), state
        try:
            self._planned()
        except BaseException:  # a sampler may raise anything; the pass under way goes on
            self._snapshot, self._plan, self._sampler_hash, self._at = before
            self._loaded = None
            raise
        self._end_pass()

    def commit(self) -> None:
        """Publish for lag tools how far the epoch is; call it after a checkpoint. See `dali_feed.DataLoader.commit`."""
        self._check_open()
        commit(self)

    # The rest.

    def describe(self) -> str:
        """What an epoch is made of, how well it mixes, and what that costs."""
        return described(self)

    def stats(self) -> Stats:
        """Counts and waits since the start."""
        self._meter.bytes_read = self._slabs.filled
        return self._meter.stats(self._slabs.peak)

    def _check_open(self) -> None:
        if self._closed:
            msg = "loader: used after close(); make a new one"
            raise ClosedError(msg)
        if os.getpid() != self._pid:
            msg = (
                "loader: made in another process; threads and connections do not survive fork. Make it in this process"
            )
            raise ConfigError(msg)

    def close(self) -> None:
        """Stop all threads and let go of engine and connections. Safe to call twice and in any state.

        A decoder cannot be stopped: after some seconds its thread is left to end by itself, with its image (DALI: its
        batches), and the interpreter's end waits for it.
        Waits for dead letters on their way; DeadLetterError where they cannot be written and nobody was told yet.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._end_pass()
        if self._pool is not None:
            self._pool.close()
        if self._engine is not None and self._leaving is not None:
            self._leaving.at_end(self._engine.close)
        elif self._engine is not None:
            self._engine.close()
        self._beside, self.companions = None, none  # a loader's, which holds this feed
        self._outbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
