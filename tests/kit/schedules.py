"""Threads that a seed schedules: one runs at a time, on a clock of its own, and a failure comes again by its seed.

    def scenario(schedule: Schedule) -> None: ...      # the training loop's thread; it may begin others by `sync`

    explore(scenario, range(2000), modules=[channel, workers])

While a schedule runs, `dali_feed.sync` gives what is in this file: locks, conditions, queues, futures, threads and a
clock. Each task is a real thread, but it runs only while it has the turn, and gives that up at a step. Steps are the
calls into this file and, in `modules`, every statement and every return of a call, so that a switch may come between
any two. The clock moves when nobody can run. Where nobody can, and no wait has an end, that is a StuckError at once;
and a run is over only when every task has ended.

Ctrl-C comes out of `scenario`'s thread alone, as a signal does: where CPython looks for one (a function begins, a loop
turns, a call returns), or in a wait.
"""

from __future__ import annotations

import concurrent.futures
import gc
import logging
import math
import os
import random
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import Empty
from typing import Any, ClassVar, Self, TypeVar, cast

from kit import steps

from dali_feed import sync

__all__ = ["Schedule", "StuckError", "explore", "patched", "replaced", "replayed", "seeds"]

T = TypeVar("T")

SEED = "SEED"  # of the environment: the only schedule that is run
LAST = 40  # switches that a failure shows
_OUR_FILES = frozenset({__file__, steps.__file__, "<string>"})
MOST_STEPS = 200_000  # of a schedule, above which it never ends


class StuckError(AssertionError):
    """Somebody waits for ever, or runs for ever."""


class Carrier:
    """A real thread that runs tasks, one after another; kept for later schedules, as beginning one costs more."""

    idle: ClassVar[list[Carrier]] = []

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.call: Callable[[], None] = lambda: None
        threading.Thread(target=self._run, name="carrier", daemon=True).start()

    @classmethod
    def free(cls) -> Carrier:
        """One that runs nothing."""
        return cls.idle.pop() if cls.idle else Carrier()

    def _run(self) -> None:
        while True:
            self.gate.acquire()
            self.call()


class Thread:
    """What `sync.Thread` is meanwhile: a task."""

    def __init__(
        self,
        target: Callable[..., object] | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        daemon: bool | None = None,
    ) -> None:
        self._schedule = Schedule.running()
        self._call = target, args, kwargs or {}
        self.name, self.daemon = name or "thread", bool(daemon)
        self.began = self.done = False
        self.number = 0
        self.why, self.ready, self.deadline = "", _always, math.inf  # of its wait
        self.waits = self.masked = self.interrupted = False
        self.weight = 1.0
        self.frame: types.FrameType | None = None  # where it gave up its turn
        self.carrier: Carrier

    def start(self) -> None:
        """Let it run from here on."""
        schedule = self._schedule
        schedule.step()
        schedule.begin(self)
        schedule.step(1)

    def run(self) -> None:
        """What it does."""
        target, args, kwargs = self._call
        if target is not None:
            target(*args, **kwargs)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if not self.began:
            msg = "cannot join thread before it is started"
            raise RuntimeError(msg)
        self._schedule.wait(f"{self.name} ends", lambda: self.done, timeout)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.began and not self.done and not self._schedule.over

    @property
    def ident(self) -> int:
        """Its number."""
        return self.number

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _always() -> bool:
    return True


def _never() -> bool:
    return False


class Schedule:
    """One order of steps, which `seed` decides; see this file.

    rng  for whatever else the scenario draws: faults, sizes, what the loop does
    now  virtual seconds
    """

    current: Schedule | None = None

    def __init__(self, seed: int) -> None:
        self.seed, self.rng, self._rng = seed, random.Random(seed), random.Random(f"{seed} order")
        self.now, self.steps, self.over = 0.0, 0, False
        self.threads: list[Thread] = []
        self._log: deque[tuple[float, str, str, int, str]] = deque(maxlen=LAST)
        self._error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()
        self._gap = self._rng.choice((4, 20, 100, 500))  # steps between two switches, on the average
        self._left = 1
        self._points = 0  # where Ctrl-C could have come
        self._ctrl_c: list[int] = []
        self._garbage: list[object] = []
        self._begun = 0

    @classmethod
    def running(cls) -> Schedule:
        """The one that runs now."""
        assert cls.current is not None, "outside a schedule"
        return cls.current

    # The scenario's.

    def run(self, scenario: Callable[[Schedule], None]) -> None:
        """Run it to the end of all its threads; raises what any of them raised, and StuckError."""
        Schedule.current, hook = self, sys.unraisablehook
        sys.unraisablehook = self._unraisable
        self.main = Thread(lambda: scenario(self), name="loop")
        try:
            self.begin(self.main)
            self.turn = self.main
            self.main.carrier.gate.release()
            self._ended.acquire()
        finally:
            self.over = True
            Schedule.current, sys.unraisablehook = None, hook
        if self._error is not None:
            raise self._error

    def ctrl_c(self, times: int = 1, within: int = 3000) -> None:
        """Let Ctrl-C come so often: at steps of the loop's thread that the seed decides, or in its waits."""
        self._ctrl_c += sorted(self._points + round(within ** self._rng.random()) for _ in range(times))

    def no_ctrl_c(self) -> None:
        """None comes from here on."""
        self._ctrl_c = []

    def garbage(self, left: object) -> None:
        """Whoever runs at some later step lets go of it, or calls it: as the collector, with any lock."""
        self._garbage.append(left)

    def sleep(self, seconds: float) -> None:
        """So much virtual time passes for this thread."""
        self.wait("sleeps", _never, seconds)

    def dawdle(self, most: int) -> None:
        """Up to so many steps: unlike after a sleep, others may be in the midst of anything then."""
        for _ in range(self.rng.randrange(most)):
            self.step()

    def rest(self) -> None:
        """Wait until all other threads have ended; what nobody has let go of yet goes here, within the schedule."""
        while self._garbage:
            self._let_go()
        self.wait("all others end", lambda: len(self.threads) == 1)

    # What the primitives and the steps of the product call.

    def step(self, count: int = 1) -> None:
        """Another thread may run here."""
        if self.over:  # a finalizer of what it has left
            return
        self._left -= count
        if self._left <= 0:
            self._next_gap()
            self._switch()
            self._collect()

    def point(self) -> None:
        """Another thread may run here, and Ctrl-C come."""
        if self.turn is self.main:
            self._points += 1
            if self._ctrl_c and self._points >= self._ctrl_c[0]:
                self._ctrl_c.pop(0)
                self._note("Ctrl-C")
                raise KeyboardInterrupt
        self.step()

    def wait(self, why: str, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Until `ready()`, or so many seconds; whether it was. `ready` is called while others have the turn."""
        self._collect()
        me = self.turn
        self._left -= 1
        if self._left > 0 and ready():
            return True
        if self._left <= 0:
            self._next_gap()
        me.why, me.ready, me.waits = why, ready, True
        me.deadline = math.inf if seconds is None else self.now + max(0.0, seconds)
        try:
            self._switch()
            return ready()
        finally:
            me.ready, me.waits, me.deadline, me.why = _always, False, math.inf, ""

    def begin(self, thread: Thread) -> None:
        """A thread more, that runs when it is its turn."""
        if thread.began:
            msg = "threads can only be started once"
            raise RuntimeError(msg)
        self._begun += 1
        thread.began, thread.number, thread.weight = True, self._begun, self._some_weight()
        thread.carrier = Carrier.free()
        thread.carrier.call = lambda: self._run(thread)
        self.threads.append(thread)

    # Inside.

    def _unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """An error in a finalizer is the schedule's, but for Ctrl-C and what that leaves of a constructor."""
        if self._error is None and not isinstance(what.exc_value, KeyboardInterrupt | AttributeError):
            self._error = what.exc_value

    def _some_weight(self) -> float:
        return self._rng.choice((0.05, 1.0, 1.0, 4.0, 20.0))

    def _collect(self) -> None:
        if self._garbage and self._rng.random() < 0.1:
            self._let_go()

    def _let_go(self) -> None:
        left = self._garbage.pop()
        if callable(left):  # a finalizer
            left()

    def _next_gap(self) -> None:
        self._left = 1 + int(self._rng.expovariate(1 / self._gap))
        self.steps += self._left
        if self.steps > MOST_STEPS:
            self._fail(StuckError(f"still runs after {self.steps} steps, {self._waiting()}"))

    def _run(self, thread: Thread) -> None:
        try:
            thread.run()
        except BaseException as error:  # noqa: BLE001  whoever runs the schedule hears of it
            if self._error is None:
                error.add_note(f"in {thread.name}")
                self._error = error
        thread.done = True
        self.threads.remove(thread)
        then = self._chosen() if self._error is None and self.threads else None
        if then is None and self._error is None and self.threads:
            self._error = StuckError(self._waiting())
        Carrier.idle.append(thread.carrier)
        if then is None:
            self._ended.release()
        else:
            self.turn = then
            then.carrier.gate.release()

    def _switch(self) -> None:
        me = self.turn
        me.frame = sys._getframe(1)
        then = self._chosen()
        if then is None:
            self._fail(StuckError(self._waiting()))
            return
        if then is not me:
            self.turn = then
            then.carrier.gate.release()
            me.carrier.gate.acquire()
        me.frame = None  # which would keep alive what its variables are
        self._note(f"for {me.why}" if me.why else "")
        if me.interrupted:
            me.interrupted = False
            self._note("Ctrl-C")
            raise KeyboardInterrupt

    def _chosen(self) -> Thread | None:
        """Who runs next; None where nobody can."""
        can = [thread for thread in self.threads if not thread.waits or thread.ready()]
        main = self.main
        if self._ctrl_c and main.waits and not main.masked and not main.done and self._rng.random() < 0.03:
            self._ctrl_c.pop(0)
            main.interrupted = True
            return main
        if not can:
            ends = min(thread.deadline for thread in self.threads)
            if ends == math.inf:
                return None
            self.now = max(self.now, ends)
            can = [thread for thread in self.threads if thread.deadline <= self.now]
        if len(can) == 1:
            return can[0]
        if self._rng.random() < 0.02:
            self._rng.choice(can).weight = self._some_weight()
        return self._rng.choices(can, [thread.weight for thread in can])[0]

    def _note(self, what: str) -> None:
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename in _OUR_FILES:
            frame = frame.f_back
        where = ("?", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        self._log.append((self.now, self.turn.name, *where, what))

    @property
    def log(self) -> list[str]:
        """The last switches: when, to whom, where that one stood, and what it had waited for."""
        return [f"{now:9.3f} {name} at {Path(file).name}:{line} {what}" for now, name, file, line, what in self._log]

    def _waiting(self) -> str:
        waits = [(each.name, each.why or "its turn", " < ".join(_lines(each.frame))) for each in self.threads]
        return "; ".join(f"{name} waits for {why} at {where}" for name, why, where in waits)

    def _fail(self, error: BaseException) -> None:
        """End the run as it stands: whoever calls this, and all others, never run again."""
        self._error = self._error or error
        self._ended.release()
        self.turn.carrier.gate.acquire()


def _lines(frame: types.FrameType | None) -> Iterator[str]:
    """The lines of the product, and of a scenario, that a thread stands in, the innermost first."""
    while frame is not None:
        if frame.f_code.co_filename not in _OUR_FILES:
            yield f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back


# What `dali_feed.sync` gives meanwhile.


class Lock:
    """A lock, which knows who has it."""

    again = False

    def __init__(self) -> None:
        self._schedule = Schedule.running()
        self.owner: Thread | None = None
        self.depth = 0

    def _free(self) -> bool:
        return self.owner is None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As threading's."""
        schedule = self._schedule
        schedule.step()
        me = schedule.turn
        if self.again and self.owner is me:
            self.depth += 1
            return True
        if self.owner is not None:
            if not blocking:
                return False
            whose = self.owner
            if not schedule.wait(f"a lock of {whose.name}", self._free, None if timeout < 0 else timeout):
                return False
        self.owner, self.depth = me, 1
        return True

    def release(self) -> None:
        """As threading's."""
        if self.owner is None or (self.again and self.owner is not self._schedule.turn):
            msg = "release unlocked lock"
            raise RuntimeError(msg)
        self.depth -= 1
        if not self.depth:
            self.owner = None

    def locked(self) -> bool:
        """Whether anybody has it."""
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
        self._schedule.step()


class RLock(Lock):
    """A lock that its owner may take again."""

    again = True


class Condition:
    """As threading's; of several with one lock each wakes its own."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._schedule = Schedule.running()
        self.lock = RLock() if lock is None else lock
        self.acquire, self.release = self.lock.acquire, self.lock.release
        self._waiters: dict[int, list[bool]] = {}  # by their numbers

    def __enter__(self) -> bool:
        return self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        self._schedule.step()

    def wait(self, timeout: float | None = None) -> bool:
        """Until notified."""
        schedule, lock = self._schedule, self.lock
        me = schedule.turn
        if lock.owner is not me:
            msg = "cannot wait on un-acquired lock"
            raise RuntimeError(msg)
        told = self._waiters[me.number] = [False]
        depth, lock.owner, lock.depth = lock.depth, None, 0
        try:
            return schedule.wait("a condition", lambda: told[0], timeout)
        finally:
            self._waiters.pop(me.number, None)
            masked, me.masked = me.masked, True  # Ctrl-C in here would leave the lock to nobody, in CPython too
            while lock.owner is not None:
                schedule.wait(f"a lock of {lock.owner.name}", lock._free)
            me.masked = masked
            lock.owner, lock.depth = me, depth

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Until the predicate holds."""
        schedule = self._schedule
        ends = None if timeout is None else schedule.now + timeout
        while not (result := predicate()):
            left = None if ends is None else ends - schedule.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        """Wake so many that wait."""
        if self.lock.owner is not self._schedule.turn:
            msg = "cannot notify on un-acquired lock"
            raise RuntimeError(msg)
        for waiter in list(self._waiters)[:n]:
            self._waiters.pop(waiter)[0] = True

    def notify_all(self) -> None:
        """Wake all."""
        self.notify(len(self._waiters))


class Event:
    """As threading's."""

    def __init__(self) -> None:
        self._schedule, self._set = Schedule.running(), False

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it."""
        self._schedule.step()
        self._set = True

    def clear(self) -> None:
        """Unset it."""
        self._schedule.step()
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is set."""
        return self._schedule.wait("an event", self.is_set, timeout)


class SimpleQueue:
    """As the queue module's; `put` is one step."""

    def __init__(self) -> None:
        self._schedule = Schedule.running()
        self._items: deque[Any] = deque()

    def __class_getitem__(cls, item: object) -> type[Self]:
        return cls

    def put(self, item: Any) -> None:
        """Add it."""
        self._schedule.step()
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the first."""
        if block:
            self._schedule.wait("an item of a queue", lambda: bool(self._items), timeout)
        else:
            self._schedule.step()
        if not self._items:
            raise Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        """Take the first, where there is one."""
        return self.get(block=False)

    def qsize(self) -> int:
        """How many there are."""
        return len(self._items)

    def empty(self) -> bool:
        """Whether there are none."""
        return not self._items


class Barrier:
    """As threading's, for one meeting."""

    def __init__(self, parties: int) -> None:
        self._schedule, self._parties, self._there, self.broken = Schedule.running(), parties, 0, False

    def wait(self) -> None:
        """Until all are here."""
        schedule = self._schedule
        schedule.step()
        if self.broken:
            raise threading.BrokenBarrierError
        self._there += 1
        try:
            schedule.wait("a barrier", lambda: self.broken or self._there >= self._parties)
        except BaseException:
            self.broken = True
            raise
        if self.broken:
            raise threading.BrokenBarrierError

    def abort(self) -> None:
        """Let nobody wait here any more."""
        self._schedule.step()
        self.broken = True


class Future(concurrent.futures.Future[T]):
    """As concurrent.futures', on a condition of ours."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = cast("Any", Condition())


def _monotonic() -> float:
    if (schedule := Schedule.current) is None:  # the collector's callbacks, between two schedules
        return 0.0
    schedule.now += 1e-6  # so that a loop that looks at the clock comes to its end
    return schedule.now


_OURS: dict[str, Any] = {
    "Barrier": Barrier,
    "Condition": Condition,
    "Event": Event,
    "Future": Future,
    "Lock": Lock,
    "RLock": RLock,
    "SimpleQueue": SimpleQueue,
    "Thread": Thread,
    "current_thread": lambda: Schedule.running().turn,
    "get_ident": lambda: Schedule.running().turn.number,
    "monotonic": _monotonic,
    "perf_counter": _monotonic,
    "sleep": lambda seconds: Schedule.running().sleep(seconds),
}


@contextmanager
def patched(*parts: tuple[Any, str, Any]) -> Iterator[None]:
    """Within, each of these owners has another value of that name."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in parts]
    for owner, name, value in parts:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def replaced() -> AbstractContextManager[None]:
    """Within, `dali_feed.sync` gives what a schedule runs."""
    return patched(*((sync, name, ours) for name, ours in _OURS.items()))


# For tests.


def step() -> None:
    """A step of the schedule that runs, if one does."""
    if (schedule := Schedule.current) is not None:
        schedule.step()


def point() -> None:
    """A step at which Ctrl-C may come."""
    if (schedule := Schedule.current) is not None:
        schedule.point()


def seeds(count: int, first: int = 0) -> Iterable[int]:
    """The seeds of so many schedules; of one alone, where the environment says SEED=n."""
    return [int(os.environ[SEED])] if SEED in os.environ else range(first, first + count)


def replayed(scenario: Callable[[Schedule], None], seed: int) -> Schedule:
    """Run one schedule; the error of one that fails says how to have it again."""
    schedule = Schedule(seed)
    try:
        schedule.run(scenario)
    except BaseException as caught:  # noqa: BLE001  whatever it is, it is told with its seed
        error = AssertionError("Ctrl-C came out of the loop") if isinstance(caught, KeyboardInterrupt) else caught
        error.add_note(f"schedule {seed}: {SEED}={seed} runs it again; its last switches:")
        for line in schedule.log:
            error.add_note(line)
        raise error from error.__cause__
    return schedule


def explore(
    scenario: Callable[[Schedule], None], which: Iterable[int], *, modules: Iterable[types.ModuleType] = ()
) -> int:
    """Run a scenario by each of these seeds; the first that fails raises. How many ran.

    The garbage collector runs between schedules alone: what it does in the middle of one no seed would bring again.
    """
    count, collects, level = 0, gc.isenabled(), logging.root.manager.disable
    gc.collect()  # a loader that an earlier test has left: its end asks for threads, of which there are none out here
    gc.disable()
    logging.disable()  # thousands of lines that nobody reads
    try:
        with replaced(), steps.stepping(step, point, modules, scenario):
            for seed in which:
                replayed(scenario, seed)
                count += 1
                if count % 50 == 0:
                    gc.collect()
    finally:
        logging.disable(level)
        if collects:
            gc.enable()
    return count
