"""The folder for what can be made again: indexes of files, tunings that were found."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["user_cache"]


def user_cache() -> Path:
    """`dali_feed` under XDG_CACHE_HOME, or under ~/.cache. It may not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dali_feed")
