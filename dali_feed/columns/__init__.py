"""Columns: what a batch is asked to hold, each made from a member of the records by its class.

Never: an image's pixels, I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.columns.array import Array
    from dali_feed.columns.column import Bytes, Column, JsonValue, Number, Text
    from dali_feed.columns.follow import Boxes, Keypoints, Mask
    from dali_feed.columns.image import Image
    from dali_feed.columns.packed import Packed, PackedBatch
    from dali_feed.columns.tokens import TokenBatch, Tokens

__all__ = [
    "Array",
    "Boxes",
    "Bytes",
    "Column",
    "Counted",
    "Image",
    "JsonValue",
    "Keypoints",
    "Mask",
    "Number",
    "Packed",
    "PackedBatch",
    "Text",
    "TokenBatch",
    "Tokens",
]

__getattr__ = lazily(
    __name__,
    {
        "Array": "array",
        "Boxes": "follow",
        "Bytes": "column",
        "Column": "column",
        "Counted": "array",
        "Image": "image",
        "JsonValue": "column",
        "Keypoints": "follow",
        "Mask": "follow",
        "Number": "column",
        "Packed": "packed",
        "PackedBatch": "packed",
        "Text": "column",
        "TokenBatch": "tokens",
        "Tokens": "tokens",
    },
)
