"""A record's members as values with a type, for formats whose fields have one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dali_feed.errors import FormatError
from dali_feed.packing.contents import Contents, each_row
from dali_feed.packing.values import CLASS, IMAGES
from dali_feed.records.source import LABEL, Block

__all__ = ["Typed"]

_LONGEST = 20  # digits of a whole number


class Typed:
    """Rows of blocks as name -> value.

    image, label  what those are called in the new format
    named         the user has given all names
    """

    def __init__(self, contents: Contents, image: str, label: str, *, named: bool) -> None:
        self._asked, self._image, self._label, self._named = contents.asked, image, label, named

    def rows(self, block: Block) -> Iterator[dict[str, Any] | str | None]:
        """Of each row its values, why there are none, or None where the position holds no record."""

        def made(row: int, payload: memoryview) -> dict[str, Any] | str:
            try:
                return self._row(block, row, payload)
            except FormatError as error:
                return str(error)

        return each_row(block, made)

    def _row(self, block: Block, row: int, payload: memoryview) -> dict[str, Any] | str:
        found: dict[str, Any] = {}
        for each in self._asked:
            value = block.fields[each.name][row] if each.name in block.fields else payload
            if value is None:
                continue
            if isinstance(value, dict) and each.name.endswith(".*"):
                items = {name: text for name, text in value.items() if text is not None}
            else:
                items = {each.name: value}
            for member, one in items.items():
                name = self._called(member, each.suffix, main=each.main)
                if name in found:
                    return f"two of its members would both be {name!r}; say which by members="
                found[name] = _typed(member, one)
        return found or "none of the members that are written"

    def _called(self, member: str, suffix: str | None, *, main: bool) -> str:
        """What a member is called in the new format."""
        if self._named and suffix is not None:
            return suffix
        if main or member.lower() in IMAGES:
            return self._image
        return self._label if member.lower() in (CLASS, LABEL) else member


def _typed(member: str, value: Any) -> Any:
    """A value. Of bytes it is a number or a text where the member's name says so."""
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, bytes | bytearray | memoryview):
        return value
    kind = member.lower().rpartition(".")[2]
    if kind in (CLASS, LABEL):
        text = bytes(value[: 4 * _LONGEST]).strip()
        if len(text) > _LONGEST or not text.removeprefix(b"-").isdigit():
            msg = f"member {member!r}: must be a whole number; found {text[:40]!r}"
            raise FormatError(msg)
        return int(text)
    if kind in ("txt", "text"):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError as error:
            msg = f"member {member!r}: must be UTF-8; {error}"
            raise FormatError(msg) from error
    return value
