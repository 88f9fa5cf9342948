"""Replay: the batch that the training loop got last, served again, to measure how fast the loop is by itself.

The law: measuring only. State, order and counts of batches stay as they are, and no memory is kept for it: of a batch
only weak references to its arrays are held, so one that the loop has let go of cannot be served.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from dali_feed.checks import whole
from dali_feed.errors import ConfigError
from dali_feed.feed.meter import Meter
from dali_feed.feed.stages import ReplayStats

__all__ = ["replayed"]


def replayed(meter: Meter, batches: int) -> Iterator[Any]:
    """The last batch so many times; ConfigError where there is none. What the loop does with it is `Stats.replay`."""
    whole("replay(batches=...)", batches, 1)
    item = meter.last.item()
    if item is None:
        msg = (
            "replay: gives the last batch of the loop again; found none that is still in memory. Call it inside "
            "the loop, or after it while the loop's variables still hold its batch"
        )
        raise ConfigError(msg)
    return _served(meter, item, batches)


def _served(meter: Meter, item: Any, batches: int) -> Iterator[Any]:
    meter.loop.leaves()
    begun, served = time.perf_counter(), 0
    try:
        for _ in range(batches):
            yield item
            served += 1
    finally:
        seconds = time.perf_counter() - begun
        meter.replay = ReplayStats(served, served * meter.loop.last_samples, seconds)
        meter.loop.returns()
