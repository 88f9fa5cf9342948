"""Feed: threads, back-pressure, slots and statistics around an engine.

Never: torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.feed.batch import Batch
    from dali_feed.feed.feed import Feed

__all__ = ["Batch", "Feed"]

__getattr__ = lazily(__name__, {"Batch": "batch", "Feed": "feed"})
