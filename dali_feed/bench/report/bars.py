"""Bars: a figure for each row with its spread, and parts of a whole laid end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dali_feed.bench.measures import Figure
from dali_feed.bench.report.markup import Markup, join, tag, text
from dali_feed.bench.report.style import COLOURS

__all__ = ["bars", "number", "parts"]

CEILINGS = ("ceiling", "loop", "loop-read", "replay")


def number(value: float) -> str:
    """Three or more digits that count."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.3g}"


def bars(figures: Sequence[Figure], ours: Sequence[str], unit: str) -> Markup:
    """One bar each, as long as its share of the most that any figure reached; a whisker from its least to its most."""
    longest = max((figure.most for figure in figures), default=0.0) or 1.0
    cells: list[Markup] = []
    for figure in figures:
        kind = "ours" if figure.name in ours else "top" if figure.name in CEILINGS else "other"
        told = f"{figure.name}: {number(figure.value)} {unit}, {number(figure.least)} to {number(figure.most)}"
        inside = [tag("div", class_=f"bar {kind}", style=f"width:{_percent(figure.value, longest)}")]
        if figure.most > figure.least:
            left, wide = _percent(figure.least, longest), _percent(figure.most - figure.least, longest)
            inside.append(tag("div", class_="whisker", style=f"left:{left};width:{wide}"))
        detail = join(Markup(" "), tag("small", text(figure.detail))) if figure.detail else Markup("")
        cells.append(_row(join(text(figure.name), detail), inside, told, number(figure.value)))
    return tag("div", *cells, class_="bars")


def parts(whole: Mapping[str, Mapping[str, float]]) -> Markup:
    """By name a bar of 100 %, cut into its parts; the legend tells the colours. Parts of nothing are left out."""
    names = list(dict.fromkeys(part for its in whole.values() for part, value in its.items() if value > 0))
    colours = {part: COLOURS[n % len(COLOURS)] for n, part in enumerate(names)}
    cells: list[Markup] = []
    for who, its in whole.items():
        total, at, inside = sum(its.values()) or 1.0, 0.0, list[Markup]()
        shares = [(part, its.get(part, 0.0) / total) for part in names if its.get(part, 0.0) > 0]
        for part, share in shares:
            style = f"left:{100 * at:.2f}%;width:{100 * share:.2f}%;background:{colours[part]}"
            inside.append(tag("div", class_="bar part", style=style))
            at += share
        told = f"{who}: " + ", ".join(f"{part} {share:.0%}" for part, share in shares)
        most = max(shares, key=lambda each: each[1], default=("nothing", 0.0))
        cells.append(_row(text(who), inside, told, f"{most[0]} {most[1]:.0%}"))
    legend = [tag("li", tag("i", style=f"background:{colours[part]}"), text(part)) for part in names]
    return join(tag("div", *cells, class_="bars"), tag("ul", *legend, class_="legend"))


def _row(who: Markup, inside: Sequence[Markup], told: str, value: str) -> Markup:
    return tag(
        "div",
        tag("div", who, class_="who"),
        tag("div", *inside, class_="track", role="img", aria_label=told),
        tag("div", text(value), class_="value"),
        class_="row",
    )


def _percent(value: float, whole: float) -> str:
    return f"{max(0.0, min(100.0, 100 * value / whole)):.2f}%"
