"""The kinds of colour steps by the names that users import; they live in `dali_feed.transforms.colours`."""

from __future__ import annotations

from dali_feed.transforms.colours import KIND, KINDS

__all__ = ["KIND", "KINDS"]
