"""What a benchmark says of its goal. The law: it says so and no more; nothing passes or fails by a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

__all__ = ["error_of", "within"]


def error_of(values: Sequence[float]) -> float:
    """By how much their median may be off: about its standard error; infinity for fewer than three."""
    return 1.25 * stdev(values) / math.sqrt(len(values)) if len(values) > 2 else math.inf


def within(
    goal: str, found: float, most: float, *, worst: float | None = None, unsure: float = 0.0, unit: str = ""
) -> str:
    """A line: whether what was found, the median, is at most `most`.

    worst   of all that was found; None: the goal is the median's
    unsure  by how much the median may be off: where that is as large as `most`, or both sides of it are possible,
            nobody knows
    """
    told = f"{goal}: {found:.3g}{unit}" + ("" if worst is None else f", at worst {worst:.3g}")
    asked = f"at most {most:.3g} was asked"
    if unsure and (unsure > most or found - unsure <= most < found + unsure):
        return f"GOAL open: {told}, which may be off by {unsure:.3g}; {asked}. Take more --repeats on a quiet machine"
    if found > most:
        return f"GOAL missed: {told}; {asked}"
    if worst is not None and worst > most:
        return f"GOAL met by the median alone: {told}; {asked}"
    return f"GOAL met: {told}; {asked}"
