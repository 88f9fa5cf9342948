"""Memory that work on a GPU, enqueued and not yet done, still reads.

The law: it is released once the work's event has passed, and only `let_go`, which closing calls, waits for that.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Protocol

__all__ = ["KEPT", "Done", "Kept"]


class Done(Protocol):
    """A CUDA event behind the work."""

    def query(self) -> bool:
        """Whether the work is done."""
        ...

    def synchronize(self) -> None:
        """Wait until it is."""
        ...


class Kept:
    """Used by many threads: loaders may be."""

    def __init__(self) -> None:
        self._kept: list[tuple[Done, Any]] = []
        self._lock = threading.RLock()  # reentrant: a destructor that runs in here may call it again

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, what: Any, until: Done) -> None:
        """Hold `what` until then. Release whatever other work is done with, in any order."""
        with self._lock:
            before = self._kept  # dropped outside the lock
            self._kept = [*((done, held) for done, held in before if not done.query()), (until, what)]

    def let_go(self) -> None:
        """Wait for all the work, and release the memory that it reads."""
        with self._lock:
            before, self._kept = self._kept, []
        for done, _ in before:
            with suppress(RuntimeError):  # a GPU that has failed for good has ended the work as well
                done.synchronize()


KEPT = Kept()  # of this process
