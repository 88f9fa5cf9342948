"""Schedules themselves: they run what threads may do, a fault comes again by its seed, and nothing waits for ever."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from kit.rules_out import ROOT, RULES
from kit.schedules import Schedule, StuckError, explore, replaced, replayed

from dali_feed import sync

HERE = (sys.modules[__name__],)


def failing(scenario: Callable[[Schedule], None], seeds: range = range(200)) -> tuple[int, str]:
    """The first of these schedules that fails, and how."""
    for seed in seeds:
        try:
            explore(scenario, [seed], modules=HERE)
        except AssertionError as error:
            return seed, f"{error}\n" + "\n".join(error.__notes__)
    msg = "no schedule has failed"
    raise LookupError(msg)


class Counter:
    """Counts, without a lock."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        """One more."""
        before = self.count
        self.count = before + 1


def adds_twice(_: Schedule) -> None:
    """Two threads count at a time."""
    counter = Counter()
    other = sync.Thread(target=counter.add)
    other.start()
    counter.add()
    other.join()
    assert counter.count == 2, "an update is lost"


def test_a_lost_update() -> None:
    """It is seen, with what it was, and the same seed brings the same switches again."""
    seed, text = failing(adds_twice)
    assert "an update is lost" in text
    assert f"SEED={seed}" in text
    assert failing(adds_twice, range(seed, seed + 1)) == (seed, text)


def test_with_a_lock() -> None:
    """What a lock guards is never lost, in any schedule."""

    def scenario(_: Schedule) -> None:
        counter, lock = Counter(), sync.Lock()

        def add() -> None:
            with lock:
                counter.add()

        threads = [sync.Thread(target=add) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counter.count == 3

    assert explore(scenario, range(300), modules=HERE) == 300


def test_two_locks_in_two_orders() -> None:
    """A deadlock is seen at once, and said: who waits for what."""

    def scenario(_: Schedule) -> None:
        a, b = sync.Lock(), sync.Lock()

        def there() -> None:
            with b, a:
                pass

        other = sync.Thread(target=there, name="there")
        other.start()
        with a, b:
            pass

    _, text = failing(scenario)
    assert "there waits for a lock of loop; loop waits for a lock of there" in text or "loop waits for a lock" in text


def test_a_thread_that_does_not_end() -> None:
    """It is an error, though the scenario has come to its end."""

    def scenario(_: Schedule) -> None:
        sync.Thread(target=sync.Event().wait, name="left").start()

    with pytest.raises(StuckError, match="left waits for an event"):
        explore(scenario, [0])


def test_what_never_waits() -> None:
    """Nor does a thread run for ever."""

    def scenario(_: Schedule) -> None:
        while True:
            sync.sleep(0.0)

    with pytest.raises(StuckError, match="still runs"):
        explore(scenario, [0])


def test_the_error_of_a_thread() -> None:
    """It is the schedule's."""

    def scenario(_: Schedule) -> None:
        sync.Thread(target=[].pop, name="pops").start()

    with pytest.raises(IndexError) as caught:
        explore(scenario, [3])
    assert "in pops" in caught.value.__notes__


def test_the_clock() -> None:
    """Hours pass at once, whoever waits less long is awake first, and a wait that ends by the clock says so."""
    order: list[str] = []

    def wakes(seconds: float, name: str) -> None:
        sync.sleep(seconds)
        order.append(name)

    def scenario(schedule: Schedule) -> None:
        order.clear()
        threads = [sync.Thread(target=wakes, args=(s, n)) for s, n in ((7200.0, "b"), (60.0, "a"))]
        for thread in threads:
            thread.start()
        threads[0].join(30.0)
        assert threads[0].is_alive()
        assert not sync.Event().wait(1.0)
        changed = sync.Condition()
        with changed:
            assert not changed.wait(1.0)
            assert not changed.wait_for(lambda: False, 1.0)
        with pytest.raises(sync.Empty):
            sync.SimpleQueue[int]().get(timeout=1.0)
        lock = sync.Lock()
        lock.acquire()
        assert not lock.acquire(timeout=1.0)
        threads[0].join()
        assert order == ["a", "b"]
        assert 7200.0 <= schedule.now < 7201.0

    begun = time.monotonic()
    explore(scenario, range(20))
    assert time.monotonic() - begun < 3600  # of 144,000 virtual seconds


def test_a_condition() -> None:
    """Each notification wakes one that waits, and none is lost to one that does not wait yet."""

    def scenario(_: Schedule) -> None:
        changed, items, got = sync.Condition(), list[int](), list[int]()

        def takes() -> None:
            with changed:
                changed.wait_for(lambda: bool(items))
                got.append(items.pop(0))

        threads = [sync.Thread(target=takes) for _ in range(3)]
        for thread in threads:
            thread.start()
        for n in range(3):
            with changed:
                items.append(n)
                changed.notify()
        for thread in threads:
            thread.join()
        assert got == [0, 1, 2]

    explore(scenario, range(200), modules=HERE)


def test_a_queue_a_barrier_a_future() -> None:
    """Items come in their order, all meet at the barrier, and who waits for a result gets it."""

    def scenario(_: Schedule) -> None:
        items, barrier, future = sync.SimpleQueue[int](), sync.Barrier(2), sync.Future[int]()

        def gives() -> None:
            for n in range(4):
                items.put(n)
            barrier.wait()
            future.set_result(7)

        sync.Thread(target=gives).start()
        assert [items.get() for _ in range(4)] == [0, 1, 2, 3]
        assert items.qsize() == 0
        barrier.wait()
        assert future.result() == 7

    explore(scenario, range(200), modules=HERE)


def test_ctrl_c() -> None:
    """It comes out of the loop's thread alone, at each place of it in one schedule or another, also in a wait."""
    places = set[str]()

    def scenario(schedule: Schedule) -> None:
        at, woken = ["before"], sync.Event()

        def wakes() -> None:
            sync.sleep(1.0)
            woken.set()

        other = sync.Thread(target=wakes)
        try:
            schedule.ctrl_c(within=60)
            at[0] = "begins"
            other.start()
            at[0] = "waits"
            woken.wait()
            at[0] = "behind"
            for _ in range(40):
                sync.monotonic()
        except KeyboardInterrupt:
            places.add(at[0])
        schedule.no_ctrl_c()
        if other.is_alive():
            other.join()

    explore(scenario, range(300), modules=HERE)
    assert places >= {"begins", "waits", "behind"}


def test_ctrl_c_in_a_condition() -> None:
    """Whoever is interrupted in a wait has the lock again, and gives it back."""

    def scenario(schedule: Schedule) -> None:
        changed, seen = sync.Condition(), list[str]()

        def notifies() -> None:
            for _ in range(3):
                with changed:
                    changed.notify_all()
                sync.sleep(0.1)

        other = sync.Thread(target=notifies)
        other.start()
        try:
            schedule.ctrl_c(within=40)
            for _ in range(3):
                with changed:
                    changed.wait(0.2)
        except KeyboardInterrupt:
            seen.append("interrupted")
        schedule.no_ctrl_c()
        with changed:
            seen.append("there")
        other.join()

    explore(scenario, range(300), modules=HERE)


def test_each_rule_is_where_it_can_be_taken_out() -> None:
    """`tests/kit/rules_out.py` knows the product as it is: each patch applies."""
    assert [rule for rule in RULES if not rule.there(ROOT)] == []
    assert {rule.number for rule in RULES} == set(range(1, 24))


def test_outside_a_schedule() -> None:
    """What threads of the product meet on is the real thing again."""
    was: Any = sync.Condition
    with replaced():
        assert sync.Condition is not was
        replayed(lambda _: None, 0)
    assert sync.Condition is was
