"""What `dali-feed bench loader` does."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from dali_feed.bench.contract import Contestant, Outcome
from dali_feed.bench.lineup import about, lineup
from dali_feed.bench.loading import SHOWN, measure, told_in_csv
from dali_feed.bench.quick import FirstWay
from dali_feed.cli.bench.asked import Asked, job_for
from dali_feed.cli.bench.ending import Ending, ending
from dali_feed.cli.bench.progress import listening

__all__ = ["run"]


def run(asked: Asked) -> None:
    """Measure and tell. Raises ConfigError for what cannot be; Ctrl-C ends with what was measured."""
    outcome = Outcome("loader", {})
    how = Ending(SHOWN, told_in_csv, asked.csv, asked.report, asked.plots, asked.json)
    with ending(outcome, how), ExitStack() as stack:
        job, engine = job_for(asked, stack)
        outcome.about |= about(job, engine, seconds=asked.seconds, repeats=asked.repeats)
        contestants: list[Contestant] = lineup(engine, peers=asked.peers)
        if asked.quick:
            contestants = [FirstWay(each) for each in contestants]
        listener = stack.enter_context(listening())
        how_long: dict[str, Any] = {"repeats": asked.repeats, "seconds": asked.seconds, "until": asked.until}
        measure(contestants, job, outcome, **how_long, listener=listener)
