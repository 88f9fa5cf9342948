"""What commands print: a `Report` by `show`, looks at something that goes on by `live`, how far a run is by `progress`.

The law: nothing else in `cli` prints, and what texts from elsewhere (names, reasons, labels) hold for a terminal to
obey does not reach it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from dali_feed.bad_records import Tally

WIDTH = 160  # letters of a line where no terminal has to show all of it at once
LINE_SECONDS = 10.0  # between two lines about a run, where no terminal shows a bar
T = TypeVar("T")


def plain(text: object) -> str:
    """In one line, with nothing that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))


def plural(count: int) -> str:
    """The s of a plural."""
    return "" if count == 1 else "s"


def size_text(count: float) -> str:
    """Bytes as people read them: 1,054 bytes; 12.3 MB."""
    for unit, many in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e4)):
        if count >= many:
            return f"{count / (1e3 if unit == 'kB' else many):,.1f} {unit}"
    return f"{count:,.0f} bytes"


@dataclass(slots=True)
class Report:
    """What a command has to say, in this order.

    title   one line, in bold
    facts   a name and a text each; a name of "" goes on with the fact above
    tables  of `table`
    notes   a line each, with its style: "", "yellow", "green", "red" or "dim"
    data    the same for tools, as plain JSON
    """

    title: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    data: Mapping[str, Any] = field(default_factory=dict)

    def note(self, text: str, style: str = "") -> None:
        """Add a line."""
        self.notes.append((text, style))

    def warn(self, texts: Iterable[str]) -> None:
        """Add warnings."""
        self.notes += [(f"  warning  {text}", "yellow") for text in texts]

    def fail(self, tally: Tally) -> int:
        """Add each kind of failure with its first places, the most frequent first; how many records it is in all."""
        for reason, kind in sorted(tally.failures.items(), key=lambda item: (-item[1].count, item[0])):
            self.note(f"  {kind.count:,} record{plural(kind.count)}: {reason}", "yellow")
            self.notes += [(f"    {first}", "") for first in kind.first]
            if kind.count > len(kind.first):
                self.note(f"    ... and {kind.count - len(kind.first):,} more")
        return tally.failed


def table(
    rows: Sequence[T],
    columns: Mapping[str, Callable[[T], str]],
    *,
    left: Sequence[str] = (),
    most: int = 64,
) -> Table:
    """A line for each of the first `most` rows; a column in which all cells are "" is left out.

    Args:
        rows: anything.
        columns: what each is called, and its text of a row.
        left: the columns that begin at the left, and are folded where they are long; numbers end at the right.
        most: of more rows the number is said.
    """
    more = len(rows) - most
    shown = Table(box=None, padding=(0, 1), header_style="dim", caption_justify="left", caption_style="")
    shown.caption = f"  ... and {more:,} more" if more > 0 else None
    cells = {name: [plain(cell(row)) for row in rows[:most]] for name, cell in columns.items()}
    cells = {name: texts for name, texts in cells.items() if any(texts)}
    for name in cells:
        begins = name in left
        shown.add_column(name, justify="left" if begins else "right", no_wrap=not begins, overflow="fold")
    for row in zip(*cells.values(), strict=True):
        shown.add_row(*map(Text, row))
    return shown


def show(report: Report, *, as_json: bool = False) -> None:
    """Print it, as people or as tools read it."""
    if as_json:
        print(json.dumps(report.data), flush=True)
    else:
        _console().print(drawn(report), soft_wrap=True)


@contextmanager
def live(*, as_json: bool = False, watch: bool = True) -> Iterator[Callable[[Report], None]]:
    """What shows a look: in the place of the one before on a terminal, if it is to `watch`; else one after another."""
    console = _console()
    if not watch or as_json or not console.is_terminal:
        yield lambda report: show(report, as_json=as_json)
        return
    with Live(console=console, auto_refresh=False) as place:
        yield lambda report: place.update(drawn(report), refresh=True)


@contextmanager
def progress(total: int | None = None, unit: str = "records") -> Iterator[Callable[..., None]]:
    """On stderr: a bar that is gone at the end; where there is no terminal, a line every ten seconds.

    What it gives takes how many are done by now, those of an earlier run among them; and, where they are known, the
    `total`, and a `note`: a few letters about the speed.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(total, unit)
        return
    counts = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), counts, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task, begun = bar.add_task(unit, total=total), False

        def tell(done: int, total: int | None = total, note: str = unit) -> None:
            nonlocal begun
            if not begun:
                begun = True
                bar.reset(task, total=total, completed=done)
            bar.update(task, completed=done, total=total, description=note)

        yield tell


@contextmanager
def steps(total: int, unit: str = "records") -> Iterator[Callable[[int], None]]:
    """`progress` that hears how many more are done."""
    done = 0
    with progress(total, unit) as tell:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            tell(done)

        yield advance


class _Lines:
    def __init__(self, total: int | None, unit: str) -> None:
        self._total, self._unit = total, unit
        self._first: int | None = None
        self._begun = time.monotonic()
        self._due = self._begun + LINE_SECONDS

    def __call__(self, done: int, total: int | None = None, note: str = "") -> None:
        now, total = time.monotonic(), total or self._total or done
        self._first = done if self._first is None else self._first
        if now < self._due:
            return
        self._due = now + LINE_SECONDS
        grown = done - self._first
        left = f"{(now - self._begun) / grown * (total - done):,.0f} s left" if grown else "nothing yet"
        parts = (f"{done:,} of {total:,} {self._unit}", note, left)
        print(", ".join(filter(None, parts)), file=sys.stderr)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def drawn(report: Report) -> Group:
    """As a terminal has it."""
    parts: list[Any] = [Text(plain(report.title), style="bold")] if report.title else []
    if report.facts:
        facts = Table.grid(padding=(0, 2), pad_edge=True)
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column(overflow="fold")
        for name, text in report.facts:
            facts.add_row(Text(name), Text(plain(text)))
        parts.append(facts)
    notes = [Text(plain(text), style=style) for text, style in report.notes]
    return Group(*parts, *report.tables, *notes)
