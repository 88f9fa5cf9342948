"""How a run that produces is shown: a bar on a terminal, plain lines elsewhere, and what it did at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dali_feed.cli import run_view
from dali_feed.cli.run_view import SoFar
from dali_feed.cli.tally_view import put_tally, show_failures
from dali_feed.cli.text import grid, put, size_text
from dali_feed.external_sources import Produced

__all__ = ["progress", "show"]


@contextmanager
def progress() -> Iterator[Callable[[Produced], None]]:
    """See `run_view`. What a run before wrote counts for the records and not for the rate."""
    first = -1
    with run_view.progress() as tell:

        def told(so_far: Produced) -> None:
            nonlocal first
            first = so_far.tally.size if first < 0 else first
            size = so_far.tally.size - first
            tell(SoFar(so_far.total, so_far.begun, so_far.position, size, so_far.seconds))

        yield told


def show(topic: str, servers: str, done: Produced, journal: Path) -> int:
    """Print what it did; how many records were not written."""
    console, tally = Console(highlight=False), done.tally
    console.print(Text(f"kafka topic {topic} at {servers}", style="bold"), soft_wrap=True)
    facts = grid()
    if done.begun:
        whole = " (everything was written already)" if done.begun == done.total else ""
        put(facts, "continued", f"at record {done.begun:,} of {done.total:,}, by {journal}{whole}")
    put(facts, "written", f"{tally.records:,} records, {size_text(tally.size)}")
    put_tally(facts, tally, done.seconds)
    console.print(facts)
    return show_failures(console, tally)
