"""Packing: the records of any source into sets of tar shards, and what is done with sets.

Never: training, a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.packing.run import Packed, pack

__all__ = ["Packed", "pack"]

__getattr__ = lazily(__name__, {"Packed": "run", "pack": "run"})
