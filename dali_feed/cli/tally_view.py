"""Prints which records were not written, by reason."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dali_feed.cli.text import plural, put
from dali_feed.external_sources import Tally

__all__ = ["put_tally", "show_failures"]


def put_tally(facts: Table, tally: Tally, seconds: float) -> None:
    """Facts of what was not written, and of the time that it took."""
    if tally.absent:
        put(facts, "absent", f"{tally.absent:,} offsets of the source hold no record")
    put(facts, "failed", f"{tally.failed:,}")
    put(facts, "time", f"{seconds:,.1f} s")


def show_failures(console: Console, tally: Tally) -> int:
    """Each kind of failure with its first places, the most frequent first; how many records it is in all."""
    for reason, kind in sorted(tally.failures.items(), key=lambda item: -item[1].count):
        console.print(Text(f"  {kind.count:,} record{plural(kind.count)}: {reason}", style="yellow"), soft_wrap=True)
        for first in kind.first:
            console.print(Text(f"    {first}"), soft_wrap=True)
        if kind.count > len(kind.first):
            console.print(f"    ... and {kind.count - len(kind.first):,} more")
    return tally.failed
