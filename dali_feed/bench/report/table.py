"""All figures of an outcome: a table, in which a ratio that may be chance says so, and the same as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from dali_feed.bench.chance import CHANCE, by_chance
from dali_feed.bench.contract import Outcome
from dali_feed.bench.report.bars import number
from dali_feed.bench.report.markup import Markup, join, tag, text

__all__ = ["table"]


def table(outcome: Outcome) -> Markup | None:
    """Of all rows, without columns that are empty; None where there is no row."""
    if not outcome.rows:
        return None
    columns = list(dict.fromkeys(key for row in outcome.rows for key in row))
    used = [name for name in columns if any(row.get(name) not in {None, ""} for row in outcome.rows)]
    head = tag("tr", *(tag("th", text(name), scope="col") for name in used))
    lines = [
        tag("tr", *(tag("td", _told(row, c, outcome), class_=_side(row.get(c))) for c in used)) for row in outcome.rows
    ]
    sheet = io.StringIO()
    writer = csv.DictWriter(sheet, [*outcome.about, *used], extrasaction="ignore")
    writer.writeheader()
    writer.writerows({**outcome.about, **row} for row in outcome.rows)
    return tag(
        "section",
        tag("h2", text("All figures")),
        tag("div", tag("table", tag("thead", head), tag("tbody", *lines)), class_="scroll", tabindex=0),
        tag("details", tag("summary", text("As CSV")), tag("pre", text(sheet.getvalue()))),
    )


def _told(row: Mapping[str, Any], column: str, outcome: Outcome) -> Markup:
    told = text(_cell(row.get(column)))
    return join(told, Markup(" "), tag("small", text(CHANCE))) if by_chance(row, column, outcome.rows) else told


def _cell(value: object) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _side(value: object) -> str | None:
    return "text" if isinstance(value, str) else None
