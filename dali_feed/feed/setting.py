"""The objects that all passes over a feed use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dali_feed.engines.engine import Engine
from dali_feed.feed.batch import Batch, Made
from dali_feed.feed.lane import Draw
from dali_feed.feed.measured import Measured
from dali_feed.feed.meter import Meter
from dali_feed.feed.reading import ReadPool
from dali_feed.quarantine.outbox import Outbox

__all__ = ["EpochSetting", "Setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """The objects that a pass uses and shares with the passes after it."""

    engine: Engine
    meter: Meter
    outbox: Outbox
    source: str
    epoch: int
    where: Callable[[int], str]
    draw: Draw
    beside: Callable[[Batch], None]
    prefetch: int
    same_size: bool
    payload: Callable[[int, memoryview | None], bytes] | None  # a record's, as it was read; None: as it is in memory
    made: Made | None  # columns of a batch, from what its records kept
    watchdog: float


@dataclass(frozen=True, slots=True)
class EpochSetting(Setting):
    """And those of a pass over an epoch, which reads ahead by its plan."""

    pool: ReadPool
    memory: int
    sizes: Measured
    readers: int
