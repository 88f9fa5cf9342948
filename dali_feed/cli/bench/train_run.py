"""What `dali-feed bench train` does."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from dataclasses import replace

from dali_feed.bench.contract import Contestant, Outcome
from dali_feed.bench.lineup import about
from dali_feed.bench.ours import Ours
from dali_feed.bench.peers.torch_loader import Torch
from dali_feed.bench.quick import FirstWay
from dali_feed.bench.training import SHOWN, measure, small_resnet
from dali_feed.cli.bench.asked import Asked, job_for
from dali_feed.cli.bench.ending import Ending, ending
from dali_feed.cli.bench.progress import listening

__all__ = ["run"]

QUICK_BATCH, QUICK_WIDTH = 16, 8


def run(asked: Asked, width: int) -> None:
    """Measure and tell. Raises ConfigError for what cannot be; Ctrl-C ends with what was measured."""
    if asked.quick:
        asked, width = replace(asked, batch=min(asked.batch, QUICK_BATCH)), min(width, QUICK_WIDTH)
    outcome = Outcome("train", {})
    how = Ending(SHOWN, csv=asked.csv, report=asked.report, plots=asked.plots, json=asked.json)
    with ending(outcome, how), ExitStack() as stack:
        job, engine = job_for(asked, stack)
        outcome.about |= about(job, engine, seconds=asked.seconds, repeats=asked.repeats) | {"width": width}
        contestants: list[Contestant] = [Ours("tar", engine), *([Torch()] if asked.peers else [])]
        if asked.quick:
            contestants = [FirstWay(each) for each in contestants]
        measure(
            contestants,
            job,
            outcome,
            make=functools.partial(small_resnet, width),
            repeats=asked.repeats,
            seconds=asked.seconds,
            until=asked.until,
            listener=stack.enter_context(listening()),
        )
