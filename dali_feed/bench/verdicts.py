"""Our loader's own account of its turn: what held up the loop, how long each stage waited, the longest waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dali_feed.feed.stages import LongWait, StageStats
from dali_feed.feed.verdict import Measured, verdict

__all__ = ["Told", "told"]

LONGEST = 5


class Told(Measured, Protocol):
    """What of a loader's `Stats` it is made of."""

    @property
    def long_waits(self) -> Sequence[LongWait]:
        """Of the loop."""
        ...


def told(stats: Told) -> dict[str, Any]:
    """An entry of `Outcome.verdicts`, plain values all through.

    Keys: "sentence"; "advice", texts, the best first; "stages", one dict for each with its name as "stage", "threads",
    seconds "waited", "worked" and "blocked", and "alone", samples/s or None; "long waits", the longest first, as texts.
    """
    found = verdict(stats)
    longest = sorted(stats.long_waits, key=lambda wait: -wait.seconds)[:LONGEST]
    return {
        "sentence": found.sentence,
        "advice": list(found.advice),
        "stages": [_stage(stage) for stage in stats.stages],
        "long waits": [str(wait) for wait in longest],
    }


def _stage(stage: StageStats) -> dict[str, Any]:
    return {
        "stage": stage.name,
        "threads": stage.threads,
        "waited": round(stage.waited, 3),
        "worked": round(stage.worked, 3),
        "blocked": round(stage.blocked, 3),
        "alone": None if stage.rate is None else round(stage.rate),
    }
