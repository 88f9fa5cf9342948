"""The threads of an engine, which work on jobs: decoders, what follows images, functions of the user's.

The law: a job's error is its batch's, and never ends a thread. Whoever waits for a job that reads a batch's memory
waits until no thread is inside it any more; a job that has copies of its own is left behind where its pass has ended,
though a function in it hangs: the thread is left with it, and the next job gets another.

One condition guards the queue, the counts of the jobs and who is wanted. What a thread is at, the seconds it has
worked and the images it has made are written by itself alone; any thread may look.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from dali_feed import sync
from dali_feed.errors import ClosedError

_T = TypeVar("_T")

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
        self._ready = sync.Barrier(count + 1)
        self._lock = sync.Lock()  # none sets torch's number after it was put back

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
        except sync.BrokenBarrierError:
            return False
        return True

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


PATIENCE = 2.0  # seconds that `close` waits for a decoder or a function to return


class WorkerThread:
    """A thread of an engine: what it is at, the seconds it has worked, the images it has made, and what is its own."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.slots: Sequence[int] = ()
        self.seconds, self.images = 0.0, 0
        self.wanted = True  # guarded by the condition of its `Workers`
        self.thread: sync.Thread | None = None
        self._own: dict[Callable[[], Any], Any] = {}

    def own(self, make: Callable[[], _T]) -> _T:
        """What `make` makes, once for each thread: its decoder. An error of it is the job's that it was made for."""
        if make not in self._own:
            self._own[make] = make()
        own: _T = self._own[make]
        return own


class Job:
    """Chunks of a batch's slots; whatever worker is free runs the next one.

    chunks   the slots that a worker takes at a time
    stop     is set when the pass of the batch has ended
    dropped  whether nobody wants it any more: then no slot is begun. A plain name, as it is read for every image
    """

    lingers = True  # whether it reads the batch's memory, so that a wait for it goes on until all workers have left it
    halted = "engine: the iteration was ended while its batch was run"  # the ClosedError of who waits for it

    def __init__(self, chunks: Sequence[Sequence[int]], stop: sync.Event | None = None) -> None:
        self._stop = stop
        self.chunks = chunks
        self.begun, self.left = 0, len(chunks)  # chunks; guarded by the workers' condition, as is the error
        self.error: BaseException | None = None
        self.dropped = False

    @property
    def over(self) -> bool:
        """Whether it is dropped, or is to be at the next halt."""
        return self.dropped or (self._stop is not None and self._stop.is_set())

    def run(self, worker: WorkerThread, slots: Sequence[int]) -> None:
        """Work on a chunk; `worker.slots` tell which of them it is at. It ends early where the job is dropped."""
        raise NotImplementedError


class Workers:
    """`count` threads, daemons, begun with the first job: whoever closes them is known by then."""

    def __init__(self, count: int) -> None:
        self.count = count
        lock = sync.RLock()  # the garbage collector may close a loader in one of our threads
        self._more, self._done = sync.Condition(lock), sync.Condition(lock)
        self._jobs: deque[Job] = deque()  # with chunks that no worker has taken
        self._workers: list[WorkerThread] = []
        self._stuck: list[WorkerThread] = []
        self._closed = False

    def add(self, job: Job, *, first: bool = False) -> None:
        """Begin a job, before all others or behind them. Of a pass that has ended nothing is begun."""
        with self._more:
            if self._closed or job.over or not job.chunks:
                self._cancel(job)
                return
            self._begin_threads()
            (self._jobs.appendleft if first else self._jobs.append)(job)
            self._more.notify(len(job.chunks))

    def wait(self, job: Job) -> None:
        """Until all its chunks are done. Raises ClosedError where its pass has ended, and what a chunk raised."""
        with self._done:
            while job.left and (job.lingers or not (job.over or job.error)):
                self._done.wait()
            if job.over:
                raise ClosedError(job.halted)
            if job.error is not None:
                raise job.error

    def drop(self, job: Job) -> None:
        """Begin no chunk of it any more, and wait for those who read the batch's memory."""
        with self._done:
            self._cancel(job)
            while job.left and job.lingers:
                self._done.wait()

    def at(self, job: Job) -> list[int]:
        """The slots of a job that workers are at. For any thread."""
        return sorted(slot for worker in list(self._workers) if worker.job is job for slot in worker.slots)

    def halt(self) -> None:
        """Wake who waits for a job whose pass has ended, and leave behind the workers inside its functions."""
        with self._more:
            for job in [job for job in self._jobs if job.over]:
                self._cancel(job)
            for worker in list(self._workers):
                if (inside := worker.job) is not None and inside.over:
                    inside.dropped = True
                    if not inside.lingers:
                        worker.wanted = False
                        self._stuck.append(worker)  # first: an interrupt between the two leaves it to `close`
                        self._workers.remove(worker)
            self._stuck = [worker for worker in self._stuck if _alive(worker)]
            self._done.notify_all()

    @property
    def inside(self) -> list[sync.Thread]:
        """The threads that are inside a decoder or a function, those that were left with it too. For any thread."""
        every = [*self._stuck, *self._workers]
        return [each.thread for each in every if each.thread is not None and each.job is not None and _alive(each)]

    def worked(self) -> tuple[int, float, int]:
        """The threads, the seconds that they have worked all together, and the images that they have made."""
        workers = list(self._workers)
        return len(workers), sum(each.seconds for each in workers), sum(each.images for each in workers)

    def close(self) -> None:
        """End the threads; one that a decoder keeps ends when that is done, and a function is not waited for."""
        with self._more:
            self._closed = True
            for worker in self._workers:
                worker.wanted = False
                if worker.job is not None:
                    self._cancel(worker.job)
            while self._jobs:
                self._cancel(self._jobs[0])
            every = self._stuck = [*self._stuck, *self._workers]
            self._workers = []
            self._more.notify_all()
            self._done.notify_all()
        ends = sync.monotonic() + PATIENCE
        for worker in every:
            thread, inside = worker.thread, worker.job
            if thread is None or thread is sync.current_thread():
                continue
            thread.join(max(0.0, ends - sync.monotonic()))
            if thread.is_alive() and (inside is None or inside.lingers):
                linger(thread)

    def _begin_threads(self) -> None:
        """As many as are missing. Where Ctrl-C or the system does not let all of them begin, those that have end."""
        missing = self.count - len(self._workers)
        if not missing:
            return
        alone, begun = Alone(missing), [WorkerThread() for _ in range(missing)]
        names = iter(range(len(self._workers), self.count))
        with alone.starting():
            for worker in begun:
                name = f"dali_feed-work-{next(names)}"
                worker.thread = sync.Thread(target=self._run, args=(worker, alone), name=name, daemon=True)
                worker.thread.start()
        self._workers += begun

    def _cancel(self, job: Job) -> None:
        """Take the chunks that nobody has begun out of the queue."""
        job.dropped = True
        self._end(job)

    def _end(self, job: Job) -> None:
        job.left -= len(job.chunks) - job.begun
        job.begun = len(job.chunks)
        with suppress(ValueError):
            self._jobs.remove(job)
        if not job.left:
            self._done.notify_all()

    def _run(self, worker: WorkerThread, alone: Alone) -> None:
        if not alone.enter():
            return
        while (taken := self._next(worker)) is not None:
            (job, slots), error = taken, None
            begun = sync.perf_counter()  # twice a chunk
            try:
                job.run(worker, slots)
            except BaseException as raised:  # noqa: BLE001  an exit too: whoever waits must hear of it
                error = raised
            worker.seconds += sync.perf_counter() - begun
            with self._done:
                worker.job, worker.slots = None, ()
                job.left -= 1
                if error is not None and job.error is None:
                    job.error = error
                    self._end(job)
                if not job.left or error is not None:
                    self._done.notify_all()
            del taken, job, slots, error  # else a waiting thread holds a batch's memory

    def _next(self, worker: WorkerThread) -> tuple[Job, Sequence[int]] | None:
        """The next chunk of the first job, which the worker is at from here on; None where it is not wanted."""
        with self._more:
            while worker.wanted:
                if self._jobs:
                    job = self._jobs[0]
                    slots = job.chunks[job.begun]
                    job.begun += 1
                    if job.begun == len(job.chunks):
                        self._jobs.popleft()
                    worker.job = job
                    return job, slots
                self._more.wait()
        return None


def _alive(worker: WorkerThread) -> bool:
    return worker.thread is not None and worker.thread.is_alive()


# Threads that should end but are inside a decoder, or a read: the interpreter waits for them before it ends.
#
# Native code cannot be stopped from outside, and a thread that is still in it when a library shuts down crashes
# the process. So the end of the interpreter waits, but not for ever: an image may be made to take hours. The process
# then ends with its own status, and before the libraries shut down. Ctrl-C meanwhile ends it at once.


TELL = 5.0  # seconds after which a message says what the end waits for
LAST = 15.0  # and after which it waits no longer

log = logging.getLogger("dali_feed")
_threads: weakref.WeakSet[sync.Thread] = weakref.WeakSet()


def linger(thread: sync.Thread) -> None:
    """Let the end of the interpreter wait for a thread that ends by itself, as soon as its native call returns."""
    _threads.add(thread)
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)  # registered again: what comes last runs first, before the libraries' own hooks


def wait() -> None:
    """Wait for all of them, LAST seconds at most."""
    ends = sync.monotonic() + LAST
    for thread in list(_threads):
        while thread.is_alive() and (left := ends - sync.monotonic()) > 0:
            thread.join(min(TELL, left))
            if thread.is_alive():
                log.warning(
                    "the process waits for a decoder or a read to finish (%s), %.0f s at most; Ctrl-C ends it at once",
                    *(thread.name, LAST),
                )
    stuck = sorted(thread.name for thread in _threads if thread.is_alive())
    if stuck:
        log.warning("the process ends without waiting any longer for %s", ", ".join(stuck))
        _end_before_libraries()


def _end_before_libraries() -> None:
    """Behind all that Python does at its end the process is over: no library shuts down under the threads in it."""
    libc = ctypes.CDLL(None)
    with suppress(OSError):  # where there is no C++ there is none that a thread could come back to
        # A thread that comes back while Python ends is ended by it (before 3.14) inside a C++ call, which aborts.
        ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE(libc.pause)
    libc.fflush(None)
    libc.on_exit(libc._exit, None)  # called with the status, before what was registered earlier


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
