"""Formats by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dali_feed.errors import ConfigError
from dali_feed.formats.example import Example
from dali_feed.formats.format import Format
from dali_feed.formats.json_text import Json
from dali_feed.formats.message_pack import MsgPack
from dali_feed.formats.npy import Npy

__all__ = ["format_of"]

_OURS: dict[str, Callable[[], Format]] = {"json": Json, "msgpack": MsgPack, "npy": Npy, "tf-example": Example}


def format_of(what: Any) -> Format:
    """The format itself, or the one of that name: `json`, `msgpack`, `npy`, `tf-example`.

    Raises:
        ConfigError: it keeps no contract, or no format has that name.
    """
    if isinstance(what, str):
        if what in _OURS:
            return _OURS[what]()
        msg = (
            f"format {what!r}: must be one of {', '.join(sorted(_OURS))}, or an object; Avro and Protobuf need a"
            " schema: give Avro(...), Protobuf(...)"
        )
        raise ConfigError(msg)
    if isinstance(what, type) or not isinstance(what, Format):
        cure = "; give an object, not its class" if isinstance(what, type) else ""
        msg = f"format {what!r}: must have the methods bind(members) and members(value){cure}"
        raise ConfigError(msg)
    return what
