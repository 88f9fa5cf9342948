"""What would make a feed faster and change its batches: measured, and reported to the user, who alone decides.

The law: none of it is ever set.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dali_feed.errors import DaliFeedError
from dali_feed.feed.measuring import turn_seconds
from dali_feed.feed.rivals import Rivals
from dali_feed.options import Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.tuner.race import PAIRS, Trial

__all__ = ["Idea", "advised", "ideas"]

_EXTENT = 64  # records read in one go, where single ones are
_JPEG_ENGINE = 0.65  # share of a batch


@dataclass(frozen=True, slots=True)
class Idea:
    """Arguments that would change batches: what they are in a program, and what they cost."""

    code: str
    price: str
    other: Mapping[str, Any]


def ideas(feed: Any) -> list[Idea]:
    """Those that may make that `Feed` faster."""
    found = [Idea(f"batch_size={2 * feed.batch_size}", "a step learns from more", {"batch_size": 2 * feed.batch_size})]
    if feed.program.views and feed.engine_name == "dali" and feed.device is not None:
        load = {"decode": replace(feed.decode, hardware=_JPEG_ENGINE)}
        found.append(Idea(f"Decode(hardware={_JPEG_ENGINE})", "pixels depend on the batch", load))
    if feed.order.shuffled and feed.order.extent == 1 and not feed.order.parts:
        wide = Shuffle(extent=_EXTENT)
        found.append(Idea(f"shuffle=Shuffle(extent={_EXTENT})", "neighbours stay nearer", {"shuffle": wide}))
    return found


def advised(feed: Any, tuning: Tuning, seconds: float) -> Iterator[tuple[Idea, Trial]]:
    """Each idea beside the feed as it is, both with `tuning`, in turns, for about so long; at least the first."""
    end, length = time.monotonic() + seconds, turn_seconds(4 * seconds)
    with Rivals(feed.alike, length) as here:
        for n, idea in enumerate(ideas(feed)):
            if n and time.monotonic() >= end:
                return

            def make(tuning: Tuning, idea: Idea = idea) -> Any:
                return feed.alike(tuning, **idea.other)

            with Rivals(make, length) as there:
                yield idea, _beside(here, there, tuning)


def _beside(here: Rivals, there: Rivals, tuning: Tuning) -> Trial:
    rates: list[float] = []
    for _ in range(PAIRS):
        rates.append(here.turn(tuning))
        try:
            rates.append(there.turn(tuning))
        except DaliFeedError as error:
            return Trial(tuning, tuning, (), str(error))
    return Trial(tuning, tuning, tuple(rates))
