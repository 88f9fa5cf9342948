"""How a run that packs is shown: a bar on a terminal, plain lines elsewhere, and what it did at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from dali_feed.cli import run_view
from dali_feed.cli.run_view import SoFar
from dali_feed.cli.tally_view import put_tally, show_failures
from dali_feed.cli.text import grid, put, size_text
from dali_feed.packing import PackedSet

__all__ = ["progress", "show"]


@contextmanager
def progress() -> Iterator[Callable[[PackedSet], None]]:
    """See `run_view`."""
    with run_view.progress() as tell:
        yield lambda told: tell(SoFar(told.total, told.begun, told.done, told.written, told.seconds))


def show(done: PackedSet, what: str = "set") -> int:
    """Print what it did, and `what` it wrote; how many records were not written."""
    console, tally = Console(highlight=False), done.tally
    console.print(Text(f"{what} {done.path}", style="bold"), soft_wrap=True)
    facts = grid()
    if done.begun:
        whole = " (everything was written already)" if done.begun == done.total else ""
        put(facts, "continued", f"at record {done.begun:,} of {done.total:,}{whole}")
    put(facts, "written", f"{tally.records:,} records, {size_text(tally.size)}")
    put(facts, "shards" if what == "set" else "files", f"{done.shards:,}")
    put_tally(facts, tally, done.seconds)
    console.print(facts)
    return show_failures(console, tally)
