"""`dali-feed bench resume`: how long a restored loader takes to its first batch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dali_feed.cli.arguments import Config, Names, Timeout
from dali_feed.cli.bench.options import Batch, Csv, Device, Json, Peers, Plots, Quick, Repeats, Report, Threads

__all__ = ["resume"]


def resume(  # noqa: PLR0913, PLR0917  an option each
    source: Annotated[
        Names,
        typer.Argument(help="Images: a folder, tar shards ('train-*.tar'), a topic.", show_default="photos made here"),
    ] = None,
    batch: Batch = 64,
    threads: Threads = None,
    repeats: Repeats = 3,
    device: Device = None,
    engine: Annotated[str | None, typer.Option(help="Of ours: host or dali.", show_default="the loader's own")] = None,
    images: Annotated[int, typer.Option(min=1, help="Images of an epoch, spread evenly over the source.")] = 3000,
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
    """Seconds to the first batch of a restored run, at the start, in the middle and near the end of an epoch.

    torch's DataLoader stands beside it as it is resumed by hand: the batches that are over are made and dropped.
    Ctrl-C ends with a table of what was measured.
    """
    from dali_feed.cli.bench.loader_run import Asked
    from dali_feed.cli.bench.resume_run import run

    run(
        Asked(
            source=tuple(source or ()),
            batch=batch,
            threads=threads,
            seconds=0.0,
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
    )
