"""What a feed is run on by schedules: a source, a maker of images and a place for dead letters, whose faults are drawn.

Which records are bad is fixed in the data; how long a read, a decode or a write takes, and which of them fail, the
schedule's seed decides. A decoder that reads memory which was given back says so: what goes back is written over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from kit.images import jpeg
from kit.schedules import Schedule

from dali_feed import sync
from dali_feed.dead_letters import Letter
from dali_feed.engines import choose
from dali_feed.engines.engine import Part, Pixels
from dali_feed.engines.workers import Job, Workers, WorkerThread
from dali_feed.errors import EngineError, SourceError
from dali_feed.feed import Feed
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Lease
from dali_feed.testing.scripted import Corrupt, Gap, Item, ScriptedReader, ScriptedSource

__all__ = ["EPOCHS", "SHAPES", "Images", "Shape", "World", "batches_of", "over_written", "seen"]

RECORDS = 24
EPOCHS = 4  # that a schedule may come to
HANG = 40.0  # virtual seconds, longer than any close waits
REFUSED = frozenset({5, 6, 17})  # records that the screen passes and the decoder refuses
GONE, SPOILT = 3, 10  # a position without a record, and one whose record the source refuses


@dataclass(frozen=True)
class Shape:
    """What decides the batches: the order, their size, and whether the data has faults."""

    shuffle: bool | Shuffle
    batch: int
    lanes: int
    bad: bool

    def items(self) -> list[Item]:
        """The records."""
        items: list[Item] = [(jpeg(n), n) for n in range(RECORDS)]
        if self.bad:
            items[GONE], items[SPOILT] = Gap(), Corrupt("codec: spoilt")
        return items


SHAPES = tuple(
    Shape(shuffle, batch, lanes, bad)
    for shuffle in (False, Shuffle(4, 1), Shuffle(2, 3))
    for batch in (2, 4)
    for lanes in (1, 2)
    for bad in (True, False)
)


class World:
    """Speeds and faults of one schedule; None: all is quick and well."""

    current: ClassVar[World | None] = None

    def __init__(self, shape: Shape, schedule: Schedule | None) -> None:
        self.shape, self.schedule = shape, schedule
        self.letters = Letters(schedule)
        self.wrong = list[str]()  # what must not be
        World.current = self
        if schedule is None:
            return
        rng = schedule.rng
        self.reads = rng.choice(((0.0,), (0.0, 0.01), (0.0, 0.01, 0.1, 1.0)))
        self.decodes = rng.choice(((0.0,), (0.0, 0.01), (0.0, 0.01, 0.2)))
        self.hangs = rng.choice((0.0, 0.0, 0.02))
        self.fails = rng.choice((0.0, 0.0, 0.03, 0.2))

    def feed(self) -> Feed:
        """A feed of it."""
        rng = None if self.schedule is None else self.schedule.rng
        pick: Callable[[Sequence[Any]], Any] = (lambda of: of[0]) if rng is None else rng.choice
        tuning = Tuning(
            threads=pick((1, 2)),
            readers=pick((1, 2)),
            prefetch=pick((1, 2, 3)),
            memory=pick(("8MiB", "2MiB")),
            next_epoch=pick((True, True, False)),
        )
        return Feed(
            Source(self),
            self.shape.batch,
            shuffle=self.shape.shuffle,
            lanes=self.shape.lanes,
            seed=7,
            bad=BadRecords(limit=None, dead_letter=self.letters if self.shape.bad else None),
            tuning=tuning,
        )

    def takes(self, times: Sequence[float], stop: sync.Event | None = None) -> None:
        """So long it takes, or much longer; a wait for `stop` ends with it."""
        if self.schedule is None:
            return
        rng = self.schedule.rng
        if self.hangs and rng.random() < self.hangs:
            (sync.sleep if stop is None or rng.random() < 0.5 else stop.wait)(HANG)
        elif seconds := rng.choice(times):
            sync.sleep(seconds)

    def fault(self) -> bool:
        """Whether it fails this time."""
        return self.schedule is not None and self.fails > 0 and self.schedule.rng.random() < self.fails


class Source(ScriptedSource):
    """Records in memory, whose reads take their time."""

    def __init__(self, world: World) -> None:
        super().__init__(world.shape.items(), extent=4, random_access=False)
        self.world = world

    def reader(self, members: Sequence[str], stop: Any = None) -> Reader:
        """See `ScriptedSource.reader`."""
        return Reader(self, tuple(members), stop)


class Reader(ScriptedReader):
    """Takes its time, and fails."""

    def read(self, extents: Extents, lease: Lease) -> Block:
        """See `ScriptedReader.read`."""
        world: World = self._source.world  # type: ignore[attr-defined]
        world.takes(world.reads if world.schedule else (), self._stop)
        if world.fault():
            msg = "the disk has failed"
            raise SourceError(msg)
        block = super().read(extents, lease)
        world.takes(world.reads if world.schedule else (), self._stop)
        return block


class Letters:
    """Where dead letters are kept."""

    def __init__(self, schedule: Schedule | None) -> None:
        self._schedule = schedule
        self._seconds = (0.0,) if schedule is None else schedule.rng.choice(((0.0,), (0.0, 0.1), (0.0, 3.0)))
        self.written = list[int]()  # samples

    def writer(self) -> Letters:
        """Itself."""
        return self

    def write(self, letters: Sequence[Letter]) -> None:
        """Write them, slowly."""
        if self._schedule is not None:
            sync.sleep(self._schedule.rng.choice(self._seconds))
        self.written += [letter.sample for letter in letters]

    def read(self) -> Iterator[Letter]:
        """Nothing is read here."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


class Decoding(Job):
    """A batch's images. An image is the number of its record."""

    def __init__(self, part: Part, slots: Sequence[int], images: Any) -> None:
        super().__init__([range(slot, slot + 1) for slot in slots], part.stop)
        self._part, self.images = part, images
        self.bad: dict[int, str] = {}

    def run(self, worker: WorkerThread, slots: Sequence[int]) -> None:
        """Decode some."""
        world = World.current
        assert world is not None
        for slot in slots:
            if self.dropped:
                return
            worker.slots = (slot,)
            number = int(self._part.ids[slot])
            for seconds in ((0.0,), world.decodes) if world.schedule else ((0.0,),):
                world.takes(seconds)
                if bytes(self._part.payloads[slot]) != jpeg(number):
                    world.wrong.append("a decoder reads memory that was given back")
            if world.fault():
                msg = "out of memory"
                raise RuntimeError(msg)
            if world.shape.bad and number in REFUSED:
                self.bad[slot] = "refused"
            self.images[slot] = number


class Images:
    """A maker of images, by the workers of the engine."""

    by_workers, ready = True, 0

    def __init__(self, outputs: Any, workers: Workers, **_: Any) -> None:
        self._workers = workers

    def start(self, part: Part) -> None:
        """Begin."""
        count = len(part.payloads)
        part.ticket = Decoding(part, range(count), np.zeros(count, np.int64))
        self._workers.add(part.ticket)

    def finish(self, part: Part) -> None:
        """Fill it."""
        job: Decoding = part.ticket
        try:
            self._workers.wait(job)
        except RuntimeError as error:
            if error is not job.error or isinstance(error, EngineError):
                raise
            msg = f"fake: {error}"
            raise EngineError(msg) from error
        if job.bad:
            part.bad = dict(sorted(job.bad.items()))
        else:
            part.images = [Pixels(job.images)]

    def drop(self, part: Part) -> None:
        """Let go of it."""
        if part.ticket is not None:
            self._workers.drop(part.ticket)

    def again(self, part: Part, before: Part | None, slots: Sequence[int]) -> None:
        """Fill it at once."""
        part.ticket = Decoding(part, slots, before.ticket.images if before else np.zeros(len(part.payloads), np.int64))
        self._workers.add(part.ticket, first=True)
        try:
            self.finish(part)
        except BaseException:
            self._workers.drop(part.ticket)
            raise

    def at_work(self, part: Part) -> Sequence[int]:
        """The slots that workers are at."""
        return () if part.ticket is None else self._workers.at(part.ticket)

    def close(self) -> None:
        """Nothing is held."""


@contextmanager
def over_written() -> Iterator[None]:
    """Within, memory that is given back is written over, and images are made by `Images`."""
    give, host = SlabPool._give, choose.ENGINES["host"]

    def wiped(pool: SlabPool, slabs: list[memoryview], filled: int, *, lent: bool) -> None:
        for slab in () if lent else slabs:
            slab[:4096] = b"\xee" * 4096
        give(pool, slabs, filled, lent=lent)

    SlabPool._give = wiped  # type: ignore[assignment,method-assign]
    choose.ENGINES["host"] = (__name__, "Images")
    try:
        yield
    finally:
        SlabPool._give = give  # type: ignore[method-assign]
        choose.ENGINES["host"] = host


Seen = tuple[tuple[int, ...], tuple[bool, ...]]  # ids and ok of a batch


def seen(batch: Any) -> Seen:
    """What a batch holds."""
    return tuple(batch.ids.tolist()), tuple(batch.ok.tolist())


@functools.cache
def batches_of(shape: Shape) -> tuple[list[list[Seen]], list[list[frozenset[int]]]]:
    """Of each epoch its batches, and the bad records that stand in them: their letters are durable before a state."""
    good = Shape(shape.shuffle, shape.batch, shape.lanes, bad=False)
    epochs, own = list[list[Seen]](), list[list[Seen]]()
    for which, out in ((shape, epochs), (good, own)):
        with over_written(), World(which, None).feed() as feed:
            out += [[seen(batch) for batch in feed] for _ in range(EPOCHS)]
    letters = [
        [
            frozenset(sample for sample, fine in zip(plain[0], batch[1], strict=True) if not fine and sample != GONE)
            for plain, batch in zip(plains, batches, strict=True)
        ]
        for plains, batches in zip(own, epochs, strict=True)
    ]
    return epochs, letters
