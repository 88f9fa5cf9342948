"""A run over records while it goes on: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["SoFar", "progress"]

LINE_SECONDS = 10.0  # between two plain lines


@dataclass(frozen=True, slots=True)
class SoFar:
    """Records in all, at which of them this run began, and at which it is; bytes that it wrote, in so many seconds."""

    total: int
    begun: int
    done: int
    size: int
    seconds: float

    @property
    def rate(self) -> str:
        """As people read it."""
        return f"{self.size / max(self.seconds, 0.1) / 1e6:,.1f} MB/s"


@contextmanager
def progress() -> Iterator[Callable[[SoFar], None]]:
    """On stderr: a bar with MB/s and the time that is left, gone at the end; or a line every ten seconds."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task, begun = bar.add_task("records", total=None), False

        def tell(so_far: SoFar) -> None:
            nonlocal begun
            if not begun:
                begun = True
                bar.reset(task, total=so_far.total, completed=so_far.begun)
            bar.update(task, completed=so_far.done, description=so_far.rate)

        yield tell


class _Lines:
    def __init__(self) -> None:
        self._next = time.monotonic() + LINE_SECONDS

    def __call__(self, so_far: SoFar) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LINE_SECONDS
        done = so_far.done - so_far.begun
        left = f"{so_far.seconds / done * (so_far.total - so_far.done):,.0f} s left" if done else "nothing yet"
        print(f"{so_far.done:,} of {so_far.total:,} records, {so_far.rate}, {left}", file=sys.stderr)
