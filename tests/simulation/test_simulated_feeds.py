"""A whole feed in any schedule: faults of source and decoders, Ctrl-C, close, states, and threads beside the loop."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from kit.inside import leased
from kit.schedules import Schedule, explore, seeds
from kit.world import EPOCHS, SHAPES, World, batches_of, over_written, seen

from dali_feed import dead_letters, sync
from dali_feed.engines import engine, workers
from dali_feed.errors import ClosedError, EngineError, SourceError, WaitError
from dali_feed.feed import Feed, channel, epoch_supply, epochs, passes, planning, reading, run
from dali_feed.records import slabs

MODULES = (channel, dead_letters, engine, epoch_supply, epochs, passes, planning, reading, run, slabs, workers)
CLOSES = 30.0  # virtual seconds: above what close waits for a reader, a decoder, letters


def place(feed: Feed) -> tuple[int, int]:
    """The epoch and the batch at which the next pass begins."""
    positions: Any = feed._positions
    at = copy.copy(positions._position)
    if positions._wanted is not None:
        at.set_epoch(positions._wanted)
    at.leave()
    return at.epoch, at.consumed * feed.shares.lanes // feed.batch_size


class Loop:
    """A training loop, and the laws of what it gets."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.rng = schedule, schedule.rng
        self.world = World(self.rng.choice(SHAPES), schedule)
        self.epochs, self.letters = batches_of(self.world.shape)
        self.states: list[Any] = []
        self.moved = False  # whether another thread loads or closes
        self.begun = 0  # passes
        self.loaded: tuple[int, int] | None = None  # where another thread has put it, and no pass has begun since
        self.jumped = False  # whether a state was loaded, or an epoch set
        self.taken = set[tuple[int, int]]()  # batches: epoch and number
        self.beheld: list[tuple[Any, set[int]]] = []  # states that other threads took, and the letters durable by then
        self.interrupts = 0

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
        self.schedule.no_ctrl_c()
        assert self.schedule.now - begun < CLOSES, "close takes long"
        self.schedule.rest()
        for state, written in self.beheld if not self.jumped else ():
            self.durable(state, written)
        assert not self.world.wrong, self.world.wrong[0]
        assert leased(feed) == 0, f"{leased(feed)} bytes are never given back"

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
        self.begun, self.loaded = self.begun + 1, None
        batches = iter(feed)
        if rng.random() < 0.3:
            self.schedule.garbage(batches)
        expected, cut = self.epochs[epoch], False
        for _ in range(count or len(expected) - at):
            try:
                if self.interrupts and rng.random() < 0.1:
                    self.ctrl_c(150)
                item = self.next(batches)
            except KeyboardInterrupt:
                there = self.position
                if rng.random() < 0.5 or there.epoch != epoch:
                    raise
                at, cut = there.consumed * feed.shares.lanes // feed.batch_size, True
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
            assert at < len(expected), "a batch behind the last"
            assert seen(item) == expected[at] or self.moved, f"batch {at} of epoch {epoch}"
            self.taken.add((epoch, at))
            at += 1
            if rng.random() < 0.1:
                sync.sleep(rng.choice((0.0, 0.05, 2.0)))
            if rng.random() < 0.1:
                self.state()

    def next(self, batches: Any) -> Any:
        """The next batch, at times with a time limit."""
        while True:
            try:
                return batches.take(self.rng.choice((None, None, 0.05)))
            except WaitError:
                if self.rng.random() < 0.3:
                    sync.sleep(0.5)

    @property
    def position(self) -> Any:
        """The product's own."""
        return self.feed._positions._position  # type: ignore[attr-defined]  # of epochs

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
        with suppress(ClosedError):
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
                    self.loaded = there if self.begun == begun else None
                case "close":
                    self.moved = True
                    self.feed.close()


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
    try:
        schedule.ctrl_c(within=1000)
        feed.close()
    except KeyboardInterrupt:
        schedule.no_ctrl_c()
        feed.close()
    schedule.no_ctrl_c()
    schedule.rest()
    assert leased(feed) == 0, f"{leased(feed)} bytes are never given back"


def loads(schedule: Schedule) -> None:
    """Another thread loads a state while the loop comes to the end of an epoch."""
    world = World(schedule.rng.choice(SHAPES), schedule)
    world.fails = world.hangs = 0.0
    feed = world.feed()
    state = feed.state_dict()

    last = sync.Event()

    def other() -> None:
        last.wait()
        feed.load_state_dict(state)

    thread = sync.Thread(target=other, name="other")
    thread.start()
    batches = iter(feed)
    for _ in range(len(feed)):
        batches.take()
    last.set()
    with suppress(ClosedError, StopIteration):
        batches.take()
    thread.join()
    assert place(feed) == (0, 0), f"a state of the begin was loaded, and the loop stands at {place(feed)}"
    feed.close()
    schedule.rest()


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
        explore(loops, seeds(500), modules=MODULES)


def test_a_close_that_was_interrupted() -> None:
    """The next one does the rest: no thread and no memory is left."""
    with prepared():
        explore(closes, seeds(200), modules=MODULES)


def test_a_state_that_is_loaded_at_the_end() -> None:
    """Whatever the loop is at, the next pass begins where the state says."""
    with prepared():
        explore(loads, seeds(200), modules=MODULES)


@pytest.mark.long(form="test_any_schedule")
def test_many_schedules() -> None:
    """The same, for an hour."""
    with prepared():
        explore(loops, seeds(50_000, 500), modules=MODULES)
