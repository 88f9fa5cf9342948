"""Members of Kafka records: the value, the key, the timestamp and the headers, by name.

`value`, `key` and `timestamp` (milliseconds since 1970, int) are those of the record; any other name is a header's, and
`headers.NAME` is one whose name is `value`, `key` or `timestamp`. Of headers with one name the last counts. With a
format any other name is what the format finds in the value, and headers are `headers.NAME`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from dali_feed.errors import FormatError
from dali_feed.formats.contract import Format, bound
from dali_feed.records.members import Member, alternatives
from dali_feed.records.source import Lease

__all__ = ["Asked", "MemberRows", "Seen", "in_value"]

_OWN = ("value", "key", "timestamp")
_HEADER = "headers."
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Asked:
    """The members that a source is to give: one as payloads, others as fields."""

    image: str | None
    members: tuple[str, ...]
    form: Format | None = None


def in_value(name: str) -> bool:
    """Whether a format finds the member: it is none of the record's own, and no header by its full name."""
    return name not in _OWN and not name.startswith(_HEADER)


class MemberRows:
    """Columns of members that are being filled. See `kafka_records.Rows`."""

    def __init__(self, asked: Asked, n: int, lease: Lease) -> None:
        self.payloads: list[memoryview | None] = [None] * n
        self.faults: dict[int, str] = {}
        self._room = lease.room
        self._image = None if asked.image is None else alternatives(asked.image)
        self._asked = {name: alternatives(name) for name in asked.members}
        self._fields: dict[str, list[Any]] = {name: [None] * n for name in asked.members}
        names = {part for parts in (self._image or (), *self._asked.values()) for part in parts}
        inside = [name for name in sorted(names) if asked.form is not None and in_value(name)]
        self._inside = tuple(inside)
        self._parse = None if asked.form is None or not inside else bound(asked.form, inside)
        self._wants_headers = bool(names.difference(_OWN, inside))
        self._plain = _plain(self._asked, self._fields) if self._image is None and not inside else None

    def take(self, row: int, message: Message) -> None:
        """A record into its row: the value is copied into the slab, once, where it is asked for."""
        if self._plain is not None:
            self._take_plain(row, message, self._plain)
            return
        headers: Any = (message.headers() if self._wants_headers else None) or ()
        known = dict(headers)
        self.payloads[row] = _NOTHING
        if self._parse is not None and not self._parsed(row, message, known):
            return
        if self._image is not None:
            found = self._found(message, known, self._image)
            if isinstance(found, memoryview):
                self.payloads[row] = found
            elif isinstance(found, bytes | bytearray):
                self.payloads[row] = self._copied(found)
            else:
                self.faults[row] = f"the record has no member {';'.join(self._image)} with an image"
        for name, parts in self._asked.items():
            self._fields[name][row] = self._found(message, known, parts)

    def _take_plain(self, row: int, message: Message, plain: dict[str, list[Any]]) -> None:
        """The fast way: what the record itself has, each by one name."""
        self.payloads[row] = _NOTHING
        if (values := plain.get("value")) is not None and (value := message.value()) is not None:
            view = values[row] = self._room(len(value))
            view[:] = value
        if self._wants_headers:
            headers: Any = message.headers()
            for name, text in headers or ():
                if (texts := plain.get(_HEADER + name)) is not None:
                    texts[row] = text  # the last one counts
        if (keys := plain.get("key")) is not None:
            keys[row] = message.key()
        if (times := plain.get("timestamp")) is not None:
            times[row] = message.timestamp()[1]

    def columns(self) -> dict[str, Any]:
        """The members that are no payload."""
        return dict(self._fields)

    def _parsed(self, row: int, message: Message, known: dict[str, Any]) -> bool:
        """Put what the value holds beside the headers; False, and a fault, where that cannot be had."""
        value = message.value()
        if value is None:
            self.faults[row] = "the record has no value (a tombstone)"
            return False
        try:
            known.update(zip(self._inside, self._parse(self._copied(value)), strict=True))  # type: ignore[misc]
        except FormatError as error:
            self.faults[row] = str(error)
            return False
        return True

    def _found(self, message: Message, headers: dict[str, Any], names: tuple[str, ...]) -> Any:
        """The foremost of the members that the record has; None where it has none."""
        for name in names:
            found: Any
            if name == "value":
                value = message.value()
                found = None if value is None else self._copied(value)
            elif name == "key":
                found = message.key()
            elif name == "timestamp":
                found = message.timestamp()[1]
            else:
                found = headers.get(name) if name in self._inside else headers.get(name.removeprefix(_HEADER))
            if found is not None:
                return found
        return None

    def _copied(self, value: bytes | bytearray | str) -> memoryview:
        data = value.encode() if isinstance(value, str) else value
        view = self._room(len(data))
        view[:] = data
        return view


def _plain(asked: dict[str, tuple[str, ...]], fields: dict[str, list[Any]]) -> dict[str, list[Any]] | None:
    """The column of each member, headers by their full names; None where one has alternatives, or two are the same."""
    found = {}
    for name, parts in asked.items():
        own = parts[0] in _OWN or parts[0].startswith(_HEADER)
        found[parts[0] if own else _HEADER + parts[0]] = fields[name]
    return found if len(found) == len(asked) and all(len(parts) == 1 for parts in asked.values()) else None


class Seen:
    """Which members some records have. It takes records as rows do."""

    def __init__(self) -> None:
        self._records = 0
        self._sizes: dict[str, list[int]] = {}

    def take(self, row: int, message: Message) -> None:
        """Note what a record has."""
        self._records += 1
        headers: Any = message.headers() or ()
        own = {"value": message.value(), "key": message.key()}
        there = {name: value for name, value in own.items() if value is not None}
        named = {f"{_HEADER}{name}" if name in _OWN else name: value for name, value in headers}
        for name, value in {**there, "timestamp": b"", **named}.items():
            self._sizes.setdefault(name, []).append(len(value or b""))

    def members(self) -> tuple[Member, ...]:
        """In the order value, key, timestamp, then headers by name."""
        order = {name: k for k, name in enumerate(_OWN)}
        return tuple(
            Member(name, len(sizes) / self._records, round(sum(sizes) / len(sizes)))
            for name, sizes in sorted(self._sizes.items(), key=lambda item: (order.get(item[0], 3), item[0]))
        )
