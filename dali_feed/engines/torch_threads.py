"""Threads of ours in which torch's operations run on one thread each.

By default each of our threads would have as many threads of torch's as there are CPUs, and those wait in a loop: on
two cores small operations then take twice the CPU time, and on a hundred they stand in each other's way.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Alone"]


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
