"""Prints what reading a whole set found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from dali_feed.cli.text import grid, plural, put, size_text
from dali_feed.packing import Verified
from dali_feed.storage.manifest import load_manifest

__all__ = ["reading", "show_set"]


@contextmanager
def reading(target: str) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's stderr, gone at the end; a function that hears of bytes."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("bytes", total=sum(shard.size for shard in load_manifest(target).shards))
        yield lambda size: bar.advance(task, size)


def show_set(target: str, found: Verified) -> None:
    """Print one set: what was read, and each file that is damaged."""
    console, damages = Console(highlight=False), found.damages
    console.print(Text(f"set {target}", style="bold"), soft_wrap=True)
    facts = grid()
    put(facts, "shards", f"{found.shards:,} with {found.samples:,} samples, {size_text(found.size)}")
    put(facts, "damaged", f"{len(damages):,} file{plural(len(damages))}")
    console.print(facts)
    for damage in damages:
        console.print(Text(f"    {damage}", style="yellow"), soft_wrap=True)
