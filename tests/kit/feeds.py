"""What is under a loader."""

from __future__ import annotations

from dali_feed import DataLoader
from dali_feed.feed import Feed

__all__ = ["feed_of"]


def feed_of(loader: DataLoader) -> Feed:
    """The feed of a loader whose dataset is a source, or as good as one."""
    feed = loader._feed
    assert isinstance(feed, Feed)
    return feed
