"""Threads, memory and processes: whatever state a loader is in, it closes soon and leaves nothing behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from feeds import feed_of
from images import QUICK, broken_png, jpeg, labelled, seen

from dali_feed import DataLoader
from dali_feed.errors import ClosedError, ConfigError, SourceError
from dali_feed.feed import Feed, machine
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.testing.scripted import Abort, Corrupt, ScriptedSource, Stall

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
    assert feed_of(loader)._slabs.leased == 0
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
    run = feed_of(loader)._passes.run
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


def test_closing_at_once_after_iter_never_waits_for_a_read() -> None:
    """The feed thread may ask for a read after close() has begun: that read ends too."""
    for _ in range(30):
        loader = DataLoader(ScriptedSource([Stall(threading.Event())] * 8), 2, device="cpu", tuning=QUICK)
        batches = iter(loader)
        _ended(loader)
        del batches


def test_close_mid_epoch_is_no_end_of_the_epoch() -> None:
    """An iterator of a closed loader raises; a silent end would pass for a whole epoch."""
    loader = DataLoader(ScriptedSource(labelled(16)), 4, device="cpu", tuning=QUICK)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(ClosedError):
        next(batches)
    assert loader.epoch == 0


def test_the_with_statement_closes() -> None:
    """Leaving it by an exception too."""
    loader = DataLoader(_stalled(40), 4, device="cpu", shuffle=ONE, tuning=QUICK)
    with pytest.raises(KeyError), loader:
        raise KeyError([next(iter(loader))])
    with pytest.raises(ClosedError):
        iter(loader)


def test_fifty_cycles_leave_nothing() -> None:
    """Made, iterated a little and closed, in three ways, fifty times: no thread and no memory stays."""
    source = ScriptedSource(labelled(32), extent=4)
    for cycle in range(50):
        loader = DataLoader(source, 4, device="cpu", shuffle=ONE, tuning=QUICK)
        batches = iter(loader)
        for _ in range(cycle % 4):
            next(batches)
        _ended(loader)


@pytest.mark.parametrize("shuffle", [ONE, Shuffle(4, 3), True, False], ids=repr)
@pytest.mark.parametrize("faults", [False, True])
def test_memory_goes_back_after_every_pass(shuffle: Any, faults: bool) -> None:
    """After whole passes, passes left at every batch, and passes that an error ended, nothing is leased."""
    items = labelled(32)
    if faults:
        items[7], items[22] = Corrupt(), (broken_png(), 0)
    source = ScriptedSource(items, extent=4)
    options: dict[str, Any] = {"shuffle": shuffle, "lanes": 2, "bad": BadRecords(limit=None)}
    with Feed(source, 4, tuning=replace(QUICK, prefetch=3), **options) as feed:
        for stop in range(9):
            for n, _batch in enumerate(feed):
                if n == stop:
                    break
            feed.leave()
            assert feed._slabs.leased == 0
    with Feed(source, 4, tuning=QUICK, **(options | {"bad": BadRecords(action="raise")})) as feed:
        for _ in range(3):
            if faults:
                with pytest.raises(Exception, match="scripted"):
                    list(feed)
            else:
                list(feed)
            assert feed._slabs.leased == 0


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


def test_a_loader_that_is_collected_closes() -> None:
    """Dropping loader and iterator mid-epoch ends all threads."""
    loader = DataLoader(ScriptedSource(labelled(64), extent=4), 4, device="cpu", shuffle=ONE, tuning=QUICK)
    batches = iter(loader)
    next(batches)
    assert "dali_feed-feed" in _threads()
    del loader
    next(batches)  # the iterator keeps it
    del batches
    gc.collect()
    assert _threads() == []


def test_another_thread_may_close_while_the_trainer_waits() -> None:
    """The waiting trainer gets a ClosedError and not a hang."""
    loader = DataLoader(ScriptedSource([Stall(threading.Event())] * 8), 2, device="cpu", tuning=QUICK)
    batches = iter(loader)
    found: list[BaseException] = []

    def wait() -> None:
        try:
            next(batches)
        except BaseException as error:  # noqa: BLE001  whatever it is
            found.append(error)

    trainer = threading.Thread(target=wait)
    trainer.start()
    loader.close()
    trainer.join(5)
    assert [type(error) for error in found] == [ClosedError]


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


def test_a_timeout_loses_no_batch() -> None:
    """After a TimeoutError the pass goes on with the batch that was late."""
    held = threading.Event()
    items = labelled(8)
    items[5] = Stall(held, then=(jpeg(5), 5))
    with DataLoader(ScriptedSource(items, extent=4), 4, device="cpu", timeout=0.05, tuning=QUICK) as loader:
        batches = iter(loader)
        with pytest.raises(TimeoutError, match=r"^DataLoader timed out after 0\.05 seconds"):
            list(batches)
        loader.timeout = 30
        held.set()
        rest = [labels.tolist() for _, labels in batches]
        assert rest in ([[4, 5, 6, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]])


@pytest.mark.parametrize("error", [KeyError, StopIteration, TimeoutError])
def test_a_batch_that_collate_fn_fails_on_is_not_counted(error: type[Exception]) -> None:
    """The trainer never got it: a state taken then begins with it, and the pass is over."""
    fails = [False, True, False]

    def collate(samples: list[Any]) -> list[int]:
        if fails.pop(0):
            raise error
        return [label for _, label in samples]

    options: dict[str, Any] = {"device": "cpu", "tuning": QUICK, "collate_fn": collate}
    with DataLoader(ScriptedSource(labelled(12)), 4, timeout=60, **options) as loader:
        batches = iter(loader)
        assert next(batches) == [0, 1, 2, 3]
        with pytest.raises(ConfigError if error is StopIteration else error):
            next(batches)
        with pytest.raises(ClosedError):
            next(batches)
        state = loader.state_dict()
    with DataLoader(ScriptedSource(labelled(12)), 4, **options) as other:
        other.load_state_dict(state)
        assert next(iter(other)) == [4, 5, 6, 7]
