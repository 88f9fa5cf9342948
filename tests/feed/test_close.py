"""close() and finalizers at any moment: what hangs is left to itself, and nothing that ends waits for a lock."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
from kit.both_loaders import OURS_BY_TORCH
from kit.images import QUICK, jpeg, labelled
from kit.limits import LONG

from dali_feed import DataLoader
from dali_feed.columns import Bytes
from dali_feed.engines import workers
from dali_feed.external_sources import Mix
from dali_feed.feed import Feed, run
from dali_feed.feed.meter import PAUSES
from dali_feed.feed.passes import Position
from dali_feed.options import Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.records.live import Pace
from dali_feed.records.slabs import SlabPool
from dali_feed.testing import ScriptedSource, ScriptedStream


class Hangs(list[Any]):
    """Records of which one is not given before it is `free`, whatever else happens: as a user's function that hangs."""

    def __init__(self, items: Sequence[Any], at: int) -> None:
        super().__init__(items)
        self.at, self.free, self.reached = at, threading.Event(), threading.Event()

    def __getitem__(self, n: Any) -> Any:
        if n == self.at:
            self.reached.set()
            self.free.wait(LONG)
        return super().__getitem__(n)


def hanging(at: int) -> tuple[ScriptedSource, Hangs]:
    """A source that hangs at that record, and what frees it."""
    source = ScriptedSource(labelled(24), extent=4)
    items = Hangs(source._items[0], at)
    source._items = [items, *source._items[1:]]
    return source, items


def ours() -> set[str]:
    """The threads of feeds."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("dali_feed")}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """close() waits a moment for what hangs, in place of seconds."""
    monkeypatch.setattr(run, "PATIENCE", 0.2)
    monkeypatch.setattr(workers, "PATIENCE", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_source_that_hangs_keeps_its_reader_alone(caplog: pytest.LogCaptureFixture) -> None:
    """All other threads end, one warning names that one, and what it has leased is given back when it ends."""
    source, items = hanging(0)
    with Feed(source, 4, tuning=QUICK) as feed:
        iter(feed)
        assert items.reached.wait(LONG)
        reader = {name for name in ours() if "read" in name}
        with caplog.at_level(logging.WARNING, "dali_feed"):
            feed.close()
        (left,) = ours()
        assert left in reader
        said = [record.getMessage() for record in caplog.records if "closed, but for" in record.getMessage()]
        assert len(said) == 1
        assert left in said[0]
        items.free.set()
        for thread in threading.enumerate():
            if thread.name == left:
                thread.join(LONG)
        assert feed._slabs.leased == 0


@pytest.mark.usefixtures("impatient")
def test_a_function_of_the_users_that_hangs_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """It keeps one thread of the engine, which the warning of close() names, and which ends with it."""
    begun, free = threading.Event(), threading.Event()

    def hangs(value: Any) -> int:
        begun.set()
        free.wait(LONG)
        return len(value)

    columns = {"size": Bytes("value", decode=hangs)}
    with Feed(ScriptedSource(labelled(8)), 4, columns=columns, tuning=QUICK) as feed:
        iter(feed)
        assert begun.wait(LONG)
        with caplog.at_level(logging.WARNING, "dali_feed"):
            feed.close()
    (said,) = [record.getMessage() for record in caplog.records if "closed, but for" in record.getMessage()]
    assert "dali_feed-work-0: they are inside calls" in said
    free.set()
    for thread in threading.enumerate():
        if thread.name == "dali_feed-work-0":
            thread.join(LONG)
    assert not ours()


def test_a_collection_may_end_a_lease_where_its_pool_is_at_work() -> None:
    """In the very thread that has the pool's lock: nobody waits for himself, and the counts stay right."""
    pool = SlabPool(1 << 10)
    lease = pool.lease()
    lease.room(100)

    class Last:
        def __del__(self) -> None:
            lease.release()

    cycle: list[Any] = [Last()]
    cycle.append(cycle)

    def work() -> None:
        with pool._lock:
            gc.collect()

    del cycle
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LONG)
    assert (thread.is_alive(), pool.leased, pool.filled) == (False, 0, 100)


def test_an_iterator_that_is_collected_takes_no_lock() -> None:
    """Another thread may have any lock of the feed then, and wait for the one that collects."""
    with Feed(ScriptedSource(labelled(24), extent=4), 4, tuning=QUICK) as feed:
        batches = iter(feed)
        next(batches)
        run, has, free = feed._positions.run, threading.Event(), threading.Event()
        assert run is not None

        def hold() -> None:
            with feed._positions._lock, run.gate._changed, run._out._closing:
                has.set()
                free.wait(LONG)

        thread = threading.Thread(target=hold)
        thread.start()
        assert has.wait(LONG)
        del batches
        gc.collect()
        alive = thread.is_alive()
        free.set()
        thread.join(LONG)
        assert alive
        run.thread.join(LONG)
        assert not run.alive
        feed.set_epoch(0)
        assert len(list(feed)) == 6


def test_a_position_is_whole_at_every_step() -> None:
    """A signal's handler, which may come between any two instructions, saves one that the loop was at."""
    seen = set[tuple[int, int]]()
    position = Position((3, 8))
    codes = {each.__code__ for each in vars(Position).values() if hasattr(each, "__code__")}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes = True
        seen.add(position.place)
        return trace if event != "return" else None

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        return trace(frame, event, argument) if frame.f_code in codes else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        position.took(4, last=True)
        position.ended()
        position.took(4, last=False)
        position.took(4, last=False)
        position.leave()
    finally:
        sys.settrace(before)
    assert seen == {(3, 8), (3, 12), (4, 0), (4, 4), (4, 8), (5, 0)}


def test_batches_left_are_those_of_the_epoch_that_comes_next() -> None:
    """Whose length is another one where the weights of a mixture change with the epoch."""
    parts = [ScriptedSource(labelled(count), extent=4, name=name) for count, name in ((12, "one"), (12, "two"))]
    with Feed(Mix(parts, weights={0: (1, 1), 1: (3, 1)}), 2, shuffle=Shuffle(4, 1), tuning=QUICK, lanes=1) as feed:
        batches = iter(feed)
        next(batches)
        next(batches)
        del batches
        left = feed.batches_left
        assert left == len(list(feed))


@pytest.mark.usefixtures("impatient")
def test_a_stream_that_hangs_is_left_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Its reading thread alone stays, named in one warning; the feed thread ends."""
    source = ScriptedStream([(jpeg(n), n) for n in range(8)], pace=Pace(timeout=0.02))
    items = Hangs(source._items[0], 6)
    source._items[0] = items
    with Feed(source, 2, tuning=QUICK) as feed:
        next(iter(feed))
        assert items.reached.wait(LONG)
        with caplog.at_level(logging.WARNING, "dali_feed"):
            feed.close()
        assert ours() == {"dali_feed-live"}
        said = [record.getMessage() for record in caplog.records if "closed, but for" in record.getMessage()]
        assert len(said) == 1
        items.free.set()
        for thread in threading.enumerate():
            if thread.name == "dali_feed-live":
                thread.join(LONG)
        assert feed._slabs.leased == 0


def test_nothing_is_watched_once_a_feed_is_closed() -> None:
    """Also where a loop left an epoch at its last batch, and the pass went on with the next one."""
    before = PAUSES._watched
    with Feed(ScriptedSource(labelled(24), extent=4), 4, tuning=Tuning(threads=1, readers=1)) as feed:
        batches = iter(feed)
        for _ in range(6):
            next(batches)
        run = feed._positions.run
        assert run is not None
        while run.ended_epoch < 0:
            time.sleep(0)
        assert len(list(feed)) == 6
        assert feed._positions.run is run
    assert PAUSES._watched == before


class Squares:
    """A dataset that torch's own loader runs."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, n: int) -> int:
        return n * n


@pytest.mark.filterwarnings(OURS_BY_TORCH.args[0])
@pytest.mark.parametrize("data", [ScriptedSource(labelled(24), extent=4), Squares()], ids=["ours", "torch's"])
def test_what_is_planned_goes_with_a_closed_loader(data: Any) -> None:
    """Of millions of records a plan is large, and nobody knows when the collector comes: no circle leads to it."""
    gc.collect()
    gc.disable()
    try:
        loader = DataLoader(data, 4, device="cpu")
        assert len(list(loader)) == 6
        epochs: Any = loader._positions
        kept = weakref.ref(epochs.plan), weakref.ref(epochs.planning.snapshot.starts)
        del epochs
        loader.close()
        del loader
        assert [one() for one in kept] == [None, None]
    finally:
        gc.enable()
