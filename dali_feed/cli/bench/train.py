"""`dali-feed bench train`: what a training loop waits for its batches."""

from __future__ import annotations

from typing import Annotated

import typer

from dali_feed.cli.bench.options import (
    Batch,
    Csv,
    Data,
    Device,
    Engine,
    Images,
    Json,
    Peers,
    Plots,
    Quick,
    Repeats,
    Report,
    Seconds,
    Source,
    Threads,
)
from dali_feed.cli.options import Config, Timeout

__all__ = ["train"]


def train(  # noqa: PLR0913, PLR0917  an option each
    source: Source = None,
    width: Annotated[int, typer.Option(min=1, help="Channels of the network's first stage; more is slower.")] = 16,
    batch: Batch = 64,
    threads: Threads = None,
    seconds: Seconds = 6.0,
    repeats: Repeats = 3,
    device: Device = None,
    engine: Engine = None,
    images: Images = 3000,
    peers: Peers = True,
    quick: Quick = False,
    csv: Csv = None,
    json: Json = False,
    report: Report = None,
    plots: Plots = None,
    data: Data = None,
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """Measure how much of a training step is waiting for its batch: with our loader, with torch's, and with none.

    It trains a small residual network on random crops of 224x224, in turns. `replay` is the ceiling: a few of our
    batches again and again, so that the loop waits for nothing. Ctrl-C ends with a table of what was measured.
    """
    options = locals()
    from dali_feed.cli.bench.asked import Asked
    from dali_feed.cli.bench.train_run import run

    run(Asked.of(options), width)
