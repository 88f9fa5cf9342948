"""Records: what a source gives, snapshots, extents, blocks, and the memory that payloads are read into.

Never: I/O, threads, an engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.records.extents import Extents, pack_ids, unpack_id, unpack_ids
    from dali_feed.records.pieces import Pieces
    from dali_feed.records.source import (
        LABEL,
        MANY_ABSENT,
        Block,
        Commits,
        Lease,
        Reader,
        Slabs,
        Snapshot,
        Source,
        Tabular,
    )

__all__ = [
    "LABEL",
    "MANY_ABSENT",
    "Block",
    "Commits",
    "Extents",
    "Lease",
    "Pieces",
    "Reader",
    "Slabs",
    "Snapshot",
    "Source",
    "Tabular",
    "pack_ids",
    "unpack_id",
    "unpack_ids",
]

__getattr__ = lazily(
    __name__,
    {
        "Block": "source",
        "Commits": "source",
        "Extents": "extents",
        "LABEL": "source",
        "Lease": "source",
        "MANY_ABSENT": "source",
        "Pieces": "pieces",
        "Reader": "source",
        "Slabs": "source",
        "Snapshot": "source",
        "Source": "source",
        "Tabular": "source",
        "pack_ids": "extents",
        "unpack_id": "extents",
        "unpack_ids": "extents",
    },
)
