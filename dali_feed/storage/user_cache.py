"""The folder for what can be made again: indexes of files, tunings that were found."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["user_cache"]


def user_cache() -> Path:
    """`dali_feed` under XDG_CACHE_HOME, or under ~/.cache. It may not be there yet.

    Of a user who has no home, as in many containers, it is a folder of his own among the temporary files.
    """
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given, "dali_feed")
    home = os.path.expanduser("~")
    if home == "~":  # it would be a folder of that name, wherever the program runs
        return Path(tempfile.gettempdir(), f"dali_feed-{os.getuid()}")
    return Path(home, ".cache", "dali_feed")
