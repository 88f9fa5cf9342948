"""Lengths of time and sizes as people write them."""

from __future__ import annotations

from dali_feed.checks import AMOUNT, bytes_of
from dali_feed.errors import ConfigError

__all__ = ["bytes_of", "seconds_of"]

_TIMES = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def seconds_of(option: str, text: str) -> float | None:
    """Seconds of 90s, 30m, 12h or 7d; None for forever. Raises ConfigError."""
    if text == "forever":
        return None
    found = AMOUNT.fullmatch(text.strip())
    if not found or found[2] not in _TIMES or not float(found[1]):
        msg = f"{option}: must be a time such as 90s, 30m, 12h, 7d, or forever; found {text!r}"
        raise ConfigError(msg)
    return float(found[1]) * _TIMES[found[2]]
