"""Prints what going over a source found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from dali_feed.cli.labels import no_labels
from dali_feed.cli.report import Report
from dali_feed.cli.text import grid, plural, put, size_text
from dali_feed.records.source import Snapshot, Source

__all__ = ["progress", "show"]


@contextmanager
def progress(snapshot: Snapshot) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's stderr, gone at the end; a function that moves it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("records", total=snapshot.positions)
        yield lambda done: bar.advance(task, done)


def show(source: Source, snapshot: Snapshot, report: Report, *, decoded: bool, images: bool = True) -> None:
    """Print one source: counts, and each kind of fault with its first places."""
    console = Console(highlight=False)
    console.print(Text(snapshot.source, style="bold"), soft_wrap=True)
    facts = grid()
    put(facts, "records", f"{report.records:,} of {snapshot.positions:,} positions; {report.absent:,} absent")
    put(facts, "payloads", size_text(report.size))
    how = "decoded" if decoded else "by their headers" if images else "read"
    put(facts, "good", f"{report.records - report.bad:,}, {how}")
    put(facts, "bad", f"{report.bad:,}")
    if images and report.labelled == 0 < report.records - report.bad:
        put(facts, "labels", no_labels(source))
    console.print(facts)
    for name, kind in sorted(report.kinds.items(), key=lambda item: (-item[1].count, item[0])):
        console.print(Text(f"  {kind.count:,} record{plural(kind.count)}: {name}", style="yellow"), soft_wrap=True)
        for _, where, reason in kind.first:
            console.print(Text(f"    bad  {where}: {reason}"), soft_wrap=True)
        if kind.count > len(kind.first):
            console.print(f"    ... and {kind.count - len(kind.first):,} more")
    console.print()
