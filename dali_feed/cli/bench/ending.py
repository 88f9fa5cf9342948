"""How a command of the bench ends: a table or JSON, and what it was asked to keep, also where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dali_feed.bench.chance import CHANCE, by_chance
from dali_feed.bench.contract import Outcome
from dali_feed.bench.kept import to_json
from dali_feed.bench.rows import append_to
from dali_feed.errors import ConfigError

__all__ = ["Ending", "ending"]

WIDTH = 160
LEFT = ("who", "way", "form", "kernel", "variant")  # columns of text
INTERRUPTED = 130  # exit code


@dataclass(frozen=True, slots=True)
class Ending:
    """What is done with an outcome.

    shown   columns of the table
    told    a row as the CSV has it
    csv, report, plots, json  as the options of the commands
    """

    shown: Sequence[str]
    told: Callable[[Mapping[str, Any]], Mapping[str, object]] = dict
    csv: Path | None = None
    report: Path | None = None
    plots: Path | None = None
    json: bool = False


@contextmanager
def ending(outcome: Outcome, how: Ending) -> Iterator[None]:
    """Around what measures: at its end the outcome is told and kept, after Ctrl-C too, which then exits with 130.

    Raises:
        ConfigError: at once, for what could not be written at the end.
    """
    _check(how)
    interrupted = False
    try:
        yield
    except KeyboardInterrupt:
        interrupted = True
        typer.echo("interrupted: what follows was measured before", err=True)
    if how.csv is not None and outcome.rows:
        append_to(how.csv, [{**outcome.about, **how.told(row)} for row in outcome.rows])
    if how.json:
        typer.echo(to_json(outcome))
    else:
        _show(outcome, how.shown)
    if how.report is not None:
        from dali_feed.bench import report

        report.write(outcome, how.report)
    if how.plots is not None:
        from dali_feed.bench import plots

        plots.write(outcome, how.plots)
    kept = [str(path) for path in (how.csv, how.report, how.plots) if path is not None]
    if kept and not how.json:
        typer.echo(f"kept in {', '.join(kept)}", err=True)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _check(how: Ending) -> None:
    for option, path in (("--csv", how.csv), ("--report", how.report), ("--plots", how.plots)):
        if path is not None and not path.absolute().parent.is_dir():
            msg = f"{option}: must be a file in a folder that exists; found {str(path)!r}; make its folder first"
            raise ConfigError(msg)


def _show(outcome: Outcome, shown: Sequence[str]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)  # nobody has to see all of a line at once
    used = [name for name in shown if any(row.get(name) not in {None, ""} for row in outcome.rows)]
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in used:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=name in LEFT)
    for row in outcome.rows:
        told = (f"{_cell(name, row.get(name))}{_chance(name, row, outcome)}" for name in used)
        table.add_row(*map(Text, told))
    if outcome.rows:
        console.print(table)
    else:
        console.print("nothing was measured")
    for who, reason in outcome.missing.items():
        console.print(Text(f"{who}: NOT MEASURED: {reason}"), soft_wrap=True)
    for sentence in outcome.findings:
        console.print(Text(sentence), soft_wrap=True)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        if name == "waited":
            return f"{value:.0%}"
        if name.startswith("of "):
            return f"{value:.3f}"
        return f"{value:.3g}" if abs(value) < 1 else f"{value:,.1f}"  # seconds may be hundredths
    return f"{value:,}" if isinstance(value, int) else str(value)


def _chance(name: str, row: Mapping[str, Any], outcome: Outcome) -> str:
    return f" ({CHANCE})" if by_chance(row, name, outcome.rows) else ""
