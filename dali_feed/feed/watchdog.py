"""The watchdog: where no batch comes for long, it says which stage is stuck and on which record.

The waiting training loop's own thread looks at what the other threads have noted down; nothing is
requested from a stage that may never answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dali_feed.feed.batch import Flight
from dali_feed.feed.setting import EpochSetting, Setting

__all__ = ["reads", "stuck"]

SHOWN = 3
RECORDS = 32  # of a batch: as many as one call of a decoder takes, any of which may hold it


def stuck(setting: Setting, flight: Flight | None, source: Callable[[], str]) -> str:
    """The stage that the feed thread waits for, for how long, and its work.

    flight  the engine's batch
    source  tells what the source is at
    """
    stage, seconds = setting.meter.now()
    match stage:
        case "read_wait":
            told = source()
        case "engine_wait" if flight is not None:
            told = _engine(setting, flight)
        case "letters_wait":
            told = f"dead letters: {setting.outbox} does not accept them"
        case _:
            told = "feed: its thread is at work on the next batch"
    return f"{told}; for {seconds:.0f} s"


def reads(setting: EpochSetting) -> str:
    """The work of each reader thread, the longest first."""
    reads = []
    for task, since, trouble in sorted(setting.pool.doing(), key=lambda read: read[1]):
        first = setting.where(int(task.extents[:1].ids()[0]))
        said = f", {trouble}" if trouble else ""
        reads.append(f"{int(task.extents.lengths.sum())} records from {first} ({time.monotonic() - since:.0f} s{said})")
    more = f", and {len(reads) - SHOWN} more" if len(reads) > SHOWN else ""
    return f"source: {setting.source} is being read: {'; '.join(reads[:SHOWN]) or 'nothing'}{more}"


def _engine(setting: Setting, flight: Flight) -> str:
    """The records that the engine's threads work on, where it can say; otherwise the batch's first and last."""
    engine = setting.engine
    slots = sorted(slot for slot in engine.at_work() if slot < len(flight))
    name = f"engine: {engine.name}"
    if slots:
        shown = ", ".join(setting.where(int(flight.ids[slot])) for slot in slots[:RECORDS])
        return f"{name} is at {shown}{f', and {len(slots) - RECORDS} more' if len(slots) > RECORDS else ''}"
    first, last = (setting.where(int(flight.ids[slot])) for slot in (0, -1))
    return f"{name} runs the batch of {len(flight)} from {first} to {last}"
