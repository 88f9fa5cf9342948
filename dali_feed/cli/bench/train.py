"""`dali-feed bench train`: what a training loop waits for its batches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dali_feed.cli.arguments import Config, Names, Timeout
from dali_feed.cli.bench.options import Batch, Csv, Device, Json, Peers, Plots, Quick, Repeats, Report, Seconds, Threads

__all__ = ["train"]


def train(  # noqa: PLR0913, PLR0917  an option each
    source: Annotated[
        Names,
        typer.Argument(help="Images: a folder, tar shards ('train-*.tar'), a topic.", show_default="photos made here"),
    ] = None,
    width: Annotated[int, typer.Option(min=1, help="Channels of the network's first stage; more is slower.")] = 16,
    batch: Batch = 64,
    threads: Threads = None,
    seconds: Seconds = 6.0,
    repeats: Repeats = 3,
    device: Device = None,
    engine: Annotated[str | None, typer.Option(help="Of ours: host or dali.", show_default="the loader's own")] = None,
    images: Annotated[int, typer.Option(min=1, help="Images that take part, spread evenly over the source.")] = 3000,
    peers: Peers = True,
    quick: Quick = False,
    csv: Csv = None,
    json: Json = False,
    report: Report = None,
    plots: Plots = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where data is made.", show_default="the user's cache")
    ] = None,
    config: Config = None,
    timeout: Timeout = 10.0,
) -> None:
    """The share of a training step that is waiting for its batch: with our loader, with torch's, and with none.

    A small residual network is trained on random crops of 224x224, in turns. `replay` is the ceiling: a few of our
    batches again and again, so that the loop waits for nothing. Ctrl-C ends with a table of what was measured.
    """
    from dali_feed.cli.bench.loader_run import Asked
    from dali_feed.cli.bench.train_run import run

    asked = Asked(
        source=tuple(source or ()),
        batch=batch,
        threads=threads,
        seconds=seconds,
        repeats=repeats,
        device=device,
        engine=engine,
        images=images,
        peers=peers,
        quick=quick,
        csv=csv,
        json=json,
        report=report,
        plots=plots,
        data=data,
        config=tuple(config or ()),
        timeout=timeout,
    )
    run(asked, width)
