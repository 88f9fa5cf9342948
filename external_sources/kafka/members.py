"""Members of Kafka records: the value, the key, the timestamp and the headers, by name.

`value`, `key` and `timestamp` (milliseconds since 1970, int) are those of the record; any other name is a header's, and
`headers.NAME` is one whose name is `value`, `key` or `timestamp`; `headers.*` are all of them, as a dict. Of headers
with one name the last counts. With a format of the value any other name is what the format finds there
(`formatted.py`), and headers are `headers.NAME`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from confluent_kafka import Message

from dali_feed.external_sources.kafka.claims import UNTOLD, Follows, value_of
from dali_feed.external_sources.kafka.filled import Filled, Wanted, merged
from dali_feed.formats.format import Format
from dali_feed.records.filling import Filling
from dali_feed.records.members import Member, alternatives
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Lease

__all__ = ["Asked", "MemberRows", "Seen", "by_path"]

_VALUE = "value"
_OWN = (_VALUE, "key", "timestamp")
_HEADER = "headers."
_ALL = "headers.*"  # a dict of all headers that a record has
_NOTHING = memoryview(b"")
_COPIED = object()  # no header's name


@dataclass(frozen=True, slots=True)
class Asked:
    """The members that a source is to give: one as payloads, others as fields."""

    image: str | None
    members: tuple[str, ...]


def by_path(name: str) -> str:
    """A name in full where the value has a format: `value:body.label`, if it is none of a record's own, nor a header's.

    `key:a` and `value:a` are in full already.
    """
    own = name in _OWN or name.startswith((_HEADER, *(f"{each}:" for each in _OWN)))
    return name if own else f"{_VALUE}:{name}"


class MemberRows:
    """Columns of members that are being filled. See `records.Rows`."""

    def __init__(self, asked: Asked, n: int, lease: Lease, claims: Follows = UNTOLD) -> None:
        self.payloads: list[memoryview | None] = [None] * n
        self.faults: dict[int, str] = {}
        self._room, self._lease, self._claims = lease.room, lease, claims
        self._image = None if asked.image is None else alternatives(asked.image)
        self._members = asked.members
        self._asked = {name: alternatives(name) for name in asked.members}
        self._fields: dict[str, Any] = {name: [None] * n for name in asked.members}
        names = {part for parts in (self._image or (), *self._asked.values()) for part in parts}
        self._wants_headers = bool(names.difference(_OWN))
        self.filled: Filled | None = None

    @classmethod
    def of(cls, asked: Asked, n: int, lease: Lease, claims: Follows = UNTOLD) -> MemberRows:
        """Columns of n rows, filled in the fast way where what is asked for allows it."""
        plain = asked.image is None and _in_full(asked.members) is not None
        return (_PlainRows if plain else cls)(asked, n, lease, claims)

    def wanted(self) -> Wanted | None:
        """What C is to copy: members by one name each, and no other image than the value."""
        members = _in_full(self._members)
        if members is None or self._image not in (None, (_VALUE,)):
            return None
        headers = tuple(name.removeprefix(_HEADER) for name in members if name not in _OWN)
        value = _VALUE in members or self._image is not None
        return Wanted(value, key="key" in members, times="timestamp" in members, headers=headers)

    def finish(self) -> None:
        """What C has filled, into the rows that Python has not."""
        filled = self.filled
        if filled is None:
            return
        columns: dict[str, Any] = {**filled.texts(), **_times(filled)}
        if self._image is not None:  # the value
            views = columns[_VALUE] = filled.values.views()
            self.payloads = views if filled.whole else merged(views, self.payloads)
        else:
            nothing = [_NOTHING if there else None for there in filled.where().tolist()]
            self.payloads = merged(nothing, self.payloads)
            if filled.wanted.value:
                columns[_VALUE] = filled.values
        for full, name in (_in_full(self._members) or {}).items():
            self._put(name, full, columns[full])

    def _put(self, name: str, full: str, found: Any) -> None:
        """What C has found of a member; Python's rows have copies of their own."""
        del full
        whole = isinstance(found, Pieces) and self.filled is not None and self.filled.whole
        self._fields[name] = found if whole else merged(found, self._fields[name])

    def take(self, row: int, message: Message) -> None:
        """A record into its row: the value is copied into the slab, once, where it is asked for."""
        headers: Any = (message.headers() if self._wants_headers else None) or ()
        known: dict[Any, Any] = dict(headers)
        self.payloads[row] = _NOTHING
        if self._image is not None:
            found = self._found(row, message, known, self._image)
            if isinstance(found, memoryview):
                self.payloads[row] = found
            else:
                self.faults.setdefault(row, f"the record has no member {';'.join(self._image)} with an image")
        for name, parts in self._asked.items():
            self._fields[name][row] = self._found(row, message, known, parts)

    def columns(self) -> dict[str, Any]:
        """The members that are no payload."""
        return dict(self._fields)

    def _found(self, row: int, message: Message, headers: dict[Any, Any], names: tuple[str, ...]) -> Any:
        """The foremost of the members that the record has; None where it has none."""
        for name in names:
            found: Any
            if name == _VALUE:
                found = self._value(row, message, headers)
            elif name == "key":
                found = message.key()
            elif name == "timestamp":
                found = message.timestamp()[1]
            elif name == _ALL:
                found = {each: text for each, text in headers.items() if each.__class__ is str}
            else:
                found = headers.get(name.removeprefix(_HEADER))
            if found is not None:
                return memoryview(found) if found.__class__ is bytes else found  # a view, as of the value
        return None

    def _value(self, row: int, message: Message, known: dict[Any, Any]) -> memoryview | None:
        """The value, copied into the slab once for all members that it is; kept beside the headers."""
        if _COPIED not in known:
            value = message.value()
            known[_COPIED] = self._copied(value) if value else self._elsewhere(row, message)
        found: memoryview | None = known[_COPIED]
        return found

    def _elsewhere(self, row: int, message: Message) -> memoryview | None:
        """The value of a record that has an empty one, or none."""
        found = value_of(self._claims, message, self._lease)
        if isinstance(found, str):
            self.faults[row] = found
            return None
        return found

    def _copied(self, value: bytes | bytearray | str) -> memoryview:
        data = value.encode() if isinstance(value, str) else value
        view = self._room(len(data))
        view[:] = data
        return view


class _PlainRows(MemberRows):
    """The fast way, for no image and each member by one name: values are pieces."""

    def __init__(self, asked: Asked, n: int, lease: Lease, claims: Follows = UNTOLD) -> None:
        super().__init__(asked, n, lease, claims)
        self._plain = {full: self._fields[name] for full, name in (_in_full(asked.members) or {}).items()}
        self._values = Filling(n, lease) if _VALUE in self._plain else None
        self._of_c: Pieces | None = None  # the values that C has copied
        self._keys, self._times = self._plain.get("key"), self._plain.get("timestamp")

    def take(self, row: int, message: Message) -> None:
        """What the record itself has."""
        self.payloads[row] = _NOTHING
        if self._values is not None:
            if value := message.value():
                self._values.copy(row, value)
            else:
                self._values.keep(row, self._elsewhere(row, message))
        if self._wants_headers:
            headers: Any = message.headers()
            for name, text in headers or ():
                if (texts := self._plain.get(_HEADER + name)) is not None:
                    texts[row] = text  # the last one counts
        if self._keys is not None:
            self._keys[row] = message.key()
        if self._times is not None:
            self._times[row] = message.timestamp()[1]

    def _put(self, name: str, full: str, found: Any) -> None:
        if full == _VALUE:
            self._of_c = found
        else:
            super()._put(name, full, found)

    def _pieces(self, values: Filling) -> Pieces:
        """C's, and those that Python has copied."""
        found = self._of_c
        if found is None:
            return values.pieces()
        if values:
            own = values.pieces()
            for row in np.flatnonzero(~own.missing).tolist():
                found[row] = own[row]
        return found

    def columns(self) -> dict[str, Any]:
        """The members."""
        if self._values is None:
            return dict(self._fields)
        values = self._pieces(self._values)
        return {name: values if parts == (_VALUE,) else self._fields[name] for name, parts in self._asked.items()}


def _in_full(members: tuple[str, ...]) -> dict[str, str] | None:
    """Members by what they are, headers by their full names; None if one has alternatives, or two are the same."""
    found = {}
    for name in members:
        parts = alternatives(name)
        own = parts[0] in _OWN or parts[0].startswith(_HEADER)
        found[parts[0] if own else _HEADER + parts[0]] = name
        if len(parts) > 1:
            return None
    return found if len(found) == len(set(members)) and _ALL not in found else None


def _times(filled: Filled) -> dict[str, list[int | None]]:
    """Of the rows that C has filled."""
    if filled.times is None:
        return {}
    there = zip(filled.where().tolist(), filled.times.tolist(), strict=True)
    return {"timestamp": [time if taken else None for taken, time in there]}


class Seen:
    """Which members some records have, and what a format finds in their values. It takes records as rows do."""

    def __init__(self, form: Format | None = None) -> None:
        self._form, self._records = form, 0
        self._sizes: dict[str, list[int]] = {}

    def take(self, row: int, message: Message) -> None:
        """Note what a record has."""
        self._records += 1
        headers: Any = message.headers() or ()
        own = {"value": message.value(), "key": message.key()}
        there = {name: value for name, value in own.items() if value is not None}
        hidden = _OWN if self._form is None else ()
        named = {
            f"{_HEADER}{name}" if self._form is not None or name in hidden else name: value for name, value in headers
        }
        for name, value in {**there, "timestamp": b"", **named, **self._inside(there.get("value"))}.items():
            self._sizes.setdefault(name, []).append(len(value or b""))

    def _inside(self, value: Any) -> dict[str, Any]:
        """What the format finds in a value; nothing where it cannot be parsed. A number or a list has no size."""
        if self._form is None or value is None:
            return {}
        try:
            found = self._form.members(value)
        except Exception:  # noqa: BLE001 - a format may raise anything; the record's reader will say so
            return {}
        return {name: each if isinstance(each, bytes | memoryview) else b"" for name, each in found.items()}

    def members(self) -> tuple[Member, ...]:
        """In the order value, key, timestamp, then headers by name."""
        order = {name: k for k, name in enumerate(_OWN)}
        return tuple(
            Member(name, len(sizes) / self._records, round(sum(sizes) / len(sizes)))
            for name, sizes in sorted(self._sizes.items(), key=lambda item: (order.get(item[0], 3), item[0]))
        )
