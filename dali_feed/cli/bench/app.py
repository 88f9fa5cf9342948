"""The commands `dali-feed bench ...`: a line for each."""

from __future__ import annotations

import typer

from dali_feed.cli.bench.decode import decode
from dali_feed.cli.bench.kafka import kafka
from dali_feed.cli.bench.kernels import kernels
from dali_feed.cli.bench.loader import loader
from dali_feed.cli.bench.report import report
from dali_feed.cli.bench.resume import resume
from dali_feed.cli.bench.train import train

__all__ = ["bench_app"]

COMMANDS = (loader, decode, kernels, kafka, train, resume, report)


def bench_app() -> typer.Typer:
    """The group of commands."""
    app = typer.Typer(name="bench", help="Measure how fast this machine is.", no_args_is_help=True)
    app.callback()(_root)
    for command in COMMANDS:
        app.command()(command)
    return app


def _root() -> None:
    """Measure how fast this machine is."""
