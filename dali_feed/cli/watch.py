"""`dali-feed watch`: running loaders on a terminal, from their endpoints. What it needs is imported when it runs."""

from __future__ import annotations

import time
from typing import Annotated

import typer

__all__ = ["watch"]


def watch(
    url: Annotated[
        list[str], typer.Argument(help="host:port of an endpoint (DALI_FEED_METRICS, watching.serve); one per rank.")
    ],
    every: Annotated[float, typer.Option(min=0.05, metavar="SECONDS", help="Seconds between two looks.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look twice, show the rates, and end; exit with 1 if an endpoint is gone.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each look.")] = False,
) -> None:
    """Show running loaders, a line per rank and one for all: rates, what their steps wait for, lag, bad records, GPUs.

    Shares of waits are of the time between two looks; lag and times of reads are those of `loader.stats()`. An endpoint
    that goes away is shown with the time when it went, and comes back by itself.
    """
    from dali_feed.cli.looks import looking
    from dali_feed.cli.watch_state import Site, look_at
    from dali_feed.cli.watch_view import screen, told

    sites = [Site(each) for each in url]
    with looking(screen, told, as_json=as_json, live=not once) as show:
        seen = list(look_at(sites))
        while not once:
            show(seen)
            time.sleep(every)
            seen = list(look_at(sites))
        time.sleep(every)
        seen = list(look_at(sites))
        show(seen)
    if any(each.gone for each in seen):
        raise typer.Exit(1)
