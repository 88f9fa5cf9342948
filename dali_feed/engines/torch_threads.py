"""Threads of ours in which torch's operations run on one thread each.

By default each of our threads would have as many threads of torch's as there are CPUs, and those wait in a loop: on
two cores small operations then take twice the CPU time, and on a hundred they stand in each other's way.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Alone"]


class Alone:
    """To start `count` threads: each calls `enter` first, whoever starts them `started` afterwards.

    Torch keeps one number for threads that begin later, which a thread of ours cannot set for itself alone. So
    all have set it before it is put back. Where torch has not been imported nothing is done.
    """

    def __init__(self, count: int) -> None:
        loaded = sys.modules.get("torch")
        self._torch: Any = loaded if hasattr(loaded, "set_num_threads") else None
        self._before = 0 if self._torch is None else self._torch.get_num_threads()
        self._ready = threading.Barrier(count + 1)

    def enter(self) -> None:
        """In a thread of ours, once."""
        if self._torch is not None:
            self._torch.get_num_threads()  # makes torch set this thread's number now, and not over ours later
            self._torch.set_num_threads(1)
        self._ready.wait()

    def around(self, run: Callable[..., object]) -> Callable[..., object]:
        """`run`, with `enter` before it."""

        def entered(*arguments: object) -> object:
            self.enter()
            return run(*arguments)

        return entered

    def started(self) -> None:
        """Where they were started: torch's number for other threads is what it was."""
        self._ready.wait()
        if self._torch is not None:
            self._torch.set_num_threads(self._before)
