"""Columns: what a batch is asked to hold, each made from a member of the records by a kind.

Never: an image's pixels, I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.columns.arrays import Array
    from dali_feed.columns.image import Image
    from dali_feed.columns.kind import Kind
    from dali_feed.columns.number import Number
    from dali_feed.columns.text import Bytes, Json, Text
    from dali_feed.columns.tokens import TokenBatch, Tokens

__all__ = ["Array", "Bytes", "Image", "Json", "Kind", "Number", "Text", "TokenBatch", "Tokens"]

__getattr__ = lazily(
    __name__,
    {
        "Array": "arrays",
        "Bytes": "text",
        "Image": "image",
        "Json": "text",
        "Kind": "kind",
        "Number": "number",
        "Text": "text",
        "TokenBatch": "tokens",
        "Tokens": "tokens",
    },
)
