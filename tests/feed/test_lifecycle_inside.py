"""Insides that contract/feed/test_lifecycle.py needs not: they go with what they test."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.images import QUICK, labelled, seen
from kit.inside import leased, running

from dali_feed import DataLoader
from dali_feed.errors import ClosedError, SourceError
from dali_feed.feed import Feed, machine
from dali_feed.options import Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.testing.scripted import Abort, ScriptedSource, Stall

pytestmark = pytest.mark.usefixtures("each_engine")


_others: set[threading.Thread] = set()  # of loaders that an earlier file holds: this file is about its own


def _threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("dali_feed") and t not in _others]


@pytest.fixture(scope="module", autouse=True)
def _of_nobody_else() -> None:
    """What earlier files left behind ends first, frozen or not: tests/conftest.py freezes the heap now and then."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    _others.update(threading.enumerate())


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    gc.collect()
    assert _threads() == []
    yield
    gc.collect()
    assert _threads() == []


def _stalled(at: int) -> ScriptedSource:
    items = labelled(64)
    items[at] = Stall(threading.Event())
    return ScriptedSource(items, extent=4)


def _ended(loader: DataLoader) -> None:
    """Closing must not wait for what never comes: the deadline is the promise, not a measurement."""
    begun = time.monotonic()
    loader.close()
    assert time.monotonic() - begun < 2
    assert _threads() == []
    assert leased(running(loader)) == 0
    loader.close()


def _never_iterated(loader: DataLoader) -> None:
    return


def _before_the_first_batch(loader: DataLoader) -> Any:
    return iter(loader)


def _while_reading(loader: DataLoader) -> Any:
    batches = iter(loader)
    source: Any = loader.dataset
    while not source.reads:
        time.sleep(0)
    return batches


def _full_queues(loader: DataLoader) -> Any:
    batches = iter(loader)
    next(batches)
    run = running(loader)._passes.run
    assert run is not None
    channel = run._out
    while len(channel) < 2:
        time.sleep(0)
    return batches


def _dropped(loader: DataLoader) -> None:
    next(iter(loader))


def _timed_out(loader: DataLoader) -> Any:
    batches = iter(loader)
    loader.timeout = 0.05
    with pytest.raises(TimeoutError):
        list(batches)
    return batches


def _after_an_error(loader: DataLoader) -> Any:
    batches = iter(loader)
    with pytest.raises(SourceError):
        list(batches)
    return batches


ONE = Shuffle(4, 1)
STATES: dict[str, tuple[Callable[[DataLoader], Any], Callable[[], ScriptedSource]]] = {
    "never iterated": (_never_iterated, lambda: _stalled(0)),
    "before the first batch": (_before_the_first_batch, lambda: ScriptedSource([Stall(threading.Event())] * 64)),
    "while reading": (_while_reading, lambda: ScriptedSource([Stall(threading.Event())] * 64)),
    "full queues": (_full_queues, lambda: ScriptedSource(labelled(64), extent=4)),
    "iterator dropped": (_dropped, lambda: ScriptedSource(labelled(64), extent=4)),
    "timed out": (_timed_out, lambda: _stalled(40)),
    "after an error": (_after_an_error, lambda: ScriptedSource([*labelled(30), Abort(), *labelled(33)], extent=4)),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("shuffle", [ONE, False], ids=["windows", "one window"])
def test_close_returns_soon_in_every_state(state: str, shuffle: Any) -> None:
    """With a source that may never answer, close() ends all threads within two seconds, twice over."""
    act, source = STATES[state]
    if state in {"timed out", "after an error"}:
        shuffle = ONE
    loader = DataLoader(source(), 4, device="cpu", shuffle=shuffle, tuning=Tuning(threads=1, readers=2))
    kept = act(loader)
    _ended(loader)
    if kept is not None:
        with pytest.raises(ClosedError):
            next(kept)
    with pytest.raises(ClosedError, match="close"):
        iter(loader)


def test_a_pass_after_an_error_begins_anew() -> None:
    """A loader whose pass ended in an error gives a whole next epoch, and no batch of the old one."""
    items = labelled(32)
    items[9] = Abort()
    source = ScriptedSource(items, extent=4)
    with Feed(ScriptedSource(labelled(32), extent=4), 4, shuffle=ONE, tuning=QUICK) as clean:
        list(clean)
        wanted = [seen(batch) for batch in clean]
    with Feed(source, 4, shuffle=ONE, tuning=QUICK) as feed:
        with pytest.raises(SourceError):
            list(feed)
        source._items[0][9] = labelled(32)[9]
        assert [seen(batch) for batch in feed] == wanted


def test_an_interrupt_ends_the_pass() -> None:
    """Ctrl-C while the trainer waits leaves no thread that would feed beside the next pass."""
    with Feed(_stalled(20), 4, shuffle=ONE, tuning=QUICK) as feed:
        batches = iter(feed)
        run = feed._passes.run
        assert run is not None
        get = run._out.get

        def interrupted(timeout: float | None = None) -> Any:
            if len(run._out):
                return get(timeout)
            raise KeyboardInterrupt

        run._out.get = interrupted  # type: ignore[method-assign]  # as a signal would, in the wait
        with pytest.raises(KeyboardInterrupt):
            list(batches)
        assert not run._thread.is_alive()
        with pytest.raises(ClosedError):
            next(batches)


@pytest.mark.parametrize("made", ["ReadPool", "make_ready"])
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
