"""What an engine's own threads have worked, where it can say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["Clocked", "EngineWork", "work_of"]


@dataclass(frozen=True, slots=True)
class EngineWork:
    """Since the engine was made: its threads, the seconds that they worked all together, and the images they made."""

    threads: int
    seconds: float
    images: int


@runtime_checkable
class Clocked(Protocol):
    """An engine whose threads count their time."""

    def worked(self) -> EngineWork | None:
        """For any thread. None where what it is made of cannot say."""
        ...


def work_of(engine: object) -> EngineWork | None:
    """What an engine's threads have worked; None where it cannot say."""
    return engine.worked() if isinstance(engine, Clocked) else None
