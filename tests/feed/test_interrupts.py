"""Ctrl-C, close() and errors at any moment: no two threads ever feed one engine, and the next pass is whole."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from kit.images import QUICK, labelled, seen
from kit.limits import LONG

from dali_feed.engines.workers import Alone
from dali_feed.errors import ClosedError, SourceError
from dali_feed.feed import Feed, machine
from dali_feed.feed.run import Pass
from dali_feed.options import Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.testing.scripted import Abort, ScriptedSource, Stall


def feed_of() -> Feed:
    """Six batches an epoch."""
    return Feed(ScriptedSource(labelled(24), extent=4), 4, shuffle=True, tuning=QUICK)


def passes(count: int) -> list[Any]:
    """What so many epochs give where nobody interrupts."""
    with feed_of() as feed:
        return [[seen(batch) for batch in feed] for _ in range(count)]


def feeding() -> int:
    """Threads that feed."""
    return sum(thread.name == "dali_feed-feed" for thread in threading.enumerate())


@pytest.mark.parametrize("late", [True, False])
def test_while_a_pass_begins(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Its thread runs already, or never will: the next pass is fed by one thread alone, and begins where that did."""
    start, hits = threading.Thread.start, [KeyboardInterrupt()]

    def interrupted(thread: threading.Thread) -> None:
        hit = thread.name == "dali_feed-feed" and bool(hits)
        if not hit or late:
            start(thread)
        if hit:
            raise hits.pop()

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with feed_of() as feed:
        with pytest.raises(KeyboardInterrupt):
            iter(feed)
        batches = iter(feed)
        assert feeding() <= 1
        assert [seen(batch) for batch in batches] == passes(1)[0]
    assert feeding() == 0


def test_while_a_pass_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C ends the wait for the thread of a pass that is over: the next one waits for it, and reads."""
    wait, hits = threading.Event.wait, [KeyboardInterrupt()]
    with feed_of() as feed:
        next(batches := iter(feed))
        run = feed._positions.run
        assert run is not None

        def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
            if event is run._worker._ended and hits:
                raise hits.pop()
            return wait(event, timeout)

        monkeypatch.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            feed.leave()
        del batches
        feed.set_epoch(1)
        assert [seen(batch) for batch in feed] == passes(2)[1]


def test_between_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a pass is asked for the next epoch: it is fed on, or ended, and never left to itself."""
    request, hits = Pass.request, [KeyboardInterrupt()]

    def interrupted(run: Pass, epoch: int) -> bool:
        goes_on = request(run, epoch)
        if hits:
            raise hits.pop()
        return goes_on

    monkeypatch.setattr(Pass, "request", interrupted)
    source = ScriptedSource(labelled(24), extent=4)
    with Feed(source, 4, shuffle=True, tuning=Tuning(threads=1, readers=1)) as feed:
        list(feed)
        with pytest.raises(KeyboardInterrupt):
            iter(feed)
        assert [seen(batch) for batch in feed] == passes(2)[1]
        assert feeding() <= 1
    assert feeding() == 0


def test_while_the_loop_waits() -> None:
    """No thread is left that would feed beside the next pass."""
    items = labelled(24)
    items[20] = Stall(threading.Event())
    with Feed(ScriptedSource(items, extent=4), 4, shuffle=Shuffle(4, 1), tuning=QUICK) as feed:
        batches = iter(feed)
        run = feed._positions.run
        assert run is not None
        get = run._out.get

        def interrupted(timeout: float | None = None) -> Any:
            if len(run._out):
                return get(timeout)
            raise KeyboardInterrupt

        run._out.get = interrupted  # type: ignore[method-assign]  # as a signal would, in the wait
        with pytest.raises(KeyboardInterrupt):
            list(batches)
        assert feeding() == 0
        with pytest.raises(ClosedError):
            next(batches)


def test_a_pass_after_an_error_begins_anew() -> None:
    """A loader whose pass ended in an error gives a whole next epoch, and no batch of the old one."""
    items = labelled(24)
    items[9] = Abort()
    with Feed(ScriptedSource(items, extent=4), 4, shuffle=True, tuning=QUICK) as feed:
        with pytest.raises(SourceError):
            list(feed)
        feed.source._items[0][9] = labelled(24)[9]
        epoch, _ = feed._epochs._position.next  # the first again, where no more than a look was taken of it
        assert [seen(batch) for batch in feed] == passes(2)[epoch]


@pytest.mark.parametrize("made", ["ReadPool", "make_engine"])
def test_another_thread_may_close_while_the_first_pass_begins(monkeypatch: pytest.MonkeyPatch, made: str) -> None:
    """What is made at that moment is ended too, and who begins the pass hears why."""
    make, closed = getattr(machine, made), list[Any]()

    def closing(*arguments: Any, **options: Any) -> Any:
        closer = threading.Thread(target=feed.close)
        closer.start()
        closer.join()
        one = make(*arguments, **options)
        end = one.close

        def ended(*given: Any) -> None:
            closed.append(one)
            end(*given)

        monkeypatch.setattr(one, "close", ended)
        return one

    monkeypatch.setattr(machine, made, closing)
    before = set(threading.enumerate())
    feed = Feed(ScriptedSource(labelled(8)), 4, tuning=QUICK)
    with pytest.raises(ClosedError, match="closed by another thread while its first pass began"):
        iter(feed)
    assert len(closed) == 1
    assert set(threading.enumerate()) <= before


def test_torch_has_its_number_of_threads_again() -> None:
    """Threads that cannot all be begun end, and torch's number for other threads is what it was."""
    before, alone, ran = torch.get_num_threads(), Alone(2), threading.Event()
    thread = threading.Thread(target=lambda: ran.set() if alone.enter() else None)

    def start() -> None:
        with alone.starting():
            thread.start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start()
    thread.join(LONG)
    assert (thread.is_alive(), ran.is_set(), torch.get_num_threads()) == (False, False, before)
