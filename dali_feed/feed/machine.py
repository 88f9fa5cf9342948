"""The parts that run a feed's epochs: readers, an engine, companions; made for the first epoch, then kept."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from dali_feed import sync
from dali_feed.bad_records import Outbox, Quarantine
from dali_feed.columns.array import Array
from dali_feed.columns.column import Bytes
from dali_feed.columns.columns import Columns, Fits
from dali_feed.columns.request import Request, RequestReader
from dali_feed.draws import seed_of_turn
from dali_feed.engines import workers
from dali_feed.engines.choose import make_engine
from dali_feed.engines.engine import Engine, EngineWork
from dali_feed.errors import ClosedError, DeadLetterError
from dali_feed.feed.batch import Companions, Course, Uploads, none
from dali_feed.feed.cache import RecordCache, WholePixels
from dali_feed.feed.meter import Meter
from dali_feed.feed.reading import FIRST_READERS, ReaderWork, ReadPool, Steering
from dali_feed.feed.stats import Running, StageStats, Stats
from dali_feed.feed.window import Proof
from dali_feed.options import Decode, Tuning
from dali_feed.plan.order import Order
from dali_feed.records.gauges import CacheStats
from dali_feed.records.slabs import SLAB_BYTES, SlabPool
from dali_feed.records.source import Block, Reader, Records, Snapshot, Source, unpack_id
from dali_feed.transforms.program import Output, Program, unfit

if TYPE_CHECKING:
    from dali_feed.engines.device_cache import DeviceCache


LEAST_BYTES = 4096  # of a record that is read into its place: below it a copy costs less than a row of its own


def slab_bytes(memory: int) -> int:
    """Slabs so small that some dozens of reads fit into a small memory; 8 MiB from 256 MiB on."""
    return max(256 << 10, min(SLAB_BYTES, memory // 32))


# The stages of a loader out of what its parts have counted.


def stages(meter: Meter, readers: ReaderWork | None, engine: EngineWork | None, threads: int) -> tuple[StageStats, ...]:
    """In the order of the way.

    readers  None: a stream's one reader, which waits for records that do not exist yet
    engine   None: it does not say what its threads, so many of them, do
    """
    spent, wall = meter.spent(), meter.passes.stats().seconds
    starved, full = spent["source"], spent["trainer"] + spent["dead letters"]
    read: tuple[StageStats, ...] = ()
    if readers is not None:
        waited, idle = readers.seconds - readers.cpu, readers.threads * wall - readers.seconds
        times = max(0.0, waited), readers.cpu, max(0.0, idle), readers.seconds
        read = (StageStats("read", readers.threads, readers.records, *times),)
    if engine is None:
        seconds, samples, busy = meter.engine_seconds, meter.engine_samples, meter.engine_seconds * threads
        idle = max(0.0, wall - seconds)
    else:
        threads, seconds, samples, busy = engine.threads, engine.seconds, engine.images, engine.seconds
        idle = max(0.0, threads * wall - seconds)
    hungry = starved / (starved + full) if starved + full > 0 else 0.0
    return (
        *read,
        StageStats("screen", 1 if readers is None else readers.threads, meter.screened, worked=meter.screening),
        StageStats("deal", 1, meter.dealt, worked=spent["deal"], waited=starved),
        StageStats("engine", threads, samples, idle * hungry, seconds, idle * (1 - hungry), busy),
        StageStats(
            *("finish", 1, meter.taken),
            waited=spent["engine"] + spent["repair"],
            worked=spent["finish"] + spent["mend"],
            blocked=full,
        ),
        *loop_stages(meter),
    )


def loop_stages(meter: Meter) -> tuple[StageStats, ...]:
    """Those in the training loop's thread."""
    loop = meter.loop
    return (
        StageStats("handover", 1, meter.samples, worked=loop.handover),
        StageStats("train", 1, loop.samples, worked=loop.worked, waited=loop.waited),
    )


def _fits(program: Program, max_pixels: int) -> dict[str, Fits]:
    """By image column what tells which sizes its transforms cannot take."""

    def fitting(outputs: Sequence[Output]) -> Fits:
        def fits(sizes: Any) -> Mapping[int, str]:
            reasons: dict[int, str] = {}
            for output in outputs:
                reasons |= unfit(output.recipe, sizes, max_pixels)
            return reasons

        return fits

    return {name: fitting(outputs) for name, outputs in program.columns.items()}


@dataclass(slots=True)
class Machine:
    """No part of it exists before the first epoch."""

    source: Records
    columns: Columns
    program: Program
    batch_size: int
    device: int | None
    decode: Decode
    tuning: Tuning
    outbox: Outbox
    companions: Companions = none  # what a loader wants with each batch; the feed thread asks for it
    meter: Meter = field(default_factory=Meter, init=False)
    slabs: SlabPool = field(init=False)
    engine: Engine | None = field(default=None, init=False)
    pool: ReadPool | None = field(default=None, init=False)
    cache: RecordCache | None = field(default=None, init=False)
    on_device: DeviceCache | None = field(default=None, init=False)
    uploads: Uploads | None = field(default=None, init=False)
    proof: Proof = field(default_factory=Proof, init=False)
    _closed: bool = field(default=False, init=False)
    # Guards that a part is made once: two threads may begin passes at a time. Close does not take it.
    _making: Any = field(default_factory=lambda: sync.RLock(), init=False)  # noqa: PLW0108  as it is by then

    def __post_init__(self) -> None:
        """Slabs are memory only once a read asks for them, a cache once it keeps a record.

        Raises ConfigError for a cache of pixels, or of images on the device, that this program cannot have; for names
        of columns that no record can have.
        """
        self.columns.fits = _fits(self.program, self.decode.max_pixels)
        self.slabs = SlabPool(slab_bytes(self.tuning.memory_bytes), most=self.tuning.memory_bytes)
        kept = self.tuning.cache
        if kept is None:
            return
        if kept.limit or kept.disk is not None:
            pixels = WholePixels(self.program, self.columns, self.decode, self.tuning) if kept.pixels else None
            self.cache = RecordCache(self._bounded, self.columns, kept, pixels)
        if kept.device_bytes:
            from dali_feed.engines.device_cache import DeviceCache  # and torch with it

            self.on_device = DeviceCache(self.program, kept.device_bytes, self.device)

    def reading(self, snapshot: Snapshot) -> ReadPool:
        """The threads that read epochs of that snapshot; caches keep its records from here on."""
        with self._making:
            if self.pool is None:
                steering, readers = None, self.tuning.readers
                if readers == "auto":
                    steering, readers = Steering(self.meter), FIRST_READERS
                Request(self.source, self.columns.members, self.columns.optional)  # names that no record can have
                self.pool = ReadPool(self._bounded, self._opened, self.slabs, readers, steering)
                self._wanted()
            if self.cache is not None:
                self.cache.begin(snapshot, self.pool)
            if self.on_device is not None:
                self.on_device.begin(snapshot.fingerprint, len(snapshot))
            return self.pool

    def engaged(self, owner: Any) -> Engine:
        """The engine, for another pass; `owner`, which closes this machine, is closed at the interpreter's end."""
        with self._making:
            if self.engine is None:
                self.engine = make_engine(
                    self.program,
                    late=self.columns.late,
                    batch_size=self.batch_size,
                    device=self.device,
                    tuning=self.tuning,
                    before=None if self.on_device is None else self.on_device.before,
                )
                _close_at_exit(owner)
                self._wanted()
            self.uploads = self.uploads or Uploads(self.companions, self.engine.device)
            return self.engine

    def course(self, seed: int, epoch: int, quarantine: Quarantine) -> Course:
        """An epoch's random numbers, and its counts."""
        program = self.program

        def draw(sizes: Any, ids: Any, turn: int, values: Mapping[str, Any]) -> Any:
            return program.draw(sizes, ids, seed_of_turn(seed, turn), epoch, values)

        return Course(epoch, draw, quarantine)

    def where(self, sample: int) -> str:
        """The coordinates of the record of that id, as people write them."""
        return self.source.where(*unpack_id(sample))

    def reads_directly(self, snapshot: Snapshot, order: Order) -> bool:
        """Whether batches are read side by side, not through windows: on the CPU, and where no cache keeps records."""
        columns = self.columns.by_name.values()
        return (
            self.device is None
            and self.tuning.cache is None
            and snapshot.random_access
            and not (snapshot.parts or snapshot.absent or snapshot.present)
            and snapshot.record_bytes >= LEAST_BYTES
            and not (order.shuffled and order.extent > 1)
            and any(isinstance(column, Array | Bytes) for column in columns)
            and not (self.columns.images or self.columns.late or self.columns.optional)
            and len(self.columns.members) == len(columns)  # no two columns share the memory of one member
            and self._bounded.dense(self.columns.members)
        )

    @property
    def same_size(self) -> bool:
        """Whether the images of a batch have to come out in one size, which their transforms do not say."""
        return self.program.fixed and not self.program.sized

    def describe_engine(self) -> str:
        """Which engine runs where, and which options change its pixels."""
        recipe = self.program.recipe
        place = "the CPU" if self.device is None else f"cuda:{self.device}"
        pixels = f", hardware={recipe.hardware}" if recipe.hardware else ""
        pixels += ", exif=True" if recipe.exif else ""
        return f"{self.program.engine} on {place}{pixels}"

    @property
    def stage(self) -> Callable[[Block], Block]:
        """What makes columns of members, in the threads that read."""
        return self.meter.screens(self.columns)

    @property
    def _bounded(self) -> Source:
        """The source, of a feed that has epochs."""
        return cast("Source", self.source)

    def _opened(self, stop: sync.Event) -> Reader:
        """A reader of the source that gives columns, in the thread that reads."""
        self.columns.settle_by(self._bounded)
        if self.cache is not None:
            return RequestReader(self.cache.reader(stop), self.stage)
        return self.columns.reader(self._bounded, stop, self.stage)

    def stats(self) -> Stats:
        """Counts and waits since the start."""
        self.meter.bytes_read = self.slabs.filled
        stats = self.meter.stats(self.slabs.peak)
        if self.engine is not None and stats.batches:
            stats = replace(stats, stages=self._stages(self.engine), running=self._running(self.engine))
        if self.pool is None:
            return stats
        return replace(
            stats,
            kafka=self.pool.gauges(),
            storage=self.pool.storage(),
            readers=self.pool.count,
            cache=self._cached(),
        )

    def _cached(self) -> CacheStats | None:
        stats = None if self.cache is None else self.cache.stats()
        if self.on_device is None:
            return stats
        hits, misses, records, size = self.on_device.counted
        return replace(
            stats or CacheStats(),
            device_hits=hits,
            device_misses=misses,
            device_records=records,
            device_held=size,
            device_limit=self.on_device.limit,
        )

    def _stages(self, engine: Engine) -> tuple[StageStats, ...]:
        readers = None if self.pool is None else self.pool.worked()
        threads = self.tuning.cpu_threads if self.device is None else self.tuning.gpu_threads
        return stages(self.meter, readers, engine.worked(), threads)

    def _running(self, engine: Engine) -> Running:
        on_gpu, tuning = self.device is not None, self.tuning
        return Running(engine.name, on_gpu, tuning.prefetch, tuning.memory_bytes)

    def _wanted(self) -> None:
        """End what has just been made, where another thread has closed this one meanwhile."""
        if self._closed:
            self.close(lambda call: call())
            msg = "loader: closed by another thread while its first pass began; make a new one"
            raise ClosedError(msg)

    @property
    def threads(self) -> list[sync.Thread]:
        """Threads that have not ended: those that read, and those of the engine that are inside a call."""
        working = () if self.engine is None else self.engine.threads
        return [*(() if self.pool is None else self.pool.alive), *working]

    def close(self, when_free: Callable[[Callable[[], None]], None]) -> None:
        """End the readers; end the engine in the function given to `when_free`, which calls it when that is safe."""
        self._closed = True
        if self.pool is not None:
            self.pool.close()
        if self.cache is not None:
            self.cache.close()
        if self.engine is not None:
            when_free(self.engine.close)
        self.uploads, self.companions = None, none


# Feeds that are open when the interpreter ends are closed first; decoders that still work are waited for.
#
# A daemon thread of the user's may be in the middle of an epoch then. It is told that the feed is closed, as any thread
# is, and ends by that; the end of the process is no error of its, so that nothing is printed.


log = logging.getLogger("dali_feed")
_live: weakref.WeakSet[Any] = weakref.WeakSet()


def _close_at_exit(opened: Any) -> None:
    """Close a feed before DALI destroys its pipelines; called when its engine has been made."""
    _live.add(opened)
    atexit.unregister(_close_all)
    atexit.register(_close_all)  # registered again: what comes last runs first, and DALI's own hook is there by now


def _quiet(hook: Callable[[threading.ExceptHookArgs], object]) -> Callable[[threading.ExceptHookArgs], object]:
    """`hook`, but for daemon threads that came to their end by a feed that is closed."""

    def heard(args: threading.ExceptHookArgs) -> None:
        if not (isinstance(args.exc_value, ClosedError) and args.thread is not None and args.thread.daemon):
            hook(args)

    return heard


def _close_all() -> None:
    try:
        threading.excepthook = _quiet(threading.excepthook)
        for opened in list(_live):
            try:
                opened.close()
            except DeadLetterError:
                log.exception("dead letters were lost at exit")
        workers.wait()
    except KeyboardInterrupt:
        workers.abandon()
