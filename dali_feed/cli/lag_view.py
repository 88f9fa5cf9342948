"""How a lag is shown: what is known of the reader, and a table of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dali_feed.cli.text import grid, plural, put
from dali_feed.external_sources.kafka.lag import LagFacts
from dali_feed.external_sources.kafka.topics import span_text

__all__ = ["screen", "told"]

PARTITIONS = 64


def told(facts: LagFacts, warnings: Sequence[str]) -> dict[str, Any]:
    """A look as JSON has it."""
    return facts.to_json() | {"warnings": list(warnings)}


def screen(facts: LagFacts, warnings: Sequence[str]) -> Group:
    """A look as a terminal has it."""
    stand = facts.stand
    told = grid()
    put(told, "reader", _reader(facts))
    put(told, "lag", _lag(facts))
    if facts.rate("read") is not None or facts.rate("written") is not None:
        put(told, "rates", f"{_rate(facts.rate('read'))} records/s read, {_rate(facts.rate('written'))} written")
    put(told, "retention", _retention(facts))
    lines = [Text(f"  warning  {each}", style="yellow") for each in warnings]
    table, left = _partitions(facts)
    more = [Text(f"  ... and {left:,} more")] if left else []
    title = Text(f"kafka topic {facts.topic} at {facts.servers}, {stand.of}", style="bold")
    return Group(title, told, table, *more, *lines)


def _reader(facts: LagFacts) -> str:
    stand = facts.stand
    if stand.ends is not None:
        return "a loader's state; it reads up to where the topic ended when it began"
    return stand.state or "only positions are known"


def _lag(facts: LagFacts) -> str:
    if facts.lag is None:
        return "not known"
    longest = facts.longest
    return f"{facts.lag:,} offset{plural(facts.lag)}{'' if longest is None else f', {span_text(longest)}'}"


def _retention(facts: LagFacts) -> str:
    if facts.unknown:
        return f"not known: {facts.unknown}"
    return "for ever" if facts.keeps is None else span_text(facts.keeps)


def _partitions(facts: LagFacts) -> tuple[Table, int]:
    """Those with the largest lag, in order, and how many more there are."""
    rows = sorted(facts.partitions, key=lambda each: -(each.lag or 0))[:PARTITIONS]
    rated = any(each.written is not None for each in facts.partitions)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    names = ["partition", "position", "low", "end", "lag", "behind", "headroom"]
    kept, rates = ["may go in"] if facts.keeps is not None else [], ["read/s", "written/s"] if rated else []
    for name in [*names, *kept, *rates]:
        table.add_column(name, justify="left" if name == "partition" else "right", no_wrap=True)
    for each in sorted(rows, key=lambda one: one.partition):
        cells = [
            f"{facts.topic}[{each.partition}]",
            *map(_count, (each.position, each.low, each.end, each.lag)),
            _span(facts.seconds(each)),
            _count(each.headroom),
            *([_left(facts.left(each))] if kept else []),
            *([_rate(each.read), _rate(each.written)] if rated else []),
        ]
        table.add_row(*cells)
    return table, len(facts.partitions) - len(rows)


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _span(seconds: float | None) -> str:
    return "" if seconds is None else span_text(seconds)


def _left(seconds: float | None) -> str:
    return "now" if seconds is not None and seconds <= 0 else _span(seconds)


def _rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}"
