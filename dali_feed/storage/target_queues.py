"""Threads that read: a queue and some threads for each target, shared by all readers of a process.

The law: memory is written to while someone waits for it, and never after: a read that the kernel has taken is waited
for, as if the waiting thread had made it. A read that has not begun is dropped by `stop`, so a target that hangs holds
up those who read from it, and nobody else.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence

__all__ = ["DEPTH", "Batch", "TargetQueue", "acquire", "release"]

DEPTH = 4  # reads at once that a target gets; chosen, not tuned
_TICK = 0.05
_Job = Callable[[], None]


class Batch:
    """Reads that one thread waits for together."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = 0  # bytes that are asked for and have not come
        self._running = 0
        self.cancelled = False

    def put(self, queue: TargetQueue, size: int, job: _Job) -> None:
        """Have a job of so many bytes done. It is dropped where the batch is given up first."""

        def run() -> None:
            with self._changed:
                if self.cancelled:
                    return
                self._running += 1
            try:
                job()
            finally:
                with self._changed:
                    self._running -= 1
                    self._waiting -= size
                    self._changed.notify_all()

        with self._changed:
            self._waiting += size
        queue.put(run)

    def wait(self, stop: threading.Event, most: int = 0) -> bool:
        """Wait until at most so many bytes have not come; False: `stop` was set before, and all that can is given up.

        A read that is under way is waited for even then, however long it takes: it writes into memory that others get
        after this. Who must not wait for a dead mount does not wait for the thread that is in here (`ReadPool.close`).
        """
        with self._changed:
            try:
                while self._waiting > most and not stop.is_set():
                    self._changed.wait(_TICK)  # nobody tells of `stop`
                if self._waiting <= most:
                    return True
            except BaseException:  # Ctrl-C: the memory is given back as well
                self._give_up()
                raise
            self._give_up()
            return False

    def _give_up(self) -> None:
        self.cancelled = True
        self._changed.wait_for(lambda: not self._running)


class TargetQueue:
    """Jobs of one target, done by up to DEPTH threads in the order in which they came."""

    def __init__(self, target: str, depth: int = DEPTH) -> None:
        self.target, self.users = target, 0
        self._depth, self._threads, self._idle = depth, 0, 0
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, job: _Job) -> None:
        """Have it done."""
        with self._changed:
            self._jobs.append(job)
            if self._idle >= len(self._jobs) or self._threads >= self._depth:
                self._changed.notify()
                return
            self._threads += 1
        # A daemon: one that hangs in a read of a dead mount must not keep the interpreter from ending.
        thread = threading.Thread(target=self._run, name=f"dali-feed-target-{self.target[-40:]}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads: those there are do it
            with self._changed:
                self._threads -= 1
                if not self._threads:
                    self._jobs.remove(job)
                    raise

    def close(self) -> None:
        """Let the threads end when all jobs are done; none is waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._jobs and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._jobs:
                    self._threads -= 1
                    return
                job = self._jobs.popleft()
            job()
            del job  # and the views that it holds, while nothing is to be done


_lock = threading.Lock()
_queues: dict[str, TargetQueue] = {}


def acquire(targets: Sequence[str]) -> list[TargetQueue]:
    """The queues of targets, which live until as many have let them go."""
    with _lock:
        found = [_queues.setdefault(target, TargetQueue(target)) for target in targets]
        for queue in found:
            queue.users += 1
        return found


def release(queues: Sequence[TargetQueue]) -> None:
    """Let queues go; the last user's threads end."""
    with _lock:
        for queue in queues:
            queue.users -= 1
            if not queue.users:
                if _queues.get(queue.target) is queue:
                    del _queues[queue.target]
                queue.close()


def _forget() -> None:
    """In a forked child: it has none of these threads, and perhaps a lock that one of them held."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _queues.clear()


os.register_at_fork(after_in_child=_forget)
