"""Batches of rows worked on by a pool of threads, a task each, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from dali_feed.bench.contract import Steps
from dali_feed.bench.turns import Make

__all__ = ["pooled"]

Task = Callable[[Any, list[int]], int]


class _Pooled(Steps):
    def __init__(self, task: Task, begin: Callable[[], Any], count: int, batch: int, threads: int) -> None:
        self._task, self._begin, self._count, self._batch = task, begin, count, batch
        self._rng, self._local = np.random.default_rng(0), threading.local()
        self._pool = ThreadPoolExecutor(threads, "bench-decode", self._start)
        self._flying: deque[Future[int]] = deque()
        for _ in range(threads + 1):
            self._submit()

    def _start(self) -> None:
        self._local.own = self._begin()

    def _submit(self) -> None:
        rows = self._rng.integers(0, self._count, self._batch).tolist()
        self._flying.append(self._pool.submit(lambda: self._task(self._local.own, rows)))

    def __next__(self) -> int:
        done = self._flying.popleft().result()
        self._submit()
        return done

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def pooled(task: Task, begin: Callable[[], Any], count: int, batch: int, threads: int) -> Make:
    """`task(own, rows)` works on `batch` of `count` rows and gives their number; `begin` makes what a thread owns."""

    @contextmanager
    def make() -> Iterator[Steps]:
        steps = _Pooled(task, begin, count, batch, threads)
        try:
            yield steps
        finally:
            steps.close()

    return make
