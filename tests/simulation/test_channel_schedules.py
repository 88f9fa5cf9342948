"""The queue between two threads, in any schedule."""

from __future__ import annotations

from kit.schedules import Schedule, explore, seeds

from dali_feed import sync
from dali_feed.errors import ClosedError
from dali_feed.sync import Channel


def passes_on(schedule: Schedule) -> None:
    """One thread puts, one or two take, and one closes at any moment, or the collector in the midst of a put."""
    rng = schedule.rng
    items, given = Channel[int](rng.choice((1, 2, 4))), list[list[int]]()
    put, got, dropped = list[int](), list[int](), list[int]()

    def puts() -> None:
        try:
            for n in range(10):
                if rng.random() < 0.3:
                    while not items.offer(n, 0.1):
                        pass
                else:
                    items.put(n)
                put.append(n)
        except ClosedError:
            pass

    def takes(mine: list[int]) -> None:
        try:
            while True:
                try:
                    item = items.get(rng.choice((None, 0.1)))
                except TimeoutError:
                    continue
                mine.append(item)
                got.append(item)
        except ClosedError:
            pass

    threads = [sync.Thread(target=puts)]
    for _ in range(rng.choice((1, 2))):
        given.append([])
        threads.append(sync.Thread(target=takes, args=(given[-1],)))
    schedule.garbage(lambda: dropped.extend(items.close()))
    for thread in threads:
        thread.start()
    sync.sleep(rng.choice((0.0, 0.05, 0.2)))
    schedule.rest()
    assert len(items) == 0
    assert all(mine == sorted(mine) for mine in given), "each takes in order"
    assert sorted([*got, *dropped]) == list(range(len(got) + len(dropped))), "none is lost, none comes twice"
    assert set(put) <= {*got, *dropped}, "what was put is there"


def test_any_schedule() -> None:
    """Items come in order, none twice and none lost; close ends every wait, of both sides."""
    explore(passes_on, seeds(500), modules=[sync])
