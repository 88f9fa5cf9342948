"""The loader: a feed's batches as torch tensors under torch's names, and torch's own datasets in its place.

Never: DALI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.loader.items import Info
    from dali_feed.loader.loader import DataLoader

__all__ = ["DataLoader", "Info"]

__getattr__ = lazily(__name__, {"DataLoader": "loader", "Info": "items"})
