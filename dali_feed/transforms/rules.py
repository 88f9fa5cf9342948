"""What ops of a recipe check of themselves: each check names the op, the rule and what was found."""

from __future__ import annotations

from typing import NoReturn

from dali_feed.errors import TransformError

__all__ = ["Fill", "Range", "check_p", "check_range", "refuse"]

Range = tuple[float, float]
Fill = float | tuple[float, float, float]  # of all channels, or of red, green, blue


def refuse(op: str, rule: str, found: object) -> NoReturn:
    """Raise TransformError."""
    msg = f"{op}: {rule}; found {found!r}"
    raise TransformError(msg)


def check_range(op: str, name: str, pair: Range, low: float, high: float) -> None:
    """Both ends of `pair` in order, within low..high."""
    if len(pair) != 2 or not low <= pair[0] <= pair[1] <= high:
        refuse(op, f"{name} must be (low, high) with {low} <= low <= high <= {high}", pair)


def check_p(op: str, p: float) -> None:
    """A probability."""
    if not 0.0 <= p <= 1.0:
        refuse(op, "p must lie in 0..1", p)
