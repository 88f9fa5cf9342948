"""Checks of arguments that many share."""

from __future__ import annotations

import re

import numpy as np

from dali_feed.errors import ConfigError

__all__ = ["AMOUNT", "bytes_of", "flag", "whole"]

AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SIZES = {"": 1, "B": 1}
_SIZES |= {f"{letter}B": 10 ** (3 * n) for n, letter in enumerate("kMGT", 1)}
_SIZES |= {f"{letter}iB": 1024**n for n, letter in enumerate("KMGT", 1)}


def whole(subject: str, value: object, least: int) -> int:
    """The value, if it is an int (Python's or NumPy's) of at least `least`; ConfigError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        msg = f"{subject}: must be an int of at least {least}; found {value!r}"
        raise ConfigError(msg)
    return int(value)


def flag(subject: str, value: object) -> None:
    """ConfigError for anything but True and False."""
    if not isinstance(value, bool):
        msg = f"{subject}: must be True or False; found {value!r}"
        raise ConfigError(msg)


def bytes_of(option: str, text: str) -> int:
    """Bytes of 1500, 512MB (of 10^6 each) or 1GiB (of 2^30). Raises ConfigError."""
    found = AMOUNT.fullmatch(text.strip())
    size = round(float(found[1]) * _SIZES.get(found[2], 0)) if found else 0
    if not size:
        msg = f"{option}: must be a size such as 1500, 512MB or 1GiB; found {text!r}"
        raise ConfigError(msg)
    return size
