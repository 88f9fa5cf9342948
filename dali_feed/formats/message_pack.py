"""`MsgPack`: values in MessagePack, by the library of that name.

A value is unpacked whole and its members picked: the library, from 1.2.4 on, makes room for no more items than the
bytes that are left can hold, and bounds nesting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dali_feed.errors import FormatError
from dali_feed.formats.format import Parse, Value
from dali_feed.formats.paths import WHOLE, flatten, pick, steps_of
from dali_feed.packages import needed


@dataclass(frozen=True, slots=True)
class MsgPack:
    """MessagePack. Records are maps whose keys are texts.

    Bytes that a path leads to are given as memoryviews, a timestamp as seconds, a float. Other extensions are refused,
    and so are keys that are no text in a record that is given as a dict. Of two equal keys the last counts.
    """

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads these members. They may be any paths.

        Raises:
            ConfigError: a member that is no path.
            MissingPackageError: msgpack is not installed.
        """
        with needed():
            import msgpack
        wanted = [(steps_of(path), path) for path in members]
        unpack, extension = msgpack.unpackb, msgpack.ExtType

        def parse(value: Value) -> tuple[Any, ...]:
            try:
                record = unpack(value, timestamp=1, strict_map_key=False)
            except msgpack.ExtraData as error:
                msg = f"msgpack: must be one value; {len(error.extra)} of {len(value)} bytes are left over"
                raise FormatError(msg) from None
            except ValueError as error:
                if "incomplete" in str(error) or "exceeds max" in str(error):  # it announces more than there is
                    raise FormatError(f"msgpack: cut off: its {len(value)} bytes end before the value does") from None
                raise
            return tuple([_member(pick(record, steps, "msgpack"), path, extension) for steps, path in wanted])

        return parse

    def members(self, value: Value) -> dict[str, Any]:
        """All members by path."""
        return flatten(self.bind((WHOLE,))(value)[0])


def _member(value: Any, path: str, extension: type[Any]) -> Any:
    if value.__class__ is bytes:
        return memoryview(value)
    if value.__class__ is dict or value.__class__ is list or value.__class__ is extension:
        _hold(value, path, extension)
    return value


def _hold(value: Any, path: str, extension: type[Any]) -> None:
    """Refuse what no column and no writer of ours knows, anywhere in a value that is given as it is."""
    ahead = [value]
    while ahead:
        each = ahead.pop()
        if each.__class__ is extension:
            msg = f"msgpack: {path}: must hold no extension types except timestamps; found type {each.code}"
            raise FormatError(msg)
        if each.__class__ is list:
            ahead += [one for one in each if one.__class__ in (list, dict, extension)]
        elif each.__class__ is dict:
            for key in each:
                if key.__class__ is not str:
                    raise FormatError(f"msgpack: {path}: must have texts as keys; found {key!r:.40}")
            ahead += each.values()
