"""What a source, a column, a format or a transform of one's own is written with.

Never: a class of its own. CONTRIBUTING shows a source, docs/columns.md a column, docs/formats.md a format.
"""

from __future__ import annotations

from dali_feed.columns.column import Column
from dali_feed.formats.format import Format
from dali_feed.records.extents import Extents
from dali_feed.records.live import Stream
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block, Fault, Lease, Member, Reader, Snapshot, Source
from dali_feed.transforms.op import Draws, Op

__all__ = [
    "Block",
    "Column",
    "Draws",
    "Extents",
    "Fault",
    "Format",
    "Lease",
    "Member",
    "Op",
    "Pieces",
    "Reader",
    "Snapshot",
    "Source",
    "Stream",
]
