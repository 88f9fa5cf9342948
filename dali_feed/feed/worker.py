"""The thread that feeds: of one pass, or of several, where one goes on into the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

__all__ = ["Fed", "Worker"]


class Fed(Protocol):
    """What a worker runs: `one` gives what comes behind it, or None."""

    def one(self) -> Fed | None:
        """Feed all of it."""
        ...


class Worker:
    """A thread that uses the engine until nothing comes behind. `start` it."""

    def __init__(self, first: Fed, name: str) -> None:
        self._first: Fed | None = first
        self._begun, self._runs, self._over = False, False, False
        self._then = list[Callable[[], None]]()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Once. Whatever comes out of here, as an interrupt does, `alive` says whether the thread runs."""
        self._begun = True
        try:
            self.thread.start()
        except BaseException:
            with self._lock:
                self._begun = self._runs
            raise

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, up to `timeout` seconds; for nothing where it has not begun."""
        if self._begun and self._ended.wait(timeout) and self.thread.is_alive():
            self.thread.join(timeout)

    def _run(self) -> None:
        with self._lock:
            if not self._begun:  # nobody waits for it any more
                return
            self._runs = True
        run, self._first = self._first, None  # what is over is not held
        try:
            while run is not None:
                run = run.one()
        finally:
            with self._lock:
                self._over = True
            for call in self._then:
                call()
            self._ended.set()

    @property
    def alive(self) -> bool:
        """Whether it may still use the engine: it may be inside a decoder."""
        return self._begun and not self._over

    def at_end(self, call: Callable[[], None]) -> None:
        """Call it when the thread no longer uses the engine: in that thread, or at once."""
        with self._lock:
            if self.alive:
                self._then.append(call)
                return
        call()
