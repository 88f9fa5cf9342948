"""`dali-feed bench loader`: our loader beside its ceiling and beside other loaders, over one's own images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dali_feed.cli.arguments import Config, Names, Timeout
from dali_feed.cli.bench.options import (
    Batch,
    Csv,
    Device,
    Json,
    Peers,
    Plots,
    Quick,
    Repeats,
    Report,
    Seconds,
    Threads,
)

__all__ = ["loader"]


def loader(  # noqa: PLR0913, PLR0917  an option each
    source: Annotated[
        Names,
        typer.Argument(help="Images: a folder, tar shards ('train-*.tar'), a topic.", show_default="photos made here"),
    ] = None,
    batch: Batch = 256,
    threads: Threads = None,
    seconds: Seconds = 4.0,
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
    """Images per second of our loader, of its ceiling, and of other loaders over the same images, in turns.

    Everybody crops at random to 224x224, flips, and normalizes to float32. The images are read into the page cache
    first: storage is measured by `bench io`. Ctrl-C ends with a table of what was measured. docs/benchmarking.md says
    how to read it.
    """
    from dali_feed.cli.bench.loader_run import Asked, run

    run(
        Asked(
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
    )
