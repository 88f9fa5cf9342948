"""Threads that run functions of the user's, of which nobody knows whether they return.

The law: whoever waits for a job goes on when the crew is halted, though a function hangs: its thread is left behind,
and the next job gets others.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dali_feed.errors import ClosedError

__all__ = ["Alone", "Crew", "Job", "abandon", "linger", "wait"]


# Threads of ours in which torch's operations run on one thread each.
#
# By default each of our threads would have as many threads of torch's as there are CPUs, and those wait in a loop: on
# two cores small operations then take twice the CPU time, and on a hundred they stand in each other's way.


class Alone:
    """To start `count` threads: each calls `enter` first, and whoever starts them does so within `starting`.

    Torch keeps one number for threads that begin later, which a thread of ours cannot set for itself alone. So
    all have set it before it is put back. Where torch has not been imported nothing is done. Where not all could be
    started, as when Ctrl-C came, those that were are told to end.
    """

    def __init__(self, count: int) -> None:
        loaded = sys.modules.get("torch")
        self._torch: Any = loaded if hasattr(loaded, "set_num_threads") else None
        self._before = 0 if self._torch is None else self._torch.get_num_threads()
        self._ready = threading.Barrier(count + 1)
        self._lock = threading.Lock()  # none sets torch's number after it was put back

    def enter(self) -> bool:
        """In a thread of ours, once. False: it is not wanted, and ends without another step."""
        with self._lock:
            if self._ready.broken:
                return False
            if self._torch is not None:
                self._torch.get_num_threads()  # makes torch set this thread's number now, and not over ours later
                self._torch.set_num_threads(1)
        try:
            self._ready.wait()
        except threading.BrokenBarrierError:
            return False
        return True

    def around(self, run: Callable[..., object]) -> Callable[..., None]:
        """`run`, with `enter` before it."""

        def entered(*arguments: object) -> None:
            if self.enter():
                run(*arguments)

        return entered

    @contextmanager
    def starting(self) -> Iterator[None]:
        """They are started in here; behind it all have begun, and torch's number for other threads is what it was."""
        try:
            yield
            self._ready.wait()
        except BaseException:
            with self._lock:
                self._ready.abort()
                self._put_back()
            raise
        self._put_back()

    def _put_back(self) -> None:
        if self._torch is not None:
            self._torch.set_num_threads(self._before)


CHUNK = 8  # slots that a thread takes at a time: few enough to share a batch out evenly
PATIENCE = 2.0  # seconds that `close` waits for functions to return


class Job:
    """Slots, for each of which `run` is called once by some thread; an `error` of one ends the job."""

    def __init__(self, slots: Sequence[int]) -> None:
        self.slots = slots
        self.begun = 0  # slots that threads have taken
        self.left = len(slots)
        self.error: BaseException | None = None

    def run(self, slot: int) -> None:
        """Work on a slot."""
        raise NotImplementedError


class Crew:
    """`count` threads, daemons, that work on jobs. Made at the first job, and again at the first one after a halt."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        lock = threading.RLock()  # the garbage collector may close a loader in one of our threads
        self._more, self._done = threading.Condition(lock), threading.Condition(lock)
        self._jobs: deque[Job] = deque()  # with slots that no thread has taken
        self._threads: list[threading.Thread] = []
        self._left_behind: list[threading.Thread] = []
        self._shift: object | None = None  # whose threads go on
        self._halted = False
        self._at: dict[int, tuple[Job, int]] = {}  # thread -> what it is at

    def add(self, job: Job, *, first: bool = False) -> None:
        """Begin a job, before all others or behind them. Halted, nothing is begun."""
        with self._more:
            if self._halted or not job.slots:
                return
            if self._shift is None:
                self._shift, alone = object(), Alone(self._count)
                self._threads = [
                    threading.Thread(
                        target=alone.around(self._work), args=(self._shift,), name=f"{self._name}-{n}", daemon=True
                    )
                    for n in range(self._count)
                ]
                try:
                    with alone.starting():
                        for thread in self._threads:
                            thread.start()
                except BaseException:
                    self._shift = None
                    raise
            (self._jobs.appendleft if first else self._jobs.append)(job)
            self._more.notify_all()

    def wait(self, job: Job) -> None:
        """Until all its slots are done. Raises what a function raised, and ClosedError where the crew is halted."""
        with self._done:
            self._done.wait_for(lambda: self._halted or job.error is not None or not job.left)
            if job.error is not None:
                raise job.error
            if self._halted:
                msg = "engine: the iteration was ended while functions worked on its batch"
                raise ClosedError(msg)

    def at(self, job: Job | None) -> list[int]:
        """The slots of a job that threads are at. For any thread."""
        return [slot for other, slot in list(self._at.values()) if other is job]

    def halt(self) -> None:
        """Begin no slot any more; waits end. For any thread."""
        with self._more:
            self._halted, self._shift = True, None
            self._jobs.clear()
            self._left_behind = [thread for thread in (*self._left_behind, *self._threads) if thread.is_alive()]
            self._threads = []
            self._more.notify_all()
            self._done.notify_all()

    def resume(self) -> None:
        """Be ready again."""
        with self._more:
            self._halted = False

    def close(self) -> None:
        """End the threads; one that is inside a function ends when that returns, and is not waited for."""
        self.halt()
        ends = time.monotonic() + PATIENCE
        for thread in self._left_behind:
            if thread is not threading.current_thread():
                thread.join(max(0.0, ends - time.monotonic()))

    def _work(self, shift: object) -> None:
        me = threading.get_ident()
        while (taken := self._taken(shift)) is not None:
            job, slots = taken
            done = 0
            try:
                for slot in slots:
                    if self._shift is not shift or job.error is not None:
                        break
                    self._at[me] = job, slot
                    job.run(slot)
                    done += 1
            except BaseException as error:  # noqa: BLE001  an exit too: whoever waits must hear of it
                job.error = error
            self._at.pop(me, None)
            with self._done:
                job.left -= done
                if not job.left or job.error is not None:
                    self._done.notify_all()
            del taken, job  # else a waiting thread holds a batch's memory

    def _taken(self, shift: object) -> tuple[Job, Sequence[int]] | None:
        """The next slots of the first job; None where the thread's shift is over."""
        with self._more:
            while self._shift is shift:
                if self._jobs:
                    job = self._jobs[0]
                    each = max(1, min(CHUNK, len(job.slots) // (4 * self._count)))
                    slots = job.slots[job.begun : job.begun + each]
                    job.begun += each
                    if job.begun >= len(job.slots):
                        self._jobs.popleft()
                    return job, slots
                self._more.wait()
        return None


# Threads that should end but are inside a decoder, or a read: the interpreter does not end before they do.
#
# Native code cannot be stopped from outside, and a thread that is still in it when a library shuts down crashes
# the process. So the end of the interpreter waits, as it does for any thread that is no daemon. Ctrl-C
# meanwhile ends the process at once, without shutting anything down.


TELL = 5.0  # seconds after which a message says what the end waits for

log = logging.getLogger("dali_feed")
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def linger(thread: threading.Thread) -> None:
    """Let the end of the interpreter wait for a thread that ends by itself, as soon as its native call returns."""
    _threads.add(thread)
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)  # registered again: what comes last runs first, before the libraries' own hooks


def wait() -> None:
    """Wait for all of them."""
    for thread in list(_threads):
        while thread.is_alive():
            thread.join(TELL)
            if thread.is_alive():
                log.warning(
                    "the process waits for a decoder or a read to finish (%s); Ctrl-C ends it at once", thread.name
                )


def abandon() -> None:
    """End the process now, after writing out what it has printed."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(130)


def _at_exit() -> None:
    try:
        wait()
    except KeyboardInterrupt:
        abandon()
