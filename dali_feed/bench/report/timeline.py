"""The wait of each step, one line for each contestant, all on one logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dali_feed.bench.report.markup import Markup, join, tag, text

__all__ = ["timelines"]

WIDE, HIGH = 600, 100  # of the drawing, stretched to the page
FEW = 8  # steps: fewer make no line that says anything
LEAST = 1e-5  # seconds: what is shorter stands on the ground


def timelines(waits: Mapping[str, Sequence[float]], ours: Sequence[str]) -> Markup:
    """Of many steps a point of the line is the longest wait of some, so that no spike is lost."""
    known = {who: np.asarray(its, float) for who, its in waits.items() if len(its)}
    top = max((float(its.max()) for its in known.values()), default=LEAST)
    decades = max(1, math.ceil(math.log10(max(top, LEAST * 1.0001) / LEAST) - 1e-9))
    axis = [tag("span", text(_scale(LEAST * 10**k))) for k in range(decades, -1, -1)]
    return join(*(_timeline(who, its, axis, decades, who in ours) for who, its in known.items()))


def _timeline(who: str, waits: np.ndarray, axis: list[Markup], decades: int, ours: bool) -> Markup:
    median, tail = float(np.quantile(waits, 0.5)), float(np.quantile(waits, 0.99))
    heights = [_height(float(each), decades) for each in _longest(waits)]
    step = WIDE / max(1, len(heights) - 1)
    points = [f"{n * step:.1f} {each:.1f}" for n, each in enumerate(heights)]
    line = "M" + " L".join(points if len(points) > 1 else [points[0], f"{WIDE} {heights[0]:.1f}"])
    told = f"{who}: {len(waits):,} steps; half wait at most {_scale(median)}, 99 of 100 at most {_scale(tail)}"
    longest = f"; the longest {_scale(float(waits.max()))}"
    caption = tag("figcaption", tag("b", text(who)), text(told.removeprefix(who) + longest))
    if len(waits) < FEW:
        return tag("figure", caption)
    drawing = tag(
        "svg",
        tag("title", text(told)),
        tag("path", d=line, class_="wait", vector_effect="non-scaling-stroke"),
        _level(median, decades, "median"),
        _level(tail, decades, "tail"),
        viewBox=f"0 0 {WIDE} {HIGH}",
        preserveAspectRatio="none",
        role="img",
    )
    return tag(
        "figure",
        caption,
        tag("div", tag("div", *axis, class_="axis", aria_hidden="true"), drawing, class_="chart"),
        class_="ours" if ours else None,
    )


def _longest(waits: np.ndarray) -> np.ndarray:
    """At most `WIDE` of them: the longest of each run."""
    if len(waits) <= WIDE:
        return waits
    borders = np.linspace(0, len(waits), WIDE, endpoint=False).astype(int)
    return np.maximum.reduceat(waits, borders)


def _height(seconds: float, decades: int) -> float:
    """From the top of the drawing."""
    share = math.log10(max(seconds, LEAST) / LEAST) / decades
    return HIGH - HIGH * min(1.0, share)


def _level(seconds: float, decades: int, kind: str) -> Markup:
    at = f"{_height(seconds, decades):.1f}"
    return tag("line", x1=0, x2=WIDE, y1=at, y2=at, class_=kind, vector_effect="non-scaling-stroke")


def _scale(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:,.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
