"""How a run that packs is shown: a bar on a terminal, plain lines elsewhere, and what it did at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from dali_feed.cli.tally_view import show_failures
from dali_feed.cli.text import grid, put, size_text
from dali_feed.packing import PackedSet

__all__ = ["progress", "show"]

LINE_SECONDS = 10.0  # between two plain lines
Tell = Callable[[PackedSet], None]


@contextmanager
def progress() -> Iterator[Tell]:
    """On stderr: a bar with MB/s and the time that is left, gone at the end; or a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task, begun = bar.add_task("records", total=None), False

        def tell(so_far: PackedSet) -> None:
            nonlocal begun
            if not begun:
                begun = True
                bar.reset(task, total=so_far.total, completed=so_far.begun)
            rate = so_far.written / max(so_far.seconds, 0.1)
            bar.update(task, completed=so_far.done, description=f"{rate / 1e6:,.1f} MB/s")

        yield tell


class _Lines:
    """A line every ten seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + LINE_SECONDS

    def __call__(self, so_far: PackedSet) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LINE_SECONDS
        rate = so_far.written / max(so_far.seconds, 0.1)
        print(f"{so_far.done:,} of {so_far.total:,} records, {rate / 1e6:,.1f} MB/s", file=sys.stderr)


def show(done: PackedSet) -> int:
    """Print what it did; how many records were not written."""
    console, tally = Console(highlight=False), done.tally
    console.print(Text(f"set {done.path}", style="bold"), soft_wrap=True)
    facts = grid()
    if done.begun:
        whole = " (all of it was there)" if done.begun == done.total else ""
        put(facts, "went on", f"at record {done.begun:,} of {done.total:,}{whole}")
    put(facts, "written", f"{tally.records:,} records, {size_text(tally.size)}")
    put(facts, "shards", f"{done.shards:,}")
    if tally.absent:
        put(facts, "absent", f"{tally.absent:,} offsets of the source hold no record")
    put(facts, "failed", f"{tally.failed:,}")
    put(facts, "time", f"{done.seconds:,.1f} s")
    console.print(facts)
    return show_failures(console, tally)
