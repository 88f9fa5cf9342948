"""Checks of arguments that many share."""

from __future__ import annotations

import numpy as np

from dali_feed.errors import ConfigError

__all__ = ["whole"]


def whole(subject: str, value: object, least: int) -> int:
    """The value, if it is an int (Python's or NumPy's) of at least `least`; ConfigError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        msg = f"{subject}: must be an int of at least {least}; found {value!r}"
        raise ConfigError(msg)
    return int(value)
