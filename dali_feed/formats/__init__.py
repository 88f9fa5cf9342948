"""Formats: what a record's value holds, read into the members that were asked for.

Never: a source, a batch, torch. What reads a value comes of `bound`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dali_feed.errors import ConfigError
from dali_feed.formats.format import Format, bound
from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.formats.avro import Avro
    from dali_feed.formats.example import Example
    from dali_feed.formats.json_text import Json
    from dali_feed.formats.message_pack import MsgPack
    from dali_feed.formats.npy import Npy
    from dali_feed.formats.protobuf import Protobuf

__all__ = ["Avro", "Example", "Format", "Json", "MsgPack", "Npy", "Protobuf", "bound", "format_of"]

__getattr__ = lazily(
    __name__,
    {
        "Avro": "avro",
        "Example": "example",
        "Json": "json_text",
        "MsgPack": "message_pack",
        "Npy": "npy",
        "Protobuf": "protobuf",
    },
)

_NAMED = {"json": "Json", "msgpack": "MsgPack", "npy": "Npy", "tf-example": "Example"}


def format_of(what: Any) -> Format:
    """The format itself, or the one of that name: `json`, `msgpack`, `npy`, `tf-example`.

    Raises:
        ConfigError: it keeps no contract, or no format has that name.
    """
    if isinstance(what, str):
        if what not in _NAMED:
            raise ConfigError(
                f"format {what!r}: must be one of {', '.join(sorted(_NAMED))}, or an object; Avro and Protobuf need a"
                " schema: give Avro(...), Protobuf(...)"
            )
        what = __getattr__(_NAMED[what])()
    if isinstance(what, type) or not isinstance(what, Format):
        cure = "; give an object, not its class" if isinstance(what, type) else ""
        raise ConfigError(f"format {what!r}: must have the methods bind(members) and members(value){cure}")
    return what
