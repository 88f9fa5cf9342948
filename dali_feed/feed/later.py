"""A value that is made in a thread of its own: what takes seconds is there when it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Later"]

T = TypeVar("T")


class Later(Generic[T]):
    """Begun when it is made. None in place of a value that could not be made: who needs it meets the error himself."""

    def __init__(self, make: Callable[[], T], name: str) -> None:
        self._make = make
        self._value: T | None = None
        self._done = threading.Event()
        self._then = list[Callable[[], None]]()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system gives no more threads
            self._finish()

    def _run(self) -> None:
        try:
            self._value = self._make()
        except Exception:  # noqa: BLE001, S110  it is made again where it is needed, and raises there
            pass
        finally:
            self._finish()

    def _finish(self) -> None:
        with self._lock:
            self._done.set()
        for call in self._then:
            call()

    def then(self, call: Callable[[], None]) -> None:
        """Call it when the value is there: in the thread that made it, or at once."""
        with self._lock:
            if not self._done.is_set():
                self._then.append(call)
                return
        call()

    def result(self) -> T | None:
        """The value, when it is there."""
        self._done.wait()
        return self._value

    def close(self, timeout: float = 2.0) -> None:
        """Wait up to `timeout` seconds for its thread: nothing can stop it."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
