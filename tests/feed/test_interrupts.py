"""Ctrl-C, close() and errors at any moment: no two threads ever feed one engine, and the next pass is whole."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType
from typing import Any

import pytest
import torch
from kit.images import QUICK, labelled, seen
from kit.limits import LONG

from dali_feed.engines.workers import Alone
from dali_feed.errors import ClosedError
from dali_feed.feed import Feed, machine, reading
from dali_feed.feed.passes import Batches
from dali_feed.testing.scripted import ScriptedSource


def feed_of() -> Feed:
    """Six batches an epoch."""
    return Feed(ScriptedSource(labelled(24), extent=4), 4, shuffle=True, tuning=QUICK)


def passes(count: int) -> list[Any]:
    """What so many epochs give where nobody interrupts."""
    with feed_of() as feed:
        return [[seen(batch) for batch in feed] for _ in range(count)]


def test_behind_the_making_of_the_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is lost there has no threads yet, and the next pass is whole."""
    make, hits = reading.ReadPool, [KeyboardInterrupt()]

    def interrupted(*arguments: Any) -> Any:
        pool = make(*arguments)
        if hits:
            raise hits.pop()
        return pool

    monkeypatch.setattr(machine, "ReadPool", interrupted)
    with feed_of() as feed:
        with pytest.raises(KeyboardInterrupt):
            iter(feed)
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("dali_feed")]
        assert [seen(batch) for batch in feed] == passes(1)[0]


def test_while_an_iterator_is_made() -> None:
    """It is dropped without a word, and the next pass is whole."""
    before, hits = sys.gettrace(), [KeyboardInterrupt()]

    def trace(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code is Batches.__init__.__code__ and hits:
            raise hits.pop()

    with feed_of() as feed:
        sys.settrace(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                iter(feed)
        finally:
            sys.settrace(before)
        gc.collect()
        assert [seen(batch) for batch in feed] == passes(1)[0]


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
