"""Which store a path is of, by how it is written."""

from __future__ import annotations

from collections.abc import Sequence

from dali_feed.storage.contract import Store
from dali_feed.storage.local import LOCAL
from dali_feed.storage.set_store import SetStore, is_set_path

__all__ = ["store_for"]


def store_for(patterns: Sequence[str]) -> Store:
    """The store of all these patterns."""
    return SetStore() if any(map(is_set_path, patterns)) else LOCAL
