"""Formats by name: those that come along, and those that an installed package registers.

A package registers one in its pyproject.toml:

    [project.entry-points."dali_feed.formats"]
    mine = "package.module:Mine"

where the object keeps the contract, or is called without arguments and gives what does.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

from dali_feed.errors import ConfigError
from dali_feed.formats.contract import Format
from dali_feed.formats.json_text import Json
from dali_feed.formats.messagepack import MsgPack
from dali_feed.formats.npy import Npy
from dali_feed.formats.tf_example import Example

__all__ = ["GROUP", "format_of"]

GROUP = "dali_feed.formats"
_OURS: dict[str, Callable[[], Format]] = {"json": Json, "msgpack": MsgPack, "npy": Npy, "tf-example": Example}


def format_of(what: Any) -> Format:
    """The format itself, or the one of that name: `json`, `msgpack`, `npy`, `tf-example`, or what packages register.

    Raises:
        ConfigError: it keeps no contract, nobody has that name, or two packages have.
    """
    if not isinstance(what, str):
        return _kept(what, f"format {what!r}")
    if what in _OURS:
        return _OURS[what]()
    there = importlib.metadata.entry_points(group=GROUP)
    found = {each.value: each for each in there if each.name == what}
    if len(found) != 1:
        names = sorted({*_OURS, *(each.name for each in there)})
        said = f"one of {', '.join(names)}, or an object" if not found else f"registered once; found {sorted(found)}"
        msg = f"format {what!r}: must be {said}; Avro and Protobuf need a schema: give Avro(...), Protobuf(...)"
        raise ConfigError(msg)
    (entry,) = found.values()
    try:
        made = entry.load()
        if isinstance(made, type) or not isinstance(made, Format):
            made = made()
    except Exception as error:
        msg = f"format {what!r}: {entry.value} cannot be loaded: {type(error).__name__}: {error}"
        raise ConfigError(msg) from error
    return _kept(made, f"format {what!r}, {entry.value}")


def _kept(made: Any, told: str) -> Format:
    if isinstance(made, type) or not isinstance(made, Format):
        cure = "; give an object, not its class" if isinstance(made, type) else ""
        msg = f"{told}: must have the methods bind(members) and members(value){cure}"
        raise ConfigError(msg)
    return made
