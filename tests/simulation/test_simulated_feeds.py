"""A whole feed in any schedule: faults of source and decoders, Ctrl-C, close, states, and threads beside the loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from kit.inside import leased
from kit.schedules import Schedule, explore, seeds
from kit.world import EPOCHS, RECORDS, SHAPES, Shape, World, batches_of, over_written, seen

from dali_feed import bad_records, sync
from dali_feed.engines import engine, workers
from dali_feed.errors import ClosedError, DeadLetterError, EngineError, SourceError, WaitError
from dali_feed.feed import Feed, epochs, machine, passes, planning, reading, run
from dali_feed.feed import feed as feeds
from dali_feed.plan.order import Shuffle
from dali_feed.records import slabs

pytestmark = pytest.mark.slow

MODULES = (
    sync,
    bad_records,
    engine,
    epochs,
    feeds,
    machine,
    passes,
    planning,
    reading,
    run,
    slabs,
    workers,
)
CLOSES = 30.0  # virtual seconds: above what close waits for a reader, a decoder, letters
MEMORY, BIG = 2 << 20, 150_000  # bytes: of a feed, and of records of which six go into it, a slab each


def stands(feed: Feed) -> tuple[int, int]:
    """The epoch that the loop is in, and its batches that count."""
    at = feed._positions._position  # type: ignore[attr-defined]  # of epochs
    return at.epoch, at.consumed * feed.shares.lanes // feed.batch_size


def place(feed: Feed) -> tuple[int, int]:
    """The epoch and the batch at which the next pass begins."""
    positions: Any = feed._positions
    at = copy.copy(positions._position)
    if positions._wanted is not None:
        at.set_epoch(positions._wanted)
    at.leave()
    return at.epoch, at.consumed * feed.shares.lanes // feed.batch_size


def ended(feed: Feed, schedule: Schedule) -> None:
    """It is closed: no thread and no memory is left."""
    schedule.no_ctrl_c()
    feed.close()
    schedule.rest()
    assert leased(feed) == 0, f"{leased(feed)} bytes are never given back"


class MakeError(Exception):
    """What `make` raises."""


class Loop:
    """A training loop, and the laws of what it gets."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.rng = schedule, schedule.rng
        self.world = World(self.rng.choice(SHAPES), schedule)
        self.epochs, self.letters = batches_of(self.world.shape)
        self.states: list[Any] = []
        self.moved = False  # whether another thread loads or closes
        self.begun = 0  # passes, twice: odd while one begins
        self.loaded: tuple[int, int] | None = None  # where another thread has put it, and no pass has begun since
        self.jumped = False  # whether a state was loaded, or an epoch set
        self.taken = set[tuple[int, int]]()  # batches: epoch and number
        self.beheld: list[tuple[Any, set[int]]] = []  # states that other threads took, and the letters durable by then
        self.interrupts = 0
        self.spoils = self.rng.choice((0.0, 0.0, 0.1))  # batches that `make` fails for
        self.older: Any = None  # an iterator that a newer one follows

    def run(self) -> None:
        """Steps of a loop, then the end."""
        self.feed = feed = self.world.feed()
        rng = self.rng
        self.interrupts = rng.choice((0, 0, 0, 1, 2))
        for _ in range(rng.choice((1, 2, 4, 6))):
            try:
                if self.interrupts and rng.random() < 0.3:
                    self.ctrl_c(3000)
                self.step()
            except KeyboardInterrupt:
                continue
            except ClosedError:
                assert self.moved, "closed by nobody"
        begun = self.schedule.now
        try:
            feed.close()
        except KeyboardInterrupt:
            self.schedule.no_ctrl_c()
            feed.close()
        self.older = None
        assert self.schedule.now - begun < CLOSES, "close takes long"
        ended(feed, self.schedule)
        for state, written in self.beheld if not self.jumped else ():
            self.durable(state, written)
        assert not self.world.wrong, self.world.wrong[0]

    def step(self) -> None:
        """One thing that a loop does."""
        rng, feed = self.rng, self.feed
        what = rng.choice(("pass", "pass", "pass", "epoch", "all", "look", "set_epoch", "state", "load", "beside"))
        match what:
            case "set_epoch":
                self.loaded, self.jumped = None, True
                feed.set_epoch(rng.randrange(EPOCHS))
            case "state":
                self.state()
            case "load" if self.states:
                self.loaded, self.jumped = None, True
                feed.load_state_dict(rng.choice(self.states))
            case "beside":
                sync.Thread(target=self.beside, name="beside").start()
            case _:
                self.take({"epoch": 99, "all": 0, "look": 1}.get(what, rng.randrange(1, 14)))

    def take(self, count: int) -> None:
        """So many batches of a new pass, at most; 0: all, but without asking for the end."""
        feed, rng = self.feed, self.rng
        epoch, at = place(feed)
        assert self.loaded in (None, (epoch, at)), f"loaded {self.loaded}, and goes on at {epoch, at}"
        if epoch >= EPOCHS:
            return
        batches = self.iterator()
        expected, cut = self.epochs[epoch], False
        for _ in range(count or len(expected) - at):
            try:
                if self.interrupts and rng.random() < 0.1:
                    self.ctrl_c(150)
                item = self.next(batches)
            except KeyboardInterrupt:
                now, done = stands(feed)
                if rng.random() < 0.5 or now != epoch:
                    raise
                at, cut = done, True
                continue
            except ClosedError:
                if cut:  # the iterator that was interrupted gives no more
                    return
                raise
            except StopIteration:
                assert at == len(expected) or self.moved, "the epoch ends early"
                return
            except (SourceError, EngineError):
                assert self.world.fails, "nothing has failed"
                return
            except MakeError:
                assert stands(feed) == (epoch, at) or self.moved, "a batch counts that could not be made"
                return
            assert at < len(expected), "a batch behind the last"
            assert seen(item) == expected[at] or self.moved, f"batch {at} of epoch {epoch}"
            self.taken.add((epoch, at))
            at += 1
            assert stands(feed) == (epoch, at) or self.moved, "the position is not that of the batch"
            if rng.random() < 0.1:
                sync.sleep(rng.choice((0.0, 0.05, 2.0)))
            if rng.random() < 0.1:
                self.state()

    def iterator(self) -> Any:
        """A new one; the one before it gives no more."""
        self.begun, self.loaded = self.begun + 1, None
        batches, older = iter(self.feed), self.older
        self.begun, self.loaded = self.begun + 1, None  # of what was loaded meanwhile it is not known who was first
        if older is not None:
            with pytest.raises((ClosedError, StopIteration)):
                older.take()
        self.older = batches if self.rng.random() < 0.2 else None
        if self.rng.random() < 0.3:
            self.schedule.garbage(batches)
        return batches

    def next(self, batches: Any) -> Any:
        """The next batch, at times with a time limit."""
        while True:
            try:
                return batches.take(self.rng.choice((None, None, 0.05)), self.make)
            except WaitError:
                if self.rng.random() < 0.3:
                    sync.sleep(0.5)

    def make(self, batch: Any) -> Any:
        """What the loop is given."""
        if self.rng.random() < self.spoils:
            raise MakeError
        return batch

    def ctrl_c(self, within: int) -> None:
        """It comes soon."""
        self.interrupts -= 1
        self.schedule.ctrl_c(within=within)

    def state(self) -> None:
        """A state, whose letters are durable."""
        state = self.feed.state_dict()
        if not self.moved and not self.jumped:
            self.durable(state, set(self.world.letters.written))
        self.states.append(state)

    def durable(self, state: Any, written: set[int]) -> None:
        """The letters of the batches that a state counts had been written."""
        done = state["consumed"] * self.feed.shares.lanes // self.feed.batch_size
        for epoch, at in self.taken:
            if epoch == state["epoch"] and at < done:
                assert self.letters[epoch][at] <= written, "a state counts a batch whose letter is not durable"

    def beside(self) -> None:
        """What another thread does."""
        rng = self.rng
        sync.sleep(rng.choice((0.0, 0.01, 0.3)))
        try:
            match rng.choice(("state", "state", "close", "load", "load", "stats")):
                case "state":
                    self.beheld.append((self.feed.state_dict(), set(self.world.letters.written)))
                case "stats":
                    self.feed.stats()
                    self.feed.describe()
                case "load":
                    self.moved, self.jumped, begun = True, True, self.begun
                    self.feed.load_state_dict(self.feed.state_dict())
                    there = place(self.feed)
                    self.loaded = there if self.begun == begun and begun % 2 == 0 else None
                case "close":
                    self.moved = True
                    self.feed.close()
        except ClosedError:
            pass
        except DeadLetterError as error:  # an interrupt cut close(), which gives letters up: no state counts them
            assert "were not written before close()" in str(error), error


def loops(schedule: Schedule) -> None:
    """Of any loop."""
    Loop(schedule).run()


def closes(schedule: Schedule) -> None:
    """Ctrl-C comes into close(), which is then called again."""
    feed = World(schedule.rng.choice(SHAPES), schedule).feed()
    batches = iter(feed)
    with suppress(SourceError, EngineError):
        for _ in range(schedule.rng.randrange(4)):
            batches.take()
    with suppress(KeyboardInterrupt):
        schedule.ctrl_c(within=1000)
        feed.close()
    ended(feed, schedule)


def collects(schedule: Schedule) -> None:
    """The collector closes a feed in the midst of anything, in any thread."""
    world = World(schedule.rng.choice(SHAPES), schedule, well=True)
    feed = world.feed()
    batches = iter(feed)
    schedule.garbage(feed._positions.collected)
    with suppress(ClosedError, StopIteration):
        while True:
            batches.take()
    schedule.rest()
    ended(feed, schedule)


def interrupts(schedule: Schedule) -> None:
    """Ctrl-C comes while a batch is taken, and the loop goes on with its iterator: it gets the next batch, or none."""
    world = World(schedule.rng.choice(SHAPES), schedule, well=True)
    feed, expected = world.feed(), batches_of(world.shape)[0][0]
    batches, at = iter(feed), 0
    with suppress(ClosedError):
        while at < len(expected):
            try:
                schedule.ctrl_c(within=150)
                item = batches.take()
                assert seen(item) == expected[at], f"batch {at}"
                at += 1
            except KeyboardInterrupt:
                at = stands(feed)[1]
            schedule.no_ctrl_c()
    ended(feed, schedule)


def loads(schedule: Schedule) -> None:
    """Another thread loads a state while the loop takes a batch, or comes to the end of an epoch."""
    feed = World(schedule.rng.choice(SHAPES), schedule, well=True).feed()
    state, last = feed.state_dict(), sync.Event()

    def other() -> None:
        last.wait()
        feed.load_state_dict(state)

    def make(batch: Any) -> Any:
        sync.sleep(0.0)
        return batch

    thread = sync.Thread(target=other, name="other")
    thread.start()
    batches = iter(feed)
    for _ in range(schedule.rng.choice((len(feed), schedule.rng.randrange(len(feed))))):
        batches.take()
    last.set()
    with suppress(ClosedError, StopIteration):
        batches.take(None, make)
    thread.join()
    assert stands(feed) == (0, 0), f"a state of the begin was loaded, and the loop stands at {stands(feed)}"
    ended(feed, schedule)


def begins(schedule: Schedule) -> None:
    """Another thread loads a state while the loop makes an iterator: that gives what comes there, or nothing."""
    world = World(schedule.rng.choice(SHAPES), schedule, well=True)
    feed = world.feed()
    for _, _ in zip(feed, range(schedule.rng.choice((2, 3))), strict=False):
        state = feed.state_dict()
    other = sync.Thread(target=feed.load_state_dict, args=(state,), name="loads")
    other.start()
    with suppress(ClosedError):
        batches = iter(feed)
        other.join()
        epoch, at = stands(feed)
        assert seen(batches.take()) == batches_of(world.shape)[0][epoch][at], f"batch {at} of epoch {epoch} comes next"
    other.join()
    ended(feed, schedule)


def shares(schedule: Schedule) -> None:
    """Several threads begin passes over one feed at once: the newest gets batches, and close() ends all threads."""
    feed = World(schedule.rng.choice(SHAPES), schedule, well=True).feed()

    def takes() -> None:
        with suppress(ClosedError):
            iter(feed).take()

    for n in range(2):
        sync.Thread(target=takes, name=f"takes-{n}").start()
    takes()
    sync.sleep(schedule.rng.choice((0.0, 0.0, 0.01)))
    ended(feed, schedule)


def goes_on(schedule: Schedule) -> None:
    """Epoch follows epoch at once, and while the last batches of one are taken decoders begin to fail."""
    rng = schedule.rng
    world = World(rng.choice(SHAPES), schedule, well=True)
    feed, fails = world.feed(next_epoch=True), rng.choice((0.05, 0.5))
    first = rng.choice((1, 2, 3))
    with suppress(SourceError, EngineError):
        for epoch in batches_of(world.shape)[0]:
            for at, batch in enumerate(feed):
                assert seen(batch) == epoch[at], f"batch {at}"
                world.fails = fails if at >= len(epoch) - first else 0.0
    ended(feed, schedule)


def saves(schedule: Schedule) -> None:
    """Another thread saves states while the loop takes batches, whose dead letters take long."""
    rng = schedule.rng
    world = World(rng.choice([shape for shape in SHAPES if shape.bad]), schedule, well=True)
    world.letters.seconds = (0.1,)
    feed, saved = world.feed(), list[tuple[tuple[int, int], set[int]]]()

    def other() -> None:
        for _ in range(rng.choice((3, 10))):
            sync.sleep(rng.choice((0.0, 0.02, 0.1)))
            state = feed.state_dict()
            done = state["consumed"] * feed.shares.lanes // feed.batch_size
            saved.append(((state["epoch"], done), set(world.letters.written)))

    sync.Thread(target=other, name="saves").start()
    for _ in feed:
        sync.sleep(rng.choice((0.0, 0.02)))
    for (epoch, done), written in saved:
        for letters in batches_of(world.shape)[1][0][: None if epoch else done]:
            assert letters <= written, "a state counts a batch whose letter is not durable"
    ended(feed, schedule)


def rests(schedule: Schedule) -> None:
    """The loop rests at its last batch: of the next epoch no more is read than the windows of `prefetch` batches."""
    rng = schedule.rng
    extent, extents = rng.choice(((4, 1), (2, 3)))
    shape = Shape(Shuffle(extent, extents), rng.choice((2, 4)), rng.choice((1, 2)), bad=False)
    feed = World(shape, schedule, well=True).feed()
    batches = iter(feed)
    for _ in range(len(feed)):
        batches.take()
    sync.sleep(1000.0)
    read = sum(stop - start for _, start, stop in feed.source.reads) - RECORDS
    window, slots = extent * extents, feed.tuning.prefetch * shape.batch // shape.lanes
    most = shape.lanes * window * -(-slots // window)
    assert read <= most, f"{read} records of an epoch are read that nobody has asked for: above {most}"
    del batches
    ended(feed, schedule)


def fills(schedule: Schedule) -> None:
    """Records are larger than the source says: a batch in two windows is read, though memory has room for one."""
    shape = Shape(Shuffle(2, 3), 4, 1, bad=False, padding=BIG)
    feed = World(shape, schedule, well=True).feed(memory=MEMORY)
    for at, batch in enumerate(feed):
        assert seen(batch) == batches_of(shape)[0][0][at], f"batch {at}"
    assert feed.stats().slab_peak <= 2 * MEMORY, "more than one window beyond the memory"
    ended(feed, schedule)


def looks(schedule: Schedule) -> None:
    """What the source holds is far away: one thread asks for it, one for what it held by a state, and one closes."""
    rng = schedule.rng
    world = World(rng.choice(SHAPES), schedule, well=True)
    world.looks = (0.0, 1.0, 3.0)
    with world.feed() as before:
        state = before.state_dict()
    feed, open_for = world.feed(), rng.choice((0.0, 0.01, 0.5, 2.0, 9.0))
    feed._positions.wait_at_most(rng.choice((0.5, 2.0, 60.0)))

    def ask(call: Callable[[], object]) -> None:
        for _ in range(9):
            with suppress(WaitError):
                with suppress(ClosedError):
                    call()
                return

    asking = [sync.Thread(target=ask, args=(call,)) for call in (feed.__len__, lambda: feed.load_state_dict(state))]
    for thread in asking:
        thread.start()
    sync.sleep(open_for)
    begun = schedule.now
    feed.close()
    for thread in asking:
        thread.join()
    assert schedule.now - begun < 2.0, "who waits for the source does not hear of the close"
    ended(feed, schedule)
    source: Any = feed.source
    assert source.looks <= 2, f"{source.looks} snapshots of two pins: what was begun is not kept"
    assert not world.wrong, world.wrong[0]


@contextmanager
def prepared() -> Iterator[None]:
    """Within, schedules may run."""
    for shape in SHAPES:  # before there is a schedule: what one finds does not depend on those before it
        batches_of(shape)
    with over_written():
        yield


def test_any_schedule() -> None:
    """Order, letters before states, nothing on memory given back, all memory back, every thread ended."""
    with prepared():
        explore(loops, seeds(250), modules=MODULES)


NARROW = {
    closes: 40,
    collects: 40,
    interrupts: 40,
    loads: 60,
    begins: 60,
    shares: 60,
    goes_on: 40,
    saves: 40,
    rests: 15,
    fills: 15,
    looks: 60,
}


@pytest.mark.parametrize(("scenario", "count"), NARROW.items(), ids=lambda of: getattr(of, "__name__", ""))
def test_a_narrow_place(scenario: Callable[[Schedule], None], count: int) -> None:
    """What few of all schedules come to."""
    with prepared():
        explore(scenario, seeds(count), modules=MODULES)


@pytest.mark.long(form="test_any_schedule")
@pytest.mark.parametrize("first", range(250, 40_250, 1_000))
def test_many_schedules(first: int) -> None:
    """The same, for an hour in all: a test that takes five minutes counts as hung."""
    with prepared():
        explore(loops, seeds(1_000, first), modules=MODULES)


@pytest.mark.long(form="test_a_narrow_place")
@pytest.mark.parametrize("scenario", NARROW, ids=lambda of: of.__name__)
def test_many_narrow_places(scenario: Callable[[Schedule], None]) -> None:
    """The same, for some minutes each."""
    with prepared():
        explore(scenario, seeds(1_000, 250), modules=MODULES)
