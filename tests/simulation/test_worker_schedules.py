"""The threads of an engine, in any schedule: jobs that fail, hang, are dropped, or whose pass has ended."""

from __future__ import annotations

from collections.abc import Sequence

from kit.schedules import Schedule, explore, seeds

from dali_feed import sync
from dali_feed.engines import workers
from dali_feed.engines.workers import Job, Workers, WorkerThread
from dali_feed.errors import ClosedError

HANGS = 60.0  # virtual seconds, longer than any close waits


class Fake(Job):
    """A job whose slots are what they do; it says what ran, and whether its memory was still there."""

    def __init__(self, slots: Sequence[str], stop: sync.Event, *, lingers: bool) -> None:
        super().__init__([range(at, at + 1) for at in range(len(slots))], stop)
        self.slots, self.lingers = slots, lingers
        self.ran, self.memory = list[int](), True

    def run(self, worker: WorkerThread, slots: Sequence[int]) -> None:
        """Do what the slots say."""
        for slot in slots:
            if self.dropped:
                return
            worker.slots = (slot,)
            what = self.slots[slot]
            if what != "quick":
                sync.sleep(HANGS if what == "hangs" else 0.01)
            assert self.memory or not self.lingers, "it reads memory that was given back"
            if what == "fails":
                msg = f"slot {slot}"
                raise ValueError(msg)
            self.ran.append(slot)


def works(schedule: Schedule) -> None:
    """A thread that feeds submits, takes and drops; the loop ends its pass, and closes, at any moment."""
    rng = schedule.rng
    stop, pool = sync.Event(), Workers(rng.choice((1, 2, 3)))
    kinds = rng.choice((("quick",), ("quick", "slow"), ("quick", "slow", "fails"), ("quick", "slow", "hangs")))
    jobs = [
        Fake([rng.choice(kinds) for _ in range(rng.choice((1, 2, 5)))], stop, lingers=rng.random() < 0.5)
        for _ in range(rng.choice((1, 3, 6)))
    ]

    def waits(job: Fake) -> None:
        try:
            pool.wait(job)
        except ClosedError:
            assert job.over
        except ValueError:
            assert "fails" in job.slots
        else:
            assert sorted(job.ran) == list(range(len(job.slots))), "a chunk is missing, or ran twice"
        pool.drop(job)
        job.memory = False

    def feeds() -> None:
        flying = list[Fake]()
        for job in jobs:
            pool.add(job, first=rng.random() < 0.2)
            flying.append(job)
            if len(flying) == 2:
                waits(flying.pop(0))
        for job in flying:
            waits(job)

    thread = sync.Thread(target=feeds, name="feeds")
    ends = rng.random() < 0.6
    try:
        if rng.random() < 0.3:
            schedule.ctrl_c(within=300)
        thread.start()
        if ends:
            sync.sleep(rng.choice((0.0, 0.02, 1.0)))
            stop.set()
            pool.halt()
        else:
            thread.join()
    except KeyboardInterrupt:
        stop.set()
        pool.halt()
    schedule.no_ctrl_c()
    if rng.random() < 0.5 and thread.is_alive():
        thread.join()
    pool.close()
    if thread.is_alive():
        thread.join()
    hangs = any("hangs" in job.slots for job in jobs)
    assert hangs or not any(each.name.startswith("dali_feed-work") for each in schedule.threads), "a worker is left"


def test_any_schedule() -> None:
    """Each chunk runs once; a job's error is its own; what is halted or closed ends; nobody reads memory given back."""
    explore(works, seeds(500), modules=[workers])
