"""How a run that produces is shown: a bar on a terminal, plain lines elsewhere, and what it did at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from dali_feed.cli.tally_view import show_failures
from dali_feed.cli.text import grid, put, size_text
from dali_feed.external_sources import Produced

__all__ = ["progress", "show"]

LINE_SECONDS = 10.0  # between two plain lines
Tell = Callable[[Produced], None]


@contextmanager
def progress() -> Iterator[Tell]:
    """On stderr: a bar with MB/s and the time that is left, gone at the end; or a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task, first = bar.add_task("records", total=None), -1

        def tell(so_far: Produced) -> None:
            nonlocal first
            if first < 0:
                first = so_far.tally.size
                bar.reset(task, total=so_far.total, completed=so_far.position)
            rate = (so_far.tally.size - first) / max(so_far.seconds, 0.1)
            bar.update(task, completed=so_far.position, description=f"{rate / 1e6:,.1f} MB/s")

        yield tell


class _Lines:
    """A line every ten seconds."""

    def __init__(self) -> None:
        self._next, self._first = time.monotonic() + LINE_SECONDS, -1

    def __call__(self, so_far: Produced) -> None:
        if self._first < 0:
            self._first = so_far.tally.size
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LINE_SECONDS
        rate = (so_far.tally.size - self._first) / max(so_far.seconds, 0.1)
        done = so_far.position - so_far.begun
        left = f"{so_far.seconds / done * (so_far.total - so_far.position):,.0f} s left" if done else "nothing yet"
        print(f"{so_far.position:,} of {so_far.total:,} records, {rate / 1e6:,.1f} MB/s, {left}", file=sys.stderr)


def show(topic: str, servers: str, done: Produced, journal: Path) -> int:
    """Print what it did; how many records were not written."""
    console, tally = Console(highlight=False), done.tally
    console.print(Text(f"kafka topic {topic} at {servers}", style="bold"), soft_wrap=True)
    facts = grid()
    if done.begun:
        whole = " (all of it was there)" if done.begun == done.total else ""
        put(facts, "went on", f"at record {done.begun:,} of {done.total:,}, by {journal}{whole}")
    put(facts, "written", f"{tally.records:,} records, {size_text(tally.size)}")
    if tally.absent:
        put(facts, "absent", f"{tally.absent:,} offsets of the source hold no record")
    put(facts, "failed", f"{tally.failed:,}")
    put(facts, "time", f"{done.seconds:,.1f} s")
    console.print(facts)
    return show_failures(console, tally)
