"""What a feed is run on by schedules: a source, a maker of images and a place for dead letters, whose faults are drawn.

Which records are bad is fixed in the data; how long a read, a decode or a write takes, and which of them fail, the
schedule's seed decides. A decoder that reads memory which was given back says so: what goes back is written over.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kit.images import jpeg
from kit.schedules import Schedule, patched

from dali_feed import sync
from dali_feed.bad_records import Letter
from dali_feed.engines.engine import Part
from dali_feed.engines.host import images
from dali_feed.engines.workers import Job, WorkerThread
from dali_feed.errors import SourceError
from dali_feed.feed import Feed, machine
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Lease, Snapshot
from dali_feed.testing.scripted import Corrupt, Gap, Item, ScriptedReader, ScriptedSource

__all__ = ["EPOCHS", "RECORDS", "SHAPES", "Letters", "Shape", "World", "batches_of", "over_written", "seen"]

RECORDS = 24
EPOCHS = 4  # that a schedule may come to
HANG = 40.0  # virtual seconds, longer than any close waits
REFUSED = frozenset({5, 6, 17})  # records that the screen passes and the decoder refuses
WIPED = b"\xee" * 4096
GONE, SPOILT = 3, 10  # a position without a record, and one whose record the source refuses


@dataclass(frozen=True)
class Shape:
    """What decides the batches: the order, their size, whether the data has faults, and bytes behind each image."""

    shuffle: bool | Shuffle
    batch: int
    lanes: int
    bad: bool
    padding: int = 0

    def payload(self, n: int) -> bytes:
        """The n-th record."""
        return jpeg(n) + (bytes(self.padding) + b"\xff\xd9" if self.padding else b"")  # it ends as a JPEG does

    def items(self) -> list[Item]:
        """The records."""
        items: list[Item] = [(self.payload(n), n) for n in range(RECORDS)]
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
    """Speeds and faults of one schedule; None, or `well`: nothing hangs or fails."""

    current: ClassVar[World | None] = None

    def __init__(self, shape: Shape, schedule: Schedule | None, *, well: bool = False) -> None:
        self.shape, self.schedule = shape, schedule
        self.letters = Letters(schedule)
        self.wrong = list[str]()  # what must not be
        self.looks: tuple[float, ...] = ()  # seconds that a snapshot takes; none: it has no pin either
        World.current = self
        if schedule is None:
            return
        rng = schedule.rng
        self.reads = rng.choice(((0.0,), (0.0, 0.01), (0.0, 0.01, 0.1, 1.0)))
        self.decodes = rng.choice(((0.0,), (0.0, 0.01), (0.0, 0.01, 0.2)))
        self.hangs = 0.0 if well else rng.choice((0.0, 0.0, 0.02))
        self.fails = 0.0 if well else rng.choice((0.0, 0.0, 0.03, 0.2))

    def feed(self, **options: Any) -> Feed:
        """A feed of it; `options` of its tuning that are not drawn."""
        rng = None if self.schedule is None else self.schedule.rng
        pick: Callable[[Sequence[Any]], Any] = (lambda of: of[0]) if rng is None else rng.choice
        drawn: dict[str, Any] = {
            "threads": pick((1, 2)),
            "readers": pick((1, 2)),
            "prefetch": pick((1, 2, 3)),
            "memory": pick(("8MiB", "2MiB")),
            "next_epoch": pick((True, True, False)),
        }
        return Feed(
            Source(self),
            self.shape.batch,
            shuffle=self.shape.shuffle,
            lanes=self.shape.lanes,
            seed=7,
            bad=BadRecords(limit=None, dead_letter=self.letters if self.shape.bad else None),
            tuning=Tuning(**(drawn | options)),
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
    """Records in memory, whose reads take their time. It says what they are without their padding."""

    def __init__(self, world: World) -> None:
        super().__init__(world.shape.items(), extent=4, random_access=False)
        self.world = world
        self.looks = self.looking = 0  # snapshots that were taken, and that are being taken

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """See `ScriptedSource.snapshot`; what it holds by any pin is the same."""
        world = self.world
        if world.looks:
            self.looks, self.looking = self.looks + 1, self.looking + 1
            if self.looking > 1:
                world.wrong.append("two snapshots are taken at once")
            world.takes(world.looks)
            self.looking -= 1
        taken = super().snapshot(None if world.looks else pin)
        return replace(taken, record_bytes=len(jpeg(0)), pin={"of": "then"} if world.looks else None)

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
        self.seconds = (0.0,) if schedule is None else schedule.rng.choice(((0.0,), (0.0, 0.1), (0.0, 3.0)))
        self.written = list[int]()  # samples

    @property
    def slow(self) -> bool:
        """Whether it takes time."""
        return any(self.seconds)

    def writer(self) -> Letters:
        """Itself."""
        return self

    def write(self, letters: Sequence[Letter]) -> None:
        """Write them, slowly."""
        if self._schedule is not None:
            sync.sleep(self._schedule.rng.choice(self.seconds))
        self.written += [letter.sample for letter in letters]

    def read(self) -> Iterator[Letter]:
        """Nothing is read here."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


class Decoding(Job):
    """What the host engine's is meanwhile: an image is the number of its record."""

    def __init__(self, maker: images.HostImages, part: Part, made: Any, chunks: Sequence[Sequence[int]]) -> None:
        del maker
        super().__init__(chunks, part.stop)
        self._part, self.images = part, made
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
                if bytes(self._part.payloads[slot]) != world.shape.payload(number):
                    world.wrong.append("a decoder reads memory that was given back")
            if world.fault():
                msg = "out of memory"
                raise RuntimeError(msg)
            if world.shape.bad and number in REFUSED:
                self.bad[slot] = "refused"
            self.images[0][slot] = number


@contextmanager
def over_written() -> Iterator[None]:
    """Within, memory that is given back is written over, and images are made by `Decoding`, one at a time."""
    give = SlabPool._give

    def wiped(pool: SlabPool, slabs: list[memoryview], filled: int, *, lent: bool) -> None:
        for slab in () if lent else slabs:
            slab[: len(WIPED)] = WIPED
        give(pool, slabs, filled, lent=lent)

    with patched(
        (SlabPool, "_give", wiped),
        (images, "_Decoding", Decoding),
        (images, "CHUNK", 1),
        (images, "MOST", 1),
        (machine, "_live", weakref.WeakSet()),  # what a schedule leaves open nobody can close
    ):
        yield


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
