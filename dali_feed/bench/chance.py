"""Which ratios of a table may be chance: those of two contestants whose turns overlap.

The law: it compares what the table itself shows, so that a sentence and a cell never disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["CHANCE", "by_chance", "overlap"]

CHANCE = "may be chance"
_OF = "of "
_KEYS = ("who", "form", "threads", "at")  # what tells the rows of a table apart, beside settings


def overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a turn of the slower was as fast as one of the faster; False where a row has no spread."""
    if any(row.get(end) is None for row in (one, other) for end in ("least", "most")):
        return False
    return bool(one["least"] <= other["most"] and other["least"] <= one["most"])


def by_chance(row: Mapping[str, Any], column: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the ratio in a column such as "of torch" is to a row of `rows` whose turns overlap this row's.

    That row differs from this one in one name, which is the column's: "torch" in place of who it is, or "start" in
    place of where. False for other columns, and for ratios to what has no row.
    """
    if not column.startswith(_OF) or row.get(column) is None:
        return False
    name, mine = column[len(_OF) :], [row.get(key) for key in _KEYS]
    for other in rows:
        differ = [key for key, value in zip(_KEYS, mine, strict=True) if other.get(key) != value]
        if len(differ) == 1 and other[differ[0]] == name:
            return overlap(row, other)
    return False
