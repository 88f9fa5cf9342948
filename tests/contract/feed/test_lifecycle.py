"""Threads, memory and processes: whatever state a loader is in, it closes soon and leaves nothing behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from kit.images import QUICK, broken_png, jpeg, labelled
from kit.inside import Abort, Corrupt, Feed, Stall, leased, running

from dali_feed import BadRecords, DataLoader, Shuffle, Tuning
from dali_feed.errors import ClosedError, ConfigError, SourceError, WaitError
from dali_feed.extend import Snapshot
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.usefixtures("each_engine")


_others: set[threading.Thread] = set()  # of loaders that an earlier file holds: this file is about its own


def _threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("dali_feed") and t not in _others]


@pytest.fixture(scope="module", autouse=True)
def _of_nobody_else() -> None:
    """What earlier files left behind ends first, or is known: tests/conftest.py freezes the heap now and then."""
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


ONE = Shuffle(4, 1)


def _never_iterated(loader: DataLoader) -> None:
    return


def _while_reading(loader: DataLoader) -> Any:
    batches = iter(loader)
    source: Any = loader.dataset
    loader.timeout = 0.01
    while not source.reads:  # a pass begins when its first batch is asked for
        with pytest.raises(TimeoutError):
            next(batches)
    return batches


def _full_queues(loader: DataLoader) -> Any:
    batches = iter(loader)
    next(batches)
    finished = 0
    while finished < 16:  # the batch that was taken, two that wait, and one for which there is no room
        finished = {stage.name: stage.samples for stage in loader.stats().stages}.get("finish", 0)
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


def _stuck() -> ScriptedSource:
    return ScriptedSource([Stall(threading.Event())] * 64)


def _whole() -> ScriptedSource:
    return ScriptedSource(labelled(64), extent=4)


# What a loader is brought to, its source, and how it is shuffled.
STATES: dict[str, tuple[Callable[[DataLoader], Any], Callable[[], ScriptedSource], Any]] = {
    "never iterated": (_never_iterated, lambda: _stalled(0), ONE),
    "before the first batch": (iter, _stuck, ONE),
    "before the first batch of one window": (iter, _stuck, False),
    "while reading": (_while_reading, _stuck, ONE),
    "while reading one window": (_while_reading, _stuck, False),
    "full queues": (_full_queues, _whole, ONE),
    "iterator dropped": (_dropped, _whole, ONE),
    "iterator dropped in one window": (_dropped, _whole, False),
    "timed out": (_timed_out, lambda: _stalled(40), ONE),
    "after an error": (_after_an_error, lambda: ScriptedSource([*labelled(30), Abort(), *labelled(33)], extent=4), ONE),
}


@pytest.mark.parametrize("state", STATES)
def test_close_returns_soon_in_every_state(state: str) -> None:
    """With a source that may never answer, close() ends all threads within two seconds, twice over."""
    act, source, shuffle = STATES[state]
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
def test_memory_goes_back_after_every_pass(shuffle: Any, faults: bool, each_engine: str) -> None:
    """After whole passes, passes left at every batch, and passes that an error ended, nothing is leased.

    The engines take turns at the batches; `make test-long` leaves a pass at each with both.
    """
    items = labelled(32)
    if faults:
        items[7], items[22] = Corrupt(), (broken_png(), 0)
    source = ScriptedSource(items, extent=4)
    options: dict[str, Any] = {"shuffle": shuffle, "lanes": 2, "bad": BadRecords(limit=None)}
    with Feed(source, 4, tuning=replace(QUICK, prefetch=3), **options) as feed:
        all_of_them = settings.get_current_profile_name() == "thorough"
        for stop in range(9) if all_of_them else sorted({8, *range(each_engine == "dali", 8, 2)}):
            for n, _batch in enumerate(feed):
                if n == stop:
                    break
            feed.leave()
            assert leased(feed) == 0
    with Feed(source, 4, tuning=QUICK, **(options | {"bad": BadRecords(action="raise")})) as feed:
        for _ in range(3):
            if faults:
                with pytest.raises(Exception, match="scripted"):
                    list(feed)
            else:
                list(feed)
            assert leased(feed) == 0


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


class _Far(ScriptedSource):
    """What it holds is known once `near` is set, or is said to be unreadable."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__(labelled(8), extent=4)
        self.near, self.wrong, self.looks = threading.Event(), wrong, 0
        self.begun = threading.Event()

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        self.looks += 1
        self.begun.set()
        self.near.wait()
        if self.wrong:
            raise SourceError(self.wrong)
        return super().snapshot(pin)


def test_a_timeout_holds_for_what_the_source_holds_too() -> None:
    """For batches, length and state; what was begun goes on, and is taken once it is there."""
    with DataLoader(ScriptedSource(labelled(8), extent=4), 4, device="cpu", tuning=QUICK) as loader:
        next(iter(loader))
        state = loader.state_dict()
    source = _Far()
    with DataLoader(source, 4, device="cpu", timeout=0.05, tuning=QUICK) as loader:
        calls: list[Callable[[], Any]] = [lambda: len(loader), loader.state_dict, lambda: loader.load_state_dict(state)]
        for call in calls:
            with pytest.raises(WaitError, match=r"^source: .* after 0\.05 s; timeout= gives it more time"):
                call()
        batches = iter(loader)
        with pytest.raises(WaitError, match=r"^DataLoader timed out after 0\.05 seconds; source: .*scripted"):
            next(batches)
        loader.timeout = 30
        source.near.set()
        assert [labels.tolist() for _, labels in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert source.looks == 1


def test_an_error_of_a_look_that_a_timeout_left_is_raised_once_and_then_it_is_tried_anew() -> None:
    """It is the error that it would be without a timeout."""
    source = _Far("no such index")
    with DataLoader(source, 4, device="cpu", timeout=0.05, tuning=QUICK) as loader:
        with pytest.raises(WaitError):
            len(loader)
        source.near.set()
        loader.timeout = 30
        for _ in range(2):
            with pytest.raises(SourceError, match="no such index"):
                len(loader)
        source.wrong = ""
        assert len(loader) == 2


def test_close_ends_the_wait_for_what_the_source_holds() -> None:
    """Of another thread: it gets a ClosedError."""
    source, errors = _Far(), list[BaseException]()
    loader = DataLoader(source, 4, device="cpu", timeout=60, tuning=QUICK)

    def wait() -> None:
        try:
            next(iter(loader))
        except ClosedError as error:
            errors.append(error)

    trainer = threading.Thread(target=wait)
    trainer.start()
    assert source.begun.wait(30)
    loader.close()
    trainer.join(30)
    assert [type(error) for error in errors] == [ClosedError]
    looking = [thread for thread in threading.enumerate() if thread.name == "dali_feed-snapshot"]
    source.near.set()
    for thread in looking:
        thread.join(30)


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
