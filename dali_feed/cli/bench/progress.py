"""How a bench goes on: a bar with the time left on a terminal, a line for each turn elsewhere; on stderr.

The law: nothing is drawn while a turn is counted, since what draws takes CPU time that is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dali_feed.bench.turns import Listener, Turn

__all__ = ["listening"]


@contextmanager
def listening() -> Iterator[Listener]:
    """What shows the turns as they come."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, auto_refresh=False, transient=True
    ) as bar:
        yield _Bar(bar)


def _named(who: str, way: str) -> str:
    return f"{who} ({way})" if way else who


class _Lines(Listener):
    def begins(self, who: str, way: str, done: int, total: int) -> None:
        self._at = f"{done + 1}/{total}"

    def took(self, who: str, way: str, turn: Turn) -> None:
        print(f"{self._at} {_named(who, way)}: {turn.rate:,.0f}/s", file=sys.stderr, flush=True)

    def failed(self, who: str, way: str, reason: str) -> None:
        print(f"{self._at} {_named(who, way)}: FAILED: {reason}", file=sys.stderr, flush=True)


class _Bar(Listener):
    def __init__(self, bar: Progress) -> None:
        self._bar, self._task = bar, bar.add_task("", total=None)

    def begins(self, who: str, way: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=_named(who, way), completed=done, total=total)
        self._bar.refresh()

    def took(self, who: str, way: str, turn: Turn) -> None:
        self._bar.print(f"{_named(who, way)}: {turn.rate:,.0f}/s", style="dim")
        self._bar.advance(self._task)
        self._bar.refresh()

    def failed(self, who: str, way: str, reason: str) -> None:
        self._bar.print(f"{_named(who, way)}: FAILED: {reason}", style="yellow", markup=False)
        self._bar.advance(self._task)
        self._bar.refresh()
