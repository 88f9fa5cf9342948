"""Packing: the records of any source into sets of tar shards, and what is done with sets.

Never: training, a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.packing.damage import Damage, Verified, verify
    from dali_feed.packing.reindex import index
    from dali_feed.packing.run import PackedSet, pack
    from dali_feed.packing.sets import merge, split
    from dali_feed.storage.striping import Layout

__all__ = [
    "Damage",
    "Layout",
    "PackedSet",
    "Verified",
    "index",
    "merge",
    "pack",
    "split",
    "verify",
]

__getattr__ = lazily(
    __name__,
    {
        "Damage": "damage",
        "Layout": "run",
        "PackedSet": "run",
        "Verified": "damage",
        "index": "reindex",
        "merge": "sets",
        "pack": "run",
        "split": "sets",
        "verify": "damage",
    },
)
