"""Where the time of our loader went and what to change first: its verdict, its stages, its waits, its ceiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dali_feed.bench.chance import CHANCE, by_chance
from dali_feed.bench.contract import Outcome
from dali_feed.bench.report.bars import number
from dali_feed.bench.report.markup import Markup, tag, text

__all__ = ["verdicts"]

SUMMARY = "How it knows: seconds of each stage, of all its threads, and of the loop's waits"
SHOWN = 0.005  # seconds: less is 0.00
CEILINGS = {"replay": "the network on batches that are there already", "ceiling": "the same engine fed from memory"}
HEADS = ("stage", "threads", "waited for input, s", "worked, s", "waited for room, s", "alone, samples/s")


def verdicts(outcome: Outcome) -> Markup | None:
    """A part for each loader of ours that was measured; None where there was none."""
    if not outcome.told:
        return None
    about = "What the loader itself says of the steps that were counted in its last turn."
    body = [tag("h2", text("Where the time went, what to change first")), tag("p", text(about))]
    for who, told in outcome.told.items():
        body += [tag("h3", text(who)), tag("p", text(told["sentence"]), class_="verdict")]
        if told["advice"]:
            body.append(tag("ol", *(tag("li", text(each)) for each in told["advice"]), class_="advice"))
        body += _ceilings(who, outcome)
        known = [*_stages(told["stages"]), *_waits(told["causes"])]
        if known:
            body.append(tag("details", tag("summary", text(SUMMARY)), *known))
    return tag("section", *body)


def _ceilings(who: str, outcome: Outcome) -> list[Markup]:
    rows = {row.get("who"): row for row in outcome.rows}
    mine, found = rows.get(who, {}), []
    for name, what in CEILINGS.items():
        ratio, top = mine.get(f"of {name}"), rows.get(name, {}).get("img/s")
        if ratio is None or top is None:
            continue
        chance = f" ({CHANCE})" if by_chance(mine, f"of {name}", outcome.rows) else ""
        said = f"The {name}, {what}, gives {number(top)} images/s; {who} reaches {number(ratio)} of it{chance}."
        found.append(tag("p", text(said)))
    return found


def _stages(stages: Sequence[Mapping[str, Any]]) -> list[Markup]:
    if not stages:
        return []
    head = tag("tr", *(tag("th", text(name), scope="col") for name in HEADS))
    lines = [
        tag("tr", tag("td", text(each["name"])), *(tag("td", text(cell)) for cell in _cells(each))) for each in stages
    ]
    return [tag("div", tag("table", tag("thead", head), tag("tbody", *lines)), class_="scroll", tabindex=0)]


def _cells(stage: Mapping[str, Any]) -> list[str]:
    seconds = [f"{stage[name]:.2f}" for name in ("waited", "worked", "blocked")]
    return [str(stage["threads"]), *seconds, "" if stage["rate"] is None else number(stage["rate"])]


def _waits(causes: Mapping[str, float]) -> list[Markup]:
    found = []
    if told := ", ".join(f"{cause} {seconds:.2f} s" for cause, seconds in causes.items() if seconds >= SHOWN):
        found.append(tag("p", text(f"The loop waited for: {told}.")))
    return found
