"""Feed: threads, back-pressure, slots and state around an engine, without torch."""

from __future__ import annotations

from dali_feed.feed.batch import Batch
from dali_feed.feed.core import Feed

__all__ = ["Batch", "Feed"]
