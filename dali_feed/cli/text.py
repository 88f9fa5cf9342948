"""The form of facts: a name and a text each, numbers as people read them."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

__all__ = ["grid", "plural", "put", "size_text"]


def grid() -> Table:
    """Facts, a name and a text each."""
    made = Table.grid(padding=(0, 2), pad_edge=True)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    return made


def put(facts: Table, name: str, text: str) -> None:
    """Add a fact."""
    facts.add_row(Text(name), Text(text))


def plural(count: int) -> str:
    """The s of a plural."""
    return "" if count == 1 else "s"


def size_text(count: float) -> str:
    """Bytes as people read them: 1,054 bytes; 12.3 MB."""
    for unit, many in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e4)):
        if count >= many:
            return f"{count / (1e3 if unit == 'kB' else many):,.1f} {unit}"
    return f"{count:,.0f} bytes"
