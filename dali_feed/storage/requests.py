"""Many requests at once to one file system of fsspec, each with its tries and its limit of time.

The law: whoever waits can be told to stop, and then waits no longer than a moment, whatever a server does; a request
that was given up writes nowhere, since the thread that asked copies what came.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from dali_feed.errors import ClosedError
from dali_feed.records.storage_stats import StorageMeter
from dali_feed.storage.faults import Patience, told, wait_before
from dali_feed.storage.signed import MASK

__all__ = ["Requests"]

MOMENT = 0.1  # seconds between looks at a stop event
_Call = Callable[[], Any]  # gives a coroutine where the file system is asynchronous


class Requests:
    """Makes requests to one file system, `concurrency` at once for all threads together."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None, concurrency: int, patience: Patience) -> None:
        self._loop, self._patience = loop, patience
        self._free = threading.BoundedSemaphore(concurrency)
        self.retries = 0

    def all(
        self,
        calls: Sequence[tuple[str, _Call]],
        stop: threading.Event | None,
        done: Callable[[int, Any], object],
        meter: StorageMeter | None = None,
    ) -> None:
        """Make all requests; `done(k, answer)` is called by this thread as answers come, in any order.

        Args:
            calls: the path that each is about, and what is to be called.
            stop: ends it early.
            done: may raise what the answer deserves: it is judged as the request's own error.
            meter: counts them, each from its first try on; the answers are ranges then, lists of pieces.

        Raises:
            ClosedError: `stop` was set.
            SourceError: a request failed for good; the others are given up.
        """
        waiting = [(0.0, k, 1) for k in range(len(calls))]  # when, which, and the number of the try
        under_way: dict[Future[Any], tuple[int, int, float]] = {}
        left = len(calls)
        meter = StorageMeter("") if meter is None else meter  # nobody asks for its figures
        first = [0.0] * left
        meter.queued += left
        try:
            while left:
                if stop is not None and stop.is_set():
                    msg = "ShardSet: the read was stopped"
                    raise ClosedError(msg)
                self._begin(calls, waiting, under_way)
                ended = wait(under_way, self._moment(waiting, bool(under_way)), FIRST_COMPLETED)[0]
                late = time.monotonic() - self._patience.limit - 1
                stuck = [future for future, (_, _, since) in under_way.items() if since < late and future not in ended]
                for future in (*ended, *stuck):
                    k, tried, since = under_way.pop(future)
                    first[k] = since if tried == 1 else first[k]
                    try:
                        answer = self._answer(future)
                        done(k, answer)
                        left -= 1
                        meter.queued -= 1
                        size = sum(map(len, answer)) if isinstance(answer, list) else 0
                        meter.read(time.monotonic() - first[k], size)
                    except Exception as error:
                        pause = wait_before(error, tried, self._patience)
                        if pause is None:
                            meter.failures += 1
                            meter.read(time.monotonic() - first[k], 0)
                            if MASK in calls[k][0]:  # the error holds the address as it was asked
                                raise told(calls[k][0], error, tried) from None
                            raise told(calls[k][0], error, tried) from error
                        self.retries += 1
                        meter.retries += 1
                        heapq.heappush(waiting, (time.monotonic() + pause, k, tried + 1))
        finally:
            meter.queued -= left
            for future in under_way:
                future.cancel()

    def one(self, path: str, call: _Call, stop: threading.Event | None) -> Any:
        """The answer to one request. Raises as `all`."""
        answers: list[Any] = []
        self.all([(path, call)], stop, lambda _, answer: answers.append(answer))
        return answers[0]

    def _answer(self, future: Future[Any]) -> Any:
        if not future.done():
            future.cancel()
            raise TimeoutError(f"no answer within {self._patience.limit:g} s")  # noqa: EM102
        return future.result()

    def _begin(
        self,
        calls: Sequence[tuple[str, _Call]],
        waiting: list[tuple[float, int, int]],
        under_way: dict[Future[Any], tuple[int, int, float]],
    ) -> None:
        """Begin what is due, as long as there is room."""
        while waiting and waiting[0][0] <= time.monotonic():
            if not self._free.acquire(timeout=0 if under_way else MOMENT):
                return
            _, k, tried = heapq.heappop(waiting)
            future = self._started(calls[k][1])
            future.add_done_callback(lambda _: self._free.release())
            under_way[future] = k, tried, time.monotonic()

    def _moment(self, waiting: list[tuple[float, int, int]], busy: bool) -> float:
        due = max(0.001, waiting[0][0] - time.monotonic()) if waiting else MOMENT
        if not busy:
            time.sleep(min(due, MOMENT))  # until the next try is due; nothing else can happen
            return 0
        return min(due, MOMENT)

    def _started(self, call: _Call) -> Future[Any]:
        if self._loop is not None:
            return asyncio.run_coroutine_threadsafe(_limited(call(), self._patience.limit), self._loop)
        future: Future[Any] = Future()
        threading.Thread(target=_answered, args=(future, call), name="dali_feed-remote", daemon=True).start()
        return future


async def _limited(answer: Coroutine[Any, Any, Any], limit: float) -> Any:
    try:
        return await asyncio.wait_for(answer, limit)
    except TimeoutError as error:
        msg = f"no answer within {limit:g} s"
        raise TimeoutError(msg) from error


def _answered(future: Future[Any], call: _Call) -> None:
    """A thread of its own, which may hang as long as its file system does without holding up the end of the process."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001  whatever it is, the thread that waits must hear of it
        future.set_exception(error)
