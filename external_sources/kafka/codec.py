"""A codec of the user's: what it makes of a record's value, key and headers, as members `codec:NAME`.

The law: what it raises is the fault of that record, with the place in the user's own file; what a decoder or a letter
may want to look at then is the whole value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dali_feed.bad_records import place_of
from dali_feed.errors import FormatError
from dali_feed.records.source import Block, Fault, Lease

CODEC = "codec:"  # what names of its members begin with
Codec = Callable[[memoryview, bytes | None, list[tuple[str, bytes]]], Mapping[str, Any]]

_TOMBSTONE = "a record must hold an image; this one is a tombstone (no value)"


def decoded(
    codec: Codec, members: Mapping[str, str], block: Block, values: Sequence[Any], keys: Sequence[Any], pairs: list[Any]
) -> dict[str, list[Any]]:
    """What the codec makes of each record of a block, by member; its faults are added to the block's.

    It gets a read-only view of the value, whose None is a tombstone, the key, and the headers in order.
    """
    wanted = {name: what.removeprefix(CODEC) for name, what in members.items() if what.startswith(CODEC)}
    out: dict[str, list[Any]] = {name: [None] * len(block.ids) for name in wanted}
    absent = set(block.absent_rows())
    for row, (value, key) in enumerate(zip(values, keys, strict=True)):
        if row in absent or row in block.faults:
            continue
        if value is None:
            block.faults[row] = Fault("source", _TOMBSTONE, CODEC + "image")
            continue
        try:
            result = codec(value.toreadonly(), None if key is None else bytes(key), list(pairs[row]))
            for name, own in wanted.items():
                out[name][row] = _kept(result[own], value, block.lease, image=own == "image")
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises is about this record
            words = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
            place = place_of(error, codec)
            kind = FormatError if isinstance(error, FormatError) else type(error)
            reason = f"codec: {kind.__name__}: {words}{f', at {place}' if place else ''}"
            block.faults[row] = Fault("source", reason, CODEC + "image")
            for column in out.values():
                column[row] = value
    return out


def _kept(result: Any, value: memoryview, lease: Lease, *, image: bool) -> Any:
    """What a codec gave, as long as the block lives: a view of the value as it is, other bytes as copies."""
    if not image and not isinstance(result, bytes | bytearray | memoryview):
        return result
    view = memoryview(result).cast("B")
    if view.obj is value.obj:
        return view
    copy = lease.room(len(view))
    copy[:] = view
    return copy
