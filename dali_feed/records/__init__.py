"""Records: what a source gives, snapshots, extents, blocks, and the memory that payloads are read into.

Never: I/O, threads, an engine.
"""

from __future__ import annotations

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
