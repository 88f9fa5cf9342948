"""Live: batches of a source that never ends, and a state that says how far the loop is in it.

Never: torch, a plan, a broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.live.feed import LiveFeed

__all__ = ["LiveFeed"]

__getattr__ = lazily(__name__, {"LiveFeed": "feed"})
