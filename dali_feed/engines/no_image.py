"""The engine of records without an image: no pixels are left to make."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from dali_feed.engines.engine import Result, Work
from dali_feed.options import Tuning

__all__ = ["NoImageEngine"]


class NoImageEngine:
    """Batches come out as they went in. See `engines.engine.Engine`."""

    name = "none"

    def __init__(self, program: object, *, batch_size: int, device: int | None, tuning: Tuning) -> None:
        self.depth = tuning.prefetch
        self._flying: deque[Work] = deque()

    def enter(self) -> None:
        """Nothing of a device is used."""

    def prepare(self, payloads: list[memoryview]) -> list[Any]:
        """Payloads are empty."""
        return list(payloads)

    def submit(self, work: Work) -> None:
        """Nothing is started."""
        self._flying.append(work)

    def take(self) -> Result:
        """A result without images."""
        self._flying.popleft()
        return Result(None)

    def discard(self) -> None:
        """The oldest one is dropped."""
        self._flying.popleft()

    def redo(self, work: Work, failed: Result | None = None, slots: Sequence[int] = ()) -> Result:
        """The same."""
        return Result(None)

    def halt(self) -> None:
        """Nothing waits."""

    def resume(self) -> None:
        """Nothing did."""

    def at_work(self) -> Sequence[int]:
        """Nobody is."""
        return ()

    def close(self) -> None:
        """Nothing is held."""
        self._flying.clear()
