"""`MsgPack`: values in MessagePack, by the library of that name.

The library, before 1.2.4, makes room for all items that a list announces, in each of up to 500 lists one in the other.
So long lists are gone over first, which makes nothing: what is announced is there, or the value is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dali_feed.errors import FormatError
from dali_feed.formats.contract import Parse, Value
from dali_feed.formats.paths import WHOLE, Steps, flatten, pick, steps_of
from dali_feed.packages import needed

__all__ = ["MsgPack"]

_LEADS = {0xC4: 2, 0xC5: 3, 0xC6: 5}  # bytes before those of a `bin`, by the first of them
_MAPS = {*range(0x80, 0x90), 0xDE, 0xDF}
_LISTS = {*range(0x90, 0xA0), 0xDC, 0xDD}
_NIL = 0xC0
_FEW = 16384  # items of a list that is taken at its word: 500 of them, one in the other, announce 64 MB
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class MsgPack:
    """MessagePack. Records are maps whose keys are texts.

    Bytes that a path leads to are given as views of the value, a timestamp as seconds, a float. Other extensions are
    refused, and so are keys that are no text in a record that is given as a dict. Of two equal keys the last counts.
    """

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads these members. They may be any paths.

        Raises:
            ConfigError: a member that is no path.
            MissingPackageError: msgpack is not installed.
        """
        unpacker, cut = _unpacker()
        tree, names = _tree(members), tuple(members)

        def parse(value: Value) -> tuple[Any, ...]:
            view = memoryview(value)
            try:
                try:
                    return _members(unpacker(view, _FEW), view, tree, names)
                except ValueError:
                    if len(view) <= _FEW:
                        raise
                unpacker(view, len(view)).skip()  # a longer list, or the next line says what else is wrong
                return _members(unpacker(view, len(view)), view, tree, names)
            except cut:
                msg = f"msgpack: cut off: its {len(view)} bytes end before the value does"
                raise FormatError(msg) from None

        return parse

    def members(self, value: Value) -> dict[str, Any]:
        """All members by path."""
        return flatten(self.bind((WHOLE,))(value)[0])


@dataclass(slots=True)
class _Wanted:
    """What is asked for: the value here, into a slot, or (deeper steps) what is in it."""

    slot: int | None = None
    below: dict[str | int, _Wanted] = field(default_factory=dict)
    inside: list[tuple[Steps, int]] = field(default_factory=list)  # of a value that is asked for as a whole too


def _tree(members: Sequence[str]) -> _Wanted:
    root = _Wanted()
    for steps, slot in sorted((steps_of(path), slot) for slot, path in enumerate(members)):
        node = root
        for done, step in enumerate(steps):
            if node.slot is not None:  # shorter paths come first
                node.inside.append((steps[done:], slot))
                break
            node = node.below.setdefault(step, _Wanted())
        else:
            node.slot = slot
    return root


def _members(go: Any, view: memoryview, tree: _Wanted, names: tuple[str, ...]) -> tuple[Any, ...]:
    out = [_ABSENT] * len(names)
    _take(go, view, tree, out)
    if go.tell() != len(view):
        msg = f"msgpack: must be one value; {len(view) - go.tell()} of {len(view)} bytes are left over"
        raise FormatError(msg)
    for slot, found in enumerate(out):
        if found is _ABSENT:
            msg = f"msgpack: {names[slot]}: no such member in this value"
            raise FormatError(msg)
    return tuple(out)


def _take(go: Any, view: memoryview, wanted: _Wanted, out: list[Any]) -> None:
    """Read what is wanted of the value that comes next, and go over the rest of it."""
    slot, below = wanted.slot, wanted.below
    if slot is not None:
        out[slot] = found = _whole(go, view)
        for steps, inside in wanted.inside:
            out[inside] = pick(found, steps, "msgpack")
        return
    at = go.tell()
    first = view[at] if at < len(view) else _NIL
    if first in _MAPS:
        for _ in range(go.read_map_header()):
            key = go.unpack()
            node = below.get(key) if key.__class__ is str else None
            if node is None:
                go.skip()
            else:
                _take(go, view, node, out)
    elif first in _LISTS:
        for number in range(go.read_array_header()):
            node = below.get(number)
            if node is None:
                go.skip()
            else:
                _take(go, view, node, out)
    else:
        go.skip()


def _whole(go: Any, view: memoryview) -> Any:
    at = go.tell()
    lead = _LEADS.get(view[at]) if at < len(view) else None
    if lead is None:
        return go.unpack()
    go.skip()
    return view[at + lead : go.tell()]


def _unpacker() -> tuple[Callable[[memoryview, int], Any], type[Exception]]:
    """What makes the library's reader of one value, and what that raises where the value is cut off."""
    with needed():
        import msgpack

    def unpacker(view: memoryview, most: int) -> Any:
        made = msgpack.Unpacker(
            max_buffer_size=len(view), max_array_len=most, max_map_len=most, timestamp=1, ext_hook=_refused
        )
        made.feed(view)
        return made

    return unpacker, msgpack.OutOfData


def _refused(code: int, _data: bytes) -> Any:
    msg = f"msgpack: must hold no extension types except timestamps; found type {code}"
    raise FormatError(msg)
