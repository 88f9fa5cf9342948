"""What `dali-feed bench resume` does."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from dali_feed.bench.contract import Outcome
from dali_feed.bench.lineup import about
from dali_feed.bench.resuming import SHOWN, contestants, measure
from dali_feed.cli.bench.asked import Asked, job_for
from dali_feed.cli.bench.ending import Ending, ending

__all__ = ["run"]


def run(asked: Asked) -> None:
    """Measure and tell. Raises ConfigError for what cannot be; Ctrl-C ends with what was measured."""
    outcome = Outcome("resume", {})
    how = Ending(SHOWN, csv=asked.csv, report=asked.report, plots=asked.plots, json=asked.json)
    with ending(outcome, how), ExitStack() as stack:
        job, engine = job_for(asked, stack)
        batches = job.data.count // job.batch
        told = about(job, engine, seconds=asked.seconds, repeats=asked.repeats)
        del told["seconds"]  # a turn has as many as it takes
        outcome.about |= told
        firsts = contestants(job, engine, peers=asked.peers)
        measure(firsts, batches, outcome, repeats=asked.repeats, heard=_heard)


def _heard(who: str, place: str, seconds: float) -> None:
    print(f"{who}, {place}: {seconds:.3f} s", file=sys.stderr, flush=True)
