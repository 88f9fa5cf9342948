"""The compiled library: found beside this file, loaded once, or None."""

from __future__ import annotations

import ctypes
import os
import warnings
from functools import cache
from pathlib import Path

SWITCH = "DALI_FEED_NATIVE"  # in the environment: 0 leaves the library alone
VERSION = 7  # of native.h


@cache
def library() -> ctypes.CDLL | None:
    """The library; None where it was not compiled, was switched off, or is one of other sources than this file.

    Asked for once in a process: the environment counts as it was then.
    """
    if os.environ.get(SWITCH) == "0":
        return None
    for path in sorted(Path(__file__).parent.glob("_native*.so")):
        try:
            loaded = ctypes.CDLL(str(path))
            version = loaded.dali_feed_native()
        except (OSError, AttributeError):  # of another machine
            continue
        if version == VERSION:
            return loaded
        warnings.warn(
            f"{path.name} was compiled from other sources (version {version}, needed {VERSION}) and is not used: all "
            "works without it, slower; install dali_feed again (pip install -e .)",
            RuntimeWarning,
            stacklevel=2,
        )
    return None


def used() -> str:
    """Whether this process uses the library, for people: "yes", "no" (not compiled) or "switched off"."""
    if library() is not None:
        return "yes"
    return "switched off" if os.environ.get(SWITCH) == "0" else "no"
