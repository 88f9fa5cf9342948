"""Ctrl-C, close() and errors at any moment: no two threads ever feed one engine, and the next pass is whole."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from kit.images import QUICK, labelled, seen
from kit.limits import LONG

from dali_feed.engines.workers import Alone
from dali_feed.errors import ClosedError
from dali_feed.feed import Feed, machine
from dali_feed.testing.scripted import ScriptedSource


def feed_of() -> Feed:
    """Six batches an epoch."""
    return Feed(ScriptedSource(labelled(24), extent=4), 4, shuffle=True, tuning=QUICK)


def passes(count: int) -> list[Any]:
    """What so many epochs give where nobody interrupts."""
    with feed_of() as feed:
        return [[seen(batch) for batch in feed] for _ in range(count)]


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
