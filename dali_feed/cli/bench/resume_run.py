"""What `dali-feed bench resume` does."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from dali_feed.bench.contract import Job, Outcome
from dali_feed.bench.lineup import about
from dali_feed.bench.resuming import SHOWN, contestants, measure
from dali_feed.bench.work import cuda_index
from dali_feed.cli.bench.data import data_for, scratch_in
from dali_feed.cli.bench.ending import Ending, ending
from dali_feed.cli.bench.loader_run import Asked
from dali_feed.engines.choose import choose_engine
from dali_feed.errors import ConfigError
from dali_feed.loader.arguments import torch_device
from dali_feed.options import Tuning

__all__ = ["run"]


def run(asked: Asked) -> None:
    """Measure and tell. Raises ConfigError for what cannot be; Ctrl-C ends with what was measured."""
    if asked.quick:
        asked = asked.quickly()
    device = torch_device(asked.device)
    engine = choose_engine(asked.engine, cuda_index(device), graph=False)
    outcome = Outcome("resume", {})
    how = Ending(SHOWN, csv=asked.csv, report=asked.report, plots=asked.plots, json=asked.json)
    with ending(outcome, how), ExitStack() as stack:
        scratch = stack.enter_context(scratch_in(asked.data))
        data = data_for(asked.source, asked.images, scratch, asked.data, config=asked.config, timeout=asked.timeout)
        batches = data.count // asked.batch
        if not batches:
            msg = (
                f"--batch: must be at most the number of images, {data.count}; found {asked.batch}; take a smaller one"
            )
            raise ConfigError(msg)
        job = Job(data, asked.batch, str(device), Tuning(threads=asked.threads).cpu_threads, scratch)
        told = about(job, engine, seconds=asked.seconds, repeats=asked.repeats)
        del told["seconds"]  # a turn has as many as it takes
        outcome.about |= told
        firsts = contestants(job, engine, peers=asked.peers)
        measure(firsts, batches, outcome, repeats=asked.repeats, heard=_heard)


def _heard(who: str, place: str, seconds: float) -> None:
    print(f"{who}, {place}: {seconds:.3f} s", file=sys.stderr, flush=True)
