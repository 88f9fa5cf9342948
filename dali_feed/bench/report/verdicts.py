"""The section on our loader's own account of its turn: a sentence, what to try, the stages, the longest waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dali_feed.bench.report.bars import number
from dali_feed.bench.report.markup import Markup, tag, text

__all__ = ["verdicts"]

COLUMNS = {
    "stage": "stage",
    "threads": "threads",
    "waited": "waited for input, s",
    "worked": "worked, s",
    "blocked": "waited for room, s",
    "alone": "alone, samples/s",
}


def verdicts(found: Mapping[str, Mapping[str, Any]]) -> Markup | None:
    """Of each contestant that has one, in its last turn, the warm-up included; None where nobody has."""
    if not found:
        return None
    intro = (
        "What the loader itself measured, its warm-up included. The slow stage is the one that worked while others "
        "waited for it; the last column is what a stage could give if it never had to wait."
    )
    each = [part for who, its in found.items() for part in _of(who, its)]
    title = tag("h2", text("What holds up the loop, and what to change first"))
    return tag("section", title, tag("p", text(intro)), *each)


def _of(who: str, its: Mapping[str, Any]) -> list[Markup]:
    found = [tag("h3", text(who)), tag("p", text(its.get("sentence", "")), class_="verdict")]
    for title, name in (("Try", "advice"), ("The longest waits", "long waits")):
        if its.get(name):
            found += [tag("p", text(f"{title}:")), tag("ul", *(tag("li", text(line)) for line in its[name]))]
        if name == "advice" and its.get("stages"):
            found.append(_table(its["stages"]))
    return found


def _table(stages: Sequence[Mapping[str, Any]]) -> Markup:
    head = tag("tr", *(tag("th", text(title), scope="col") for title in COLUMNS.values()))
    lines = [tag("tr", *(tag("td", text(_cell(stage.get(key)))) for key in COLUMNS)) for stage in stages]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *lines)), class_="scroll", tabindex=0)


def _cell(value: object) -> str:
    if value is None:
        return "not known"
    return number(value) if isinstance(value, int | float) else str(value)
