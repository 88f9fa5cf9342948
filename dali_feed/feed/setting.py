"""The objects that all epochs of a feed use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dali_feed.engines.engine import Engine
from dali_feed.feed.batch import Batch, Made
from dali_feed.feed.lane import Draw
from dali_feed.feed.measured import Measured
from dali_feed.feed.reading import ReadPool
from dali_feed.feed.stats import Meter
from dali_feed.quarantine.outbox import Outbox

__all__ = ["Setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """The objects that an epoch uses and shares with the epochs after it."""

    engine: Engine
    pool: ReadPool
    meter: Meter
    outbox: Outbox
    source: str
    where: Callable[[int], str]
    draw: Draw
    beside: Callable[[Batch], None]
    memory: int
    sizes: Measured
    readers: int
    prefetch: int
    same_size: bool
    made: Made | None  # columns of a batch, from what its records kept
    watchdog: float
