"""What a source holds, taken by a thread where `timeout=` bounds the wait: one at a time, once, and closed at once."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from kit.images import labelled

from dali_feed import DataLoader, sync
from dali_feed.errors import ClosedError, WaitError
from dali_feed.feed.planning import SourceLook
from dali_feed.testing import ScriptedSource

NAME = "dali_feed-snapshot"


def test_a_signal_handler_may_close_while_a_look_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it comes in the loop's thread, in the midst of `Thread.start`: it hung, as that was called with a lock."""

    class Signalled(threading.Thread):
        def start(self) -> None:
            if self.name == NAME:
                loader.close()
            super().start()

    monkeypatch.setattr(sync, "Thread", Signalled)
    loader = DataLoader(ScriptedSource(labelled(8), extent=4), 4, device="cpu", timeout=60)
    with pytest.raises(ClosedError):
        len(loader)


def test_looks_of_several_pins_are_taken_one_at_a_time_and_close_ends_the_wait_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who waited for the older one got it behind the close, and both were taken at once."""
    begun, gate, errors = threading.Semaphore(0), threading.Event(), list[str]()
    now = most = 0

    class Begun(threading.Thread):
        def start(self) -> None:
            super().start()
            begun.release()

    def take(*_: object) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        gate.wait()
        now -= 1

    def ask(pin: str) -> None:
        try:
            look(60, pin)
        except ClosedError as error:
            errors.append(f"{pin}: {error}")

    look = SourceLook(take)
    monkeypatch.setattr(sync, "Thread", Begun)
    asking = [threading.Thread(target=ask, args=(pin,)) for pin in ("a", "b")]
    for thread in asking:
        thread.start()
        assert begun.acquire(timeout=30)
    looking = [thread for thread in threading.enumerate() if thread.name == NAME]
    look.close()
    gate.set()
    for thread in asking + looking:
        thread.join(30)
    message = "loader: closed while it read what its source holds"
    assert (sorted(errors), most) == ([f"a: {message}", f"b: {message}"], 1)
    with pytest.raises(ClosedError):
        look(60, "c")


@pytest.mark.parametrize("late", [False, True])
def test_a_look_that_ends_just_as_its_wait_does_is_not_lost(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """It was a bare TimeoutError, or a WaitError, and what had been taken was thrown away."""
    gate, me, taken = threading.Event(), threading.current_thread(), list[object]()

    class Ends(Future[Any]):
        def done(self) -> bool:
            done = super().done()
            if threading.current_thread() is me:  # the other thread gets its turn before this is answered, or behind
                gate.set()
                for thread in threading.enumerate():
                    if thread.name == NAME:
                        thread.join(30)
            return done if late else super().done()

    def take(*pin: object) -> Any:
        gate.wait()
        taken.append(pin)
        return "snapshot"

    monkeypatch.setattr(sync, "Future", Ends)
    look: Any = SourceLook(take)
    if late:
        with pytest.raises(WaitError, match="timeout= gives it more time"):
            look(0.01)
    assert (look(0.01), taken) == ("snapshot", [()])


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
def test_a_look_that_could_not_begin_is_tried_anew(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Nobody waits for a thread that there is not."""

    class Fails(threading.Thread):
        def start(self) -> None:
            raise error

    look: Any = SourceLook(lambda: "snapshot")  # type: ignore[arg-type,return-value]
    with monkeypatch.context() as within:
        within.setattr(sync, "Thread", Fails)
        with pytest.raises(type(error)):
            look(60)
    assert look(60) == "snapshot"


def test_who_no_longer_bounds_the_wait_gets_the_look_that_is_under_way() -> None:
    """A second one was taken at once."""
    gate, taken = threading.Event(), list[object]()

    def take() -> Any:
        gate.wait()
        taken.append(gate)
        return "snapshot"

    look: Any = SourceLook(take)
    with pytest.raises(WaitError):
        look(0.01)
    gate.set()
    assert (look(0), len(taken)) == ("snapshot", 1)
