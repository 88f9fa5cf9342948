"""What `dali-feed bench train` does."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from dataclasses import replace

from dali_feed.bench.contract import Contestant, Job, Outcome
from dali_feed.bench.lineup import about
from dali_feed.bench.ours import Ours
from dali_feed.bench.peers.torch_loader import Torch
from dali_feed.bench.quick import FirstWay
from dali_feed.bench.training import SHOWN, measure, small_resnet
from dali_feed.bench.work import cuda_index
from dali_feed.cli.bench.data import data_for, scratch_in
from dali_feed.cli.bench.ending import Ending, ending
from dali_feed.cli.bench.loader_run import Asked
from dali_feed.cli.bench.progress import listening
from dali_feed.engines.choose import choose_engine
from dali_feed.errors import ConfigError
from dali_feed.loader.arguments import torch_device
from dali_feed.options import Tuning

__all__ = ["run"]

QUICK_BATCH, QUICK_WIDTH = 16, 8


def run(asked: Asked, width: int) -> None:
    """Measure and tell. Raises ConfigError for what cannot be; Ctrl-C ends with what was measured."""
    if asked.quick:
        asked = asked.quickly()
        asked, width = replace(asked, batch=min(asked.batch, QUICK_BATCH)), min(width, QUICK_WIDTH)
    device = torch_device(asked.device)
    engine = choose_engine(asked.engine, cuda_index(device), graph=False)
    outcome = Outcome("train", {})
    how = Ending(SHOWN, csv=asked.csv, report=asked.report, plots=asked.plots, json=asked.json)
    with ending(outcome, how), ExitStack() as stack:
        scratch = stack.enter_context(scratch_in(asked.data))
        data = data_for(asked.source, asked.images, scratch, asked.data, config=asked.config, timeout=asked.timeout)
        if asked.batch > data.count:
            msg = (
                f"--batch: must be at most the number of images, {data.count}; found {asked.batch}; take a smaller one"
            )
            raise ConfigError(msg)
        job = Job(data, asked.batch, str(device), Tuning(threads=asked.threads).cpu_threads, scratch)
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
            listener=stack.enter_context(listening()),
        )
