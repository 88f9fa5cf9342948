"""What `dali-feed tune` shows: how far it is, what was tried, the line to paste, and advice."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dali_feed.feed.advice import Idea
from dali_feed.options import Cache
from dali_feed.tuner.race import Trial, changes
from dali_feed.tuner.search import Outcome

__all__ = ["advise", "code_of", "head", "progress", "show", "told"]


def head(text: str) -> None:
    """What is measured."""
    print(text, flush=True)


@contextmanager
def progress(seconds: float) -> Iterator[Callable[[Trial], None]]:
    """On stderr: a bar over the time, gone at the end; or a line for each trial."""
    console, begun = Console(stderr=True), time.monotonic()
    if not console.is_terminal:
        yield lambda trial: print(f"{_field(trial)}: {_verdict(trial)}", file=sys.stderr)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("measuring", total=seconds)

        def tell(trial: Trial) -> None:
            done = min(seconds, time.monotonic() - begun)
            bar.update(task, completed=done, description=f"{_field(trial)}: {_verdict(trial)}")

        yield tell


def show(outcome: Outcome) -> None:
    """The table of what was tried."""
    if outcome.broken:
        print("interrupted: what follows was measured before", file=sys.stderr)
    table = Table("tried", "samples/s before", "with it", "gain", "spread", "")
    for trial in outcome.trials:
        rates = (f"{trial.rate_before:,.0f}", f"{trial.rate:,.0f}", f"{trial.gain:+.1%}", f"{trial.spread:.1%}")
        table.add_row(_field(trial), *(rates if trial.rates else ("", "", "", "")), _verdict(trial, short=True))
    console = Console()
    console.print(table)


def told(outcome: Outcome, path: str | None) -> None:
    """The line to paste, and where it is kept."""
    if not outcome.rate:
        print("nothing was measured; give more --seconds")
        return
    if outcome.fields:
        print(f"{outcome.rate:,.0f} samples/s, the defaults {outcome.rate_before:,.0f}:")
    else:
        print(f"nothing was faster than the defaults by more than the spread: {outcome.rate:,.0f} samples/s")
    print(f"  {code_of(outcome)}")
    if path is not None:
        print(f"kept in {path}: DataLoader(..., tuning=Tuning.auto()) uses it")


def code_of(outcome: Outcome) -> str:
    """`Tuning(threads=8, readers=4)`."""
    return f"Tuning({', '.join(f'{name}={_value(value)}' for name, value in outcome.fields.items())})"


def advise(found: Iterable[tuple[Idea, Trial]]) -> None:
    """Each idea as it is measured."""
    first = True
    try:
        for idea, trial in found:
            if first:
                print("these would change the batches, so the choice is yours:")
                first = False
            effect = f"{trial.gain:+.1%}, spread {trial.spread:.1%}" if trial.rates else f"cannot be ({trial.why})"
            print(f"  {idea.code}: {effect}; {idea.price}", flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)


def _field(trial: Trial) -> str:
    changed = changes(trial.before, trial.tried)
    return ", ".join(f"{name} {_short(getattr(trial.before, name))} -> {_short(v)}" for name, v in changed.items())


def _verdict(trial: Trial, *, short: bool = False) -> str:
    if not trial.rates:
        return "not possible" if short else f"not possible: {trial.why}"
    if short:
        return "kept" if trial.kept else ""
    return f"{trial.gain:+.1%}, spread {trial.spread:.1%}{', kept' if trial.kept else ''}"


def _value(value: Any) -> str:
    if isinstance(value, Cache):
        return f"Cache({value.memory}{', pixels=True' if value.pixels else ''})"
    return repr(value)


def _short(value: Any) -> str:
    if isinstance(value, Cache):
        return "of pixels" if value.pixels else "of records"
    return str(value)
