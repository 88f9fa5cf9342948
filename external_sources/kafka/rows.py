"""Kafka records as rows of a block: what is made of each, by C for the usual ones and by Python for all others.

Both give the same rows and the same errors. The fast way copies the value, and a header is the label: one copy, by C
or by memoryview slice (a numpy slice releases the interpreter lock for each record and waits for it again). A codec of
the user's costs what it costs; what it raises is a fault of that record.

Members are the value, the key, the timestamp and the headers, by name. `value`, `key` and `timestamp` (milliseconds
since 1970, int) are those of the record; any other name is a header's, and `headers.NAME` is one whose name is `value`,
`key` or `timestamp`; `headers.*` are all of them, as a dict. Of headers with one name the last counts. With a format of
the value any other name is what the format finds there (`formatted.py`), and headers are `headers.NAME`.

The laws of what C fills: what rows are asked for is said beforehand, and what C leaves out, as a record without a value
or with a label that is no plain number, is taken by the rows in Python, with their words for what is wrong. No read
fails, and no slab is held, for memory that was only expected: what the lease gave ahead and C has not come to goes back
before more is asked of the lease, before Python takes records itself, and at the end of the read.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import KafkaError, Message
from numpy.typing import NDArray

from dali_feed.bad_records import place_of
from dali_feed.external_sources.kafka.claims import Claims, value_of, weight_of
from dali_feed.formats.format import Format
from dali_feed.native.kafka import MOST_HEADERS, NO_HEADER, MemoryInC, RowsInC, address
from dali_feed.records.extents import pack_ids
from dali_feed.records.pieces import Filling, Pieces
from dali_feed.records.source import LABEL, Block, Lease, Member, Slabs, alternatives

__all__ = [
    "LABEL",
    "CellsWanted",
    "Codec",
    "Decoding",
    "Event",
    "Filled",
    "KafkaParts",
    "OffsetRun",
    "Taken",
    "TopicMembers",
    "by_path",
]


@dataclass(slots=True)
class OffsetRun:
    """The offsets want..stop-1 of a partition are still to come; a record's row is its offset + shift.

    take      puts a record into its row; what is kept of it is copied
    filled    what C fills of these rows; None where they are read by message
    received  bytes of the records that came
    end_seen  where the partition has ended too early, since the last record
    refused   the last offset that the broker said it does not have
    """

    partition: int
    want: int
    stop: int
    shift: int
    take: Callable[[int, Message], None]
    filled: Filled | None = None
    received: int = 0
    end_seen: int | None = None
    refused: int = -1


class Event(NamedTuple):
    """What is no record: an error, or the end of a partition, and where."""

    error: KafkaError
    partition: int | None
    offset: int | None


_MOST_AHEAD = 8  # slabs: records may have become small, and to ask C once per so many costs nothing


class SlabsForC:
    """Pieces of a lease's slabs, in the order in which C is to fill them; a piece's number is its place in `pieces`.

    told  what C is told of them
    """

    def __init__(self, told: RowsInC, lease: Lease) -> None:
        self._told, self._lease = told, lease
        self.pieces: list[memoryview] = []
        self._ahead: dict[int, memoryview] = {}  # number -> those that the lease gave ahead
        self._next: list[MemoryInC] = []  # as C was told of them: it has gone through the first ones

    def take_ahead(self, rows: int, row_bytes: int) -> None:
        """For so many rows, each of so many bytes. A record that no longer fits leaves half of a slab at most."""
        slab = self._lease.slab_bytes
        if 0 < row_bytes <= slab // 2:
            whole, rest = divmod(rows, slab // row_bytes)
            size = min(whole * slab + rest * row_bytes, _MOST_AHEAD * slab)
            line = [self._numbered(view) for view in self._lease.ahead(size)]
            self._ahead = {each.number: self.pieces[each.number] for each in line}
            self._line_up(line)

    def grow(self, need: int, expected: int) -> None:
        """Another piece for the next records, the first of them of `need` bytes, all of them of `expected`.

        It is a slab at most: what does not fit into the rest of one goes into the next, so that a lease is as well
        filled as by message. A large record leaves the rest of its slab to those behind it.
        """
        told, spare, slab = self._told, self._spare(), self._lease.slab_bytes
        fits = next((k for k, each in enumerate(spare) if each.room >= need), None)
        if fits is None:
            self.give_back()  # or they count against what one lease may take
            now, spare = self._numbered(self._lease.room(max(need, min(slab, expected)))), self._spare()
        else:
            now, spare = spare[fits], [*spare[fits + 1 :], *spare[:fits]]
        if need > slab // 2 and told.filled < told.room:
            spare.insert(0, self._numbered(self.pieces[told.number][told.filled : told.room]))
        self._line_up(spare)
        told.memory, told.room, told.number, told.filled = now.at, now.room, now.number, 0

    def give_back(self, filled: int = 0) -> None:
        """To the lease what it gave ahead and C has not come to; `filled` bytes are in the others."""
        unused = {each.number for each in self._spare()} & self._ahead.keys()
        self._lease.back([self._ahead.pop(number) for number in unused], filled)
        self._line_up([each for each in self._spare() if each.number not in unused])

    def settle(self) -> None:
        """All records have come: what was taken in vain goes back."""
        unused = {each.number for each in self._spare()}
        filled = sum(len(view) for number, view in self._ahead.items() if number not in unused)
        if self._told.number in self._ahead:
            filled -= self._told.room - self._told.filled
        self.give_back(filled)

    def _numbered(self, piece: memoryview) -> MemoryInC:
        self.pieces.append(piece)
        return MemoryInC(address(piece), len(piece), len(self.pieces) - 1)

    def _spare(self) -> list[MemoryInC]:
        """Those that C has not come to."""
        return self._next[len(self._next) - self._told.spare :]

    def _line_up(self, line: list[MemoryInC]) -> None:
        self._next = line
        self._told.next, self._told.spare = (MemoryInC * len(line))(*line), len(line)


@dataclass(frozen=True, slots=True)
class CellsWanted:
    """What of each record is asked for, of headers with one name the last.

    label  a header with a number in decimal digits
    """

    value: bool
    key: bool = False
    times: bool = False
    headers: tuple[str, ...] = ()
    label: str | None = None

    def fits(self) -> bool:
        """Whether C can be asked for it."""
        names = "".join([*self.headers, *(() if self.label is None else (self.label,))])
        if len(self.headers) > MOST_HEADERS or "\0" in names:
            return False
        try:
            names.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which no header has
            return False
        return True


class Filled:
    """Rows that have nothing yet. `told` is for C.

    row_bytes  that C put into a row of the read before, or 0: so much memory is taken for all rows at once
    """

    def __init__(self, wanted: CellsWanted, rows: int, lease: Lease, row_bytes: int = 0) -> None:
        self.wanted, self._rows, self._row_bytes = wanted, rows, row_bytes
        columns = wanted.value + wanted.key + len(wanted.headers)
        lines = 3 * columns + (wanted.label is not None) + wanted.times
        numbers = np.zeros((lines, rows), np.int64)  # one array, of which C is told by one address
        self._cells = numbers[: 3 * columns].reshape(3, columns, rows)
        self._cells[0] = NO_HEADER
        self.taken = np.zeros(rows, np.uint8)
        self.labels = None if wanted.label is None else numbers[3 * columns]
        self.times = numbers[-1] if wanted.times else None
        self._begun = self._left_out = False  # whether C has been asked, and whether Python has taken any all the same
        names = [name.encode() for name in wanted.headers]
        self._names = (ctypes.c_char_p * len(names))(*names)
        self._label = None if wanted.label is None else ctypes.c_char_p(wanted.label.encode())
        self.told = RowsInC(rows=rows, headers=len(names), wants_value=wanted.value, wants_key=wanted.key)
        first, line = address(numbers), numbers.strides[0]
        self.told.of, self.told.at, self.told.size = (first + k * columns * line for k in range(3))
        self.told.names = ctypes.cast(self._names, ctypes.c_void_p)
        self.told.label = None if self._label is None else ctypes.cast(self._label, ctypes.c_void_p)
        self.told.labels = None if self.labels is None else first + 3 * columns * line
        self.told.times = None if self.times is None else first + (lines - 1) * line
        self.told.taken = address(self.taken)
        self._memory = SlabsForC(self.told, lease)

    def begin(self, shift: int) -> None:
        """C is asked now, for rows that are offset + shift."""
        self.told.shift = shift
        if not self._begun:
            self._begun = True
            self._memory.take_ahead(self._rows, self._row_bytes)

    def grow(self, need: int) -> None:
        """More memory, for all rows that are left: as large as those before, the next of `need` bytes."""
        there = int(np.count_nonzero(self.taken))
        known = int(self._cells[2].sum()) // there if there else 0
        self._memory.grow(need, max(need, known) * (self._rows - there))

    def settle(self) -> int:
        """All records have come: what was taken in vain goes back. Bytes of a row, for the read behind this one."""
        self._memory.settle()
        return int(self._cells[2].sum()) // max(1, self._rows)

    @property
    def whole(self) -> bool:
        """Whether Python has taken none."""
        return self._begun and not self._left_out

    def leave_out(self, rows: int | slice) -> None:
        """Python takes these, with memory of its own from the lease."""
        self.taken[rows], self._left_out = 0, True
        if self.told.spare:
            self._memory.give_back()

    def _column(self, number: int) -> Pieces:
        of, at, size = self._cells[:, number]
        memories = self._memory.pieces or [_NOTHING]  # where all that was taken is of no bytes
        return Pieces(memories, np.where(self.taken, of, NO_HEADER), at, size)

    @property
    def values(self) -> Pieces:
        """Of the rows that were taken; the others have none."""
        return self._column(0)

    def texts(self) -> dict[str, Pieces]:
        """Key, as `key`, and headers, as `headers.NAME`; none where a record has none."""
        names = [*(["key"] if self.wanted.key else []), *(f"headers.{name}" for name in self.wanted.headers)]
        first = int(self.wanted.value)
        return {name: self._column(first + k) for k, name in enumerate(names)}

    def where(self) -> NDArray[np.bool_]:
        """Which rows were taken."""
        return self.taken.astype(bool)


def merged(filled: Iterable[Any], rows: list[Any]) -> list[Any]:
    """What C has filled, and in the other rows what Python has."""
    return [mine if its is None else its for its, mine in zip(filled, rows, strict=True)]


Codec = Callable[[memoryview, bytes | None, list[tuple[str, bytes]]], Mapping[str, Any]]

_INT64 = 1 << 63
_NOTHING = memoryview(b"")
_TOMBSTONE = "a record must hold an image; this one is a tombstone (no value)"


@dataclass(frozen=True, slots=True)
class Decoding:
    """What is made of each record; `KafkaTopic` documents the values.

    asked   members in the place of image and fields
    claims  where values may lie that are elsewhere; None: nobody said
    """

    label: str | None = None
    codec: Codec | None = None
    fields: tuple[str, ...] = ()
    asked: KafkaParts | None = None
    claims: Claims | None = None

    @property
    def weigh(self) -> Callable[[Message], int]:
        """A function of a record: the bytes of its payload, wherever that lies."""
        return len if self.claims is None else weight_of

    def weigher(self) -> Callable[[Message], int]:
        """A function of a record: how many bytes of it are kept where it is read, with what its claim says."""
        weigh = self.weigh
        if self.asked is None or self.asked.image is not None:
            return weigh
        names = {part for name in self.asked.members for part in alternatives(name)}
        value, key, every = _VALUE in names, "key" in names, _ALL in names
        headers = {name.removeprefix(_HEADER) for name in names.difference(_OWN)}

        def weighed(message: Message) -> int:
            size = weigh(message) if value else 0
            size += len(message.key() or b"") if key else 0
            pairs: Any = (message.headers() if headers else None) or ()
            return size + sum(len(text or b"") for name, text in pairs if every or name in headers)

        return weighed

    def rows(self, n: int, lease: Lease) -> Cells:
        """Empty columns of n rows, whose payloads will lie in `lease`."""
        asked, claims = self.asked, self.claims
        if asked is None:
            if self.codec is not None:
                return _Coded(self.codec, self.fields, n, lease, claims)
            return _Plain(self.label, n, lease, claims)
        members = _in_full(asked.members)
        if members is None or asked.image not in (None, _VALUE):
            return _Alternatives(asked, n, lease, claims)
        return _Direct(members, n, lease, claims, image=asked.image is not None)


class Cells:
    """Rows that are being filled.

    payloads  the images, by row
    faults    why a row has none
    filled    what C fills, or None where it fills nothing
    """

    def __init__(self, n: int, lease: Lease, claims: Claims | None) -> None:
        self.payloads: list[memoryview | None] = [None] * n
        self.faults: dict[int, str] = {}
        self.filled: Filled | None = None
        self._room, self._lease, self._claims = lease.room, lease, claims

    def wanted(self) -> CellsWanted | None:
        """What C is to copy of each record; None: all is Python's."""
        return None

    def take(self, row: int, message: Message) -> None:
        """Copy a record into its row."""
        raise NotImplementedError

    def finish(self) -> None:
        """All records have come: to be called before `payloads` and `columns` are looked at."""

    def columns(self) -> dict[str, Any]:
        """What there is beside the image."""
        raise NotImplementedError

    def _elsewhere(self, row: int, message: Message) -> memoryview | None:
        """Of a record that has an empty value, or none."""
        found = value_of(self._claims, message, self._lease)
        if isinstance(found, str):
            self.faults[row] = found
            return None
        return found


class _Plain(Cells):
    """value = image, one header = label."""

    def __init__(self, header: str | None, n: int, lease: Lease, claims: Claims | None) -> None:
        super().__init__(n, lease, claims)
        self._label = header
        self._labels = [0] * n

    def wanted(self) -> CellsWanted:
        """The value, and the header's number."""
        return CellsWanted(value=True, label=self._label)

    def take(self, row: int, message: Message) -> None:
        """See `Cells`."""
        if value := message.value():
            view = self._room(len(value))
            view[:] = value
            self.payloads[row] = view
        elif (found := self._elsewhere(row, message)) is not None:
            self.payloads[row] = found
        else:
            self.payloads[row] = _NOTHING
            self.faults.setdefault(row, _TOMBSTONE)
            return
        if self._label is None:
            return
        label: Any = _ABSENT
        headers: Any = message.headers()
        for name, text in headers or ():
            if name == self._label:
                label = text  # the last one counts, as Kafka's lastHeader has it
        if label.__class__ is bytes and label.isdigit() and len(label) < 19:
            self._labels[row] = int(label)
        else:
            self._odd_label(row, label)

    def _odd_label(self, row: int, found: Any) -> None:
        if found is _ABSENT:
            self.faults[row] = f"header {self._label}: a decimal number is needed; the record has no such header"
            return
        if isinstance(found, bytes) and found.removeprefix(b"-").isdigit() and len(found) <= 20:
            number = int(found)
            if -_INT64 <= number < _INT64:
                self._labels[row] = number
                return
        shown = found if found is None or len(found) <= 40 else found[:40] + b"..."
        self.faults[row] = f"header {self._label}: a decimal number is needed; found {shown!r}"

    def finish(self) -> None:
        """See `Cells`."""
        filled = self.filled
        if filled is not None:
            views = filled.values.views()
            self.payloads = views if filled.whole else merged(views, self.payloads)

    def columns(self) -> dict[str, Any]:
        """See `Cells`."""
        if self._label is None:
            return {}
        filled = self.filled
        if filled is None or filled.labels is None:
            return {LABEL: np.array(self._labels, np.int64)}
        if filled.whole:
            return {LABEL: filled.labels}
        return {LABEL: np.where(filled.where(), filled.labels, np.array(self._labels, np.int64))}


class _Direct(Cells):
    """Members by one name each, and no image but the value.

    Args:
        members: by what they are in full.
        image: whether the value is one.
    """

    def __init__(self, members: dict[str, str], n: int, lease: Lease, claims: Claims | None, *, image: bool) -> None:
        super().__init__(n, lease, claims)
        self._members, self._image = members, image
        self._values = Filling(n, lease) if image or _VALUE in members else None
        self._parts: dict[str, Any] = {full: [None] * n for full in members if full != _VALUE}
        self._texts = {full.removeprefix(_HEADER): each for full, each in self._parts.items() if full not in _OWN}
        self._keys, self._times = self._parts.get("key"), self._parts.get("timestamp")

    def wanted(self) -> CellsWanted:
        """All of it."""
        value, key, times = (each is not None for each in (self._values, self._keys, self._times))
        return CellsWanted(value, key, times, tuple(self._texts))

    def take(self, row: int, message: Message) -> None:
        """See `Cells`."""
        self.payloads[row] = _NOTHING
        if self._values is not None:
            if value := message.value():
                self._values.copy(row, value)
            else:
                view = self._elsewhere(row, message)
                self._values.keep(row, view)
                if view is None and self._image:
                    self.faults.setdefault(row, _TOMBSTONE)
        if self._texts:
            headers: Any = message.headers()
            for name, text in headers or ():
                if (texts := self._texts.get(name)) is not None:
                    texts[row] = text  # the last one counts
        if self._keys is not None:
            self._keys[row] = message.key()
        if self._times is not None:
            self._times[row] = message.timestamp()[1]

    def finish(self) -> None:
        """What C has filled, and in the other rows what Python has."""
        filled = self.filled
        whole = filled is not None and filled.whole
        values = None if self._values is None or whole else self._values.pieces()
        if filled is not None:
            for full, its in {**filled.texts(), **_times(filled)}.items():
                self._parts[full] = its if whole and isinstance(its, Pieces) else merged(its, self._parts[full])
            if self._values is not None:
                values = filled.values if values is None else _both(filled.values, values)
        if self._image and values is not None:
            views = values.views()
            self.payloads = views if whole else merged(views, self.payloads)
        elif filled is not None:
            nothing = [_NOTHING if there else None for there in filled.where().tolist()]
            self.payloads = merged(nothing, self.payloads)
        self._parts[_VALUE] = values

    def columns(self) -> dict[str, Any]:
        """See `Cells`."""
        return {name: self._parts[full] for full, name in self._members.items()}


def _both(values: Pieces, own: Pieces) -> Pieces:
    """C's values, and those that Python has copied."""
    for row in np.flatnonzero(~own.missing).tolist():
        values[row] = own[row]
    return values


_ABSENT = object()  # no header of that name (None is a header without a value)


class _Coded(Cells):
    """What the user's codec makes of a record."""

    def __init__(self, codec: Codec, fields: tuple[str, ...], n: int, lease: Lease, claims: Claims | None) -> None:
        super().__init__(n, lease, claims)
        self._codec = codec
        self._values: dict[str, list[Any]] = {name: [0 if name == LABEL else None] * n for name in fields}

    def take(self, row: int, message: Message) -> None:
        """Copy a record into its row; where the codec fails, its whole value, so that it can be looked at."""
        value: Any = message.value()
        if not value:
            value = value_of(self._claims, message, self._lease)
        if not isinstance(value, bytes | memoryview):
            self.payloads[row], self.faults[row] = _NOTHING, value or _TOMBSTONE
            return
        try:
            headers: Any = message.headers() or []
            key = message.key()
            parts = self._codec(memoryview(value), key, headers)
            image = memoryview(parts["image"]).cast("B")
            values = {name: parts[name] for name in self._values}
            if LABEL in values:
                values[LABEL] = _int64(values[LABEL])
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises is about this record
            image = memoryview(value)
            said = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
            place = place_of(error, self._codec)
            self.faults[row] = f"codec: {type(error).__name__}: {said}{f', at {place}' if place else ''}"
        else:
            for name, column in self._values.items():
                column[row] = values[name]
        view = self._room(len(image))
        view[:] = image
        self.payloads[row] = view

    def columns(self) -> dict[str, Any]:
        """The fields beside the image."""
        return {k: np.array(v, np.int64) if k == LABEL else v for k, v in self._values.items()}


def _int64(value: Any) -> int:
    number = operator.index(value)
    if not -_INT64 <= number < _INT64:
        msg = f"a label must fit in 64 bits; found {number}"
        raise ValueError(msg)
    return number


_VALUE = "value"
_OWN = (_VALUE, "key", "timestamp")
_HEADER = "headers."
_ALL = "headers.*"  # a dict of all headers that a record has
_COPIED = object()  # no header's name


@dataclass(frozen=True, slots=True)
class KafkaParts:
    """The members that a source is to give: one as payloads, others as fields."""

    image: str | None
    members: tuple[str, ...]


def by_path(name: str) -> str:
    """A name in full where the value has a format: `value:body.label`, if it is none of a record's own, nor a header's.

    `key:a` and `value:a` are in full already.
    """
    own = name in _OWN or name.startswith((_HEADER, *(f"{each}:" for each in _OWN)))
    return name if own else f"{_VALUE}:{name}"


class _Alternatives(Cells):
    """Members of which the foremost counts that a record has, all headers as one, or an image that is no value."""

    def __init__(self, asked: KafkaParts, n: int, lease: Lease, claims: Claims | None) -> None:
        super().__init__(n, lease, claims)
        self._image = None if asked.image is None else alternatives(asked.image)
        self._asked = {name: alternatives(name) for name in asked.members}
        self._fields: dict[str, Any] = {name: [None] * n for name in asked.members}
        names = {part for parts in (self._image or (), *self._asked.values()) for part in parts}
        self._wants_headers = bool(names.difference(_OWN))

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

    def _value(self, row: int, message: Message) -> memoryview | None:
        """The value, copied, or what its claim says; None of a tombstone, and with a fault where there is none."""
        if value := message.value():
            data = value.encode() if isinstance(value, str) else value
            view = self._room(len(data))
            view[:] = data
            return view
        return self._elsewhere(row, message)

    def _found(self, row: int, message: Message, headers: dict[Any, Any], names: tuple[str, ...]) -> Any:
        """The foremost of the members that the record has; None where it has none."""
        for name in names:
            found: Any
            if name == _VALUE:
                if _COPIED not in headers:  # once for all members that it is
                    headers[_COPIED] = self._value(row, message)
                found = headers[_COPIED]
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


class TopicMembers:
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


MOST = 4096  # rows, of one block


class Taken:
    """Up to `records` records, copied once into a lease of `slabs`.

    count  how many there are
    size   bytes of their payloads
    weigh  those of one record
    """

    def __init__(self, decoding: Decoding, slabs: Slabs, records: int) -> None:
        self.most = min(records, MOST)
        self.count = self.size = 0
        self.weigh = decoding.weigh
        self._lease = slabs.lease()
        self._partitions: list[int] = []
        self._offsets: list[int] = []
        self._rows = decoding.rows(self.most, self._lease)

    @property
    def full(self) -> bool:
        """Whether there is no row left."""
        return self.count == self.most

    def take(self, partition: int, offset: int, message: Message) -> None:
        """Copy a record into the next row."""
        self._rows.take(self.count, message)
        self._partitions.append(partition)
        self._offsets.append(offset)
        self.count += 1
        self.size += self.weigh(message)

    def block(self) -> Block:
        """The records."""
        n, rows = self.count, self._rows
        rows.finish()
        ids = pack_ids(np.array(self._partitions, np.int64), np.array(self._offsets, np.int64))
        columns = {name: values[:n] for name, values in rows.columns().items()}
        return Block(ids, rows.payloads[:n], columns, self._lease, rows.faults)

    def release(self) -> None:
        """Give the memory back: there will be no block."""
        self._lease.release()
