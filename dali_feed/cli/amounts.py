"""Lengths of time and sizes as people write them."""

from __future__ import annotations

import re

from dali_feed.errors import ConfigError

__all__ = ["bytes_of", "seconds_of"]

_TIMES = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_SIZES = {"": 1, "B": 1}
_SIZES |= {f"{letter}B": 10 ** (3 * n) for n, letter in enumerate("kMGT", 1)}
_SIZES |= {f"{letter}iB": 1024**n for n, letter in enumerate("KMGT", 1)}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def seconds_of(option: str, text: str) -> float | None:
    """Seconds of 90s, 30m, 12h or 7d; None for forever. Raises ConfigError."""
    if text == "forever":
        return None
    found = _AMOUNT.fullmatch(text.strip())
    if not found or found[2] not in _TIMES or not float(found[1]):
        msg = f"{option}: must be a time such as 90s, 30m, 12h, 7d, or forever; found {text!r}"
        raise ConfigError(msg)
    return float(found[1]) * _TIMES[found[2]]


def bytes_of(option: str, text: str) -> int:
    """Bytes of 1500, 512MB (of 10^6 each) or 1GiB (of 2^30). Raises ConfigError."""
    found = _AMOUNT.fullmatch(text.strip())
    size = round(float(found[1]) * _SIZES.get(found[2], 0)) if found else 0
    if not size:
        msg = f"{option}: must be a size such as 1500, 512MB or 1GiB; found {text!r}"
        raise ConfigError(msg)
    return size
