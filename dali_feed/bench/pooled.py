"""Batches of rows worked on by a pool of threads, a task each, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.bench.contract import Steps
from dali_feed.bench.turns import Make

__all__ = ["pooled"]

Task = Callable[[Any, NDArray[np.int64], int], Sized]


class _Pooled(Steps):
    def __init__(self, task: Task, begin: Callable[[], Any], count: int, batch: int, threads: int) -> None:
        self._task, self._begin, self._count, self._batch = task, begin, count, batch
        self._rng, self._number, self._local = np.random.default_rng(0), 0, threading.local()
        self._pool = ThreadPoolExecutor(threads, "bench-pool", self._start)
        self._flying: deque[Future[Sized]] = deque()
        for _ in range(threads + 1):
            self._submit()

    def _start(self) -> None:
        self._local.own = self._begin()

    def _submit(self) -> None:
        rows = self._rng.integers(0, self._count, self._batch)
        self._flying.append(self._pool.submit(self._run, rows, self._number))
        self._number += 1

    def _run(self, rows: NDArray[np.int64], number: int) -> Sized:
        return self._task(self._local.own, rows, number)

    def __next__(self) -> int:
        done = self._flying.popleft().result()
        self._submit()
        return len(done)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def pooled(task: Task, begin: Callable[[], Any], count: int, batch: int, threads: int) -> Make:
    """`threads` threads, and one batch more in flight than they are.

    task   called as task(own, rows, number) with `batch` of `count` rows, drawn at random, int64, and the number of the
           batch; what it gives is as long as they are
    begin  makes what a thread owns
    """

    @contextmanager
    def make() -> Iterator[Steps]:
        steps = _Pooled(task, begin, count, batch, threads)
        try:
            yield steps
        finally:
            steps.close()

    return make
