"""Formats: what a record's value holds, read into the members that were asked for.

Never: a source, a batch, torch. Sources read values through `bound`; kinds of columns read arrays through `arrays`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.formats.avro import Avro
    from dali_feed.formats.example import Example
    from dali_feed.formats.format import Format, bound
    from dali_feed.formats.json_text import Json
    from dali_feed.formats.message_pack import MsgPack
    from dali_feed.formats.named import format_of
    from dali_feed.formats.npy import Npy
    from dali_feed.formats.protobuf import Protobuf

__all__ = ["Avro", "Example", "Format", "Json", "MsgPack", "Npy", "Protobuf", "bound", "format_of"]

__getattr__ = lazily(
    __name__,
    {
        "Avro": "avro",
        "Example": "example",
        "Format": "format",
        "Json": "json_text",
        "MsgPack": "message_pack",
        "Npy": "npy",
        "Protobuf": "protobuf",
        "bound": "format",
        "format_of": "named",
    },
)
