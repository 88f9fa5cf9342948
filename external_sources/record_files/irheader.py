"""MXNet's `IRHeader` before what a record of RecordIO holds.

As python/mxnet/recordio.py has it, all little-endian:

uint32 flag | float32 label | uint64 id | uint64 id2 | flag times float32: the labels, where flag is not 0 | the rest
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.format import Parse, Value, checked

__all__ = ["IRHeader"]

_HEAD = struct.Struct("<IfQQ")


@dataclass(frozen=True, slots=True)
class IRHeader:
    """What `mxnet.recordio.pack` and `pack_img` make. Members: `image`, the bytes after the header, a view; `label`, a
    float or a float32 array; `id` and `id2`, ints.
    """

    names: ClassVar[tuple[str, ...]] = ("image", "label", "id", "id2")

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads these members. ConfigError for any other."""
        for name in checked(members):
            if name not in self.names:
                msg = f"RecordIO: member {name!r}: a record has only {', '.join(self.names)}"
                raise ConfigError(msg)
        order = tuple(map(self.names.index, members))

        def parse(value: Value) -> tuple[Any, ...]:
            found = _parsed(memoryview(value))
            return tuple(found[place] for place in order)

        return parse

    def members(self, value: Value) -> dict[str, Any]:
        """All four."""
        return dict(zip(self.names, _parsed(memoryview(value)), strict=True))


def _parsed(value: memoryview) -> tuple[Any, ...]:
    if len(value) < _HEAD.size:
        msg = f"RecordIO: a record must begin with a header of {_HEAD.size} bytes; found {len(value)}"
        raise FormatError(msg)
    flag, label, first, second = _HEAD.unpack_from(value)
    at = _HEAD.size + 4 * flag
    if at > len(value):
        msg = f"RecordIO: {flag} labels in its header, and {len(value) - _HEAD.size} bytes for them"
        raise FormatError(msg)
    labels = np.frombuffer(value, "<f4", flag, _HEAD.size) if flag else label
    return value[at:], labels, first, second
