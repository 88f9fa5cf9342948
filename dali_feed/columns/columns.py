"""A source whose fields are columns: another source's members, each made by its kind as it is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dali_feed.columns.array import Array, Room
from dali_feed.columns.column import Faults, Follower, Kind
from dali_feed.columns.image import FurtherImage, Image, drawn_as
from dali_feed.errors import BadRecordError, ConfigError, DaliFeedError, FormatError
from dali_feed.options import Decode
from dali_feed.plan.order import canonical
from dali_feed.records.live import LiveBlock, LiveReader, Pace, PassingOn, Positions
from dali_feed.records.source import Block, Extents, Members, Reader, Slabs, Snapshot, Source

__all__ = ["Columnar", "Late", "LiveColumnar", "attempt", "with_columns"]


# Kinds that are made late: of a record's bytes, by threads of the engine, when its batch is run.


class Late(Kind):
    """A kind whose `read` keeps bytes, of which `made` makes a value. It follows no image, and is never `open`.

    A record that is in no batch, such as one that is read to stand in for others, costs no call.
    """

    @property
    def late(self) -> bool:
        """Whether anything is left to make."""
        return True

    def made(self, data: memoryview) -> Any:
        """The value, of bytes in memory of their own: it may be a view of them. Called by many threads at once.

        What it raises makes the record a bad one, but for errors that speak of no record (see `attempt`).
        """
        raise NotImplementedError


def attempt(kind: Late, data: memoryview) -> tuple[Any, str]:
    """What is made of a record's bytes; or None, and why its record is a bad one.

    Errors of ours that speak of no record go on, and so does what is no Exception, such as KeyboardInterrupt.
    """
    try:
        return kind.made(data), ""
    except Exception as error:
        if isinstance(error, DaliFeedError) and not isinstance(error, BadRecordError | FormatError):
            raise
        return None, f"{type(error).__name__}: {error}"


_LOOKED_AT = 64  # records, for the first that a kind can be settled by


class Columnar:
    """`source`'s records with columns for fields. The first image column, where there is one, is the payload.

    columns   name -> kind, in the order of a batch: `given`
    as_tuple  whether a batch is a tuple of them, not a dict
    decode    of images behind the first
    images    the image columns, in order
    drawn_as  image column -> the one whose random numbers it takes
    asked     the source as it was given, and the members that it was asked for: the payload, and the fields

    Raises:
        ConfigError: the source cannot name its members, or no record can have one; draws of a column that is no image.
    """

    def __init__(
        self, source: Source, columns: Mapping[str, Kind], *, as_tuple: bool, decode: Decode = Decode()
    ) -> None:
        self.images = {name: kind for name, kind in columns.items() if isinstance(kind, Image)}
        self.drawn_as = drawn_as(self.images)
        if not isinstance(source, Members):
            rule = "a source must list the members of its records"
            msg = f"columns: {rule}; {type(source).__name__} does not; leave columns out"
            raise ConfigError(msg)
        self.image = next(iter(self.images), None)
        self.as_tuple = as_tuple
        self.transform = None if self.image is None else self.images[self.image].transform
        self._names = tuple(columns)
        self.given = dict(columns)
        self._kinds = {
            name: FurtherImage(kind.member, decode) if name in self.images else kind
            for name, kind in columns.items()
            if name != self.image
        }
        self._fields = tuple(name for name in self._kinds if name not in self.images)
        member = None if self.image is None else columns[self.image].member
        members = tuple(dict.fromkeys(kind.member for kind in self._kinds.values()))
        self.asked: tuple[Source, str | None, tuple[str, ...]] = source, member, members
        self._source = source.giving(member, members)
        self._settled: dict[str, Kind] | None = None
        self._settling = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also in a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self._source, name)  # original, commit: where the source has them

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns but images."""
        return self._fields

    @property
    def followers(self) -> dict[str, dict[str, Follower]]:
        """For each image column what is moved with it. ConfigError for a column that follows none."""
        found: dict[str, dict[str, Follower]] = {name: {} for name in self.images}
        for name, kind in self._kinds.items():
            if isinstance(kind, Follower):
                if kind.of not in found:
                    images = ", ".join(map(repr, found)) or None
                    rule = f"{name!r} is changed together with the image column {kind.of!r}, which must be there"
                    msg = f"columns: {rule}; found {images}. Give of="
                    raise ConfigError(msg)
                found[kind.of][name] = kind
        return found

    def called(self, column: str) -> str:
        """An image column in the reason why a record is bad; empty where it is the only one."""
        return f"column {column!r} of member {self.images[column].member!r}: " if len(self.images) > 1 else ""

    @property
    def late(self) -> dict[str, Late]:
        """Columns that are made when their batch is run."""
        return {name: kind for name, kind in self._kinds.items() if isinstance(kind, Late) and kind.late}

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them, in order."""
        return self._names

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The source's."""
        return self._source.snapshot(pin)

    def reader(
        self,
        slabs: Slabs | None = None,
        stop: threading.Event | None = None,
        between: Callable[[Reader], Reader] | None = None,
    ) -> Reader:
        """A reader of the source's, and the kinds behind it; what `between` makes of it stands in its place."""
        reader = self._source.reader(slabs, stop)
        return _Reader(reader if between is None else between(reader), self.kinds)

    def where(self, partition: int, position: int) -> str:
        """As the source has it."""
        return self._source.where(partition, position)

    def kinds(self) -> dict[str, Kind]:
        """The kinds with what the first records tell: those are read once, where a kind leaves something open."""
        with self._settling:
            if self._settled is None:
                self._settled = self._settle()
            return self._settled

    def batch(self, fields: Mapping[str, Any], lanes: int, room: Room | None = None) -> dict[str, Any]:
        """The columns of a batch, of rows of fields, equally many of each lane; `room` is for `Array.laid`."""
        kinds, out = self.kinds(), dict[str, Any]()
        for name, values in fields.items():
            kind = kinds[name]
            if room is not None and isinstance(kind, Array):
                out[name] = kind.laid(values, room)
            else:
                out[name] = kind.of_lanes(values, lanes)
        return out

    def _settle(self) -> dict[str, Kind]:
        """Each by the first record that has its member and is no fault, of the first few in canonical order."""
        if not any(kind.open for kind in self._kinds.values()):
            return self._kinds
        snapshot = self._source.snapshot()
        first = snapshot.located(canonical(snapshot, snapshot.extent)[:1])
        few = Extents(first.partition[:1], first.start[:1], first.stop[:1].clip(max=first.start[:1] + _LOOKED_AT))
        reader = self._source.reader()
        try:
            block = reader.read(few)
            try:
                return self._settled_by(block)
            finally:
                block.lease.release()
        finally:
            reader.close()

    def _settled_by(self, block: Block) -> dict[str, Kind]:
        return {
            name: kind.settled(_first(block, kind.member)) if kind.open else kind for name, kind in self._kinds.items()
        }


def _first(block: Block, field: str) -> Any:
    values = (value for row, value in enumerate(block.fields[field]) if row not in block.faults)
    return next((value for value in values if value is not None), None)


def columns_of(block: Block, its_kinds: Callable[[], Mapping[str, Kind]]) -> Block:
    """A source's block, its members made into columns; its memory is released where that raises."""
    try:
        kinds = its_kinds()
        absent = _absent(block.payloads)
        known: Faults = {**block.faults, **dict.fromkeys(absent, "")}
        fields = {}
        for name, kind in kinds.items():
            faults = dict(known)
            fields[name] = kind.read(block.fields[kind.member], faults)
            for row in faults.keys() - known.keys():
                block.faults.setdefault(row, f"column {name!r} of member {kind.member!r}: {faults[row]}")
    except BaseException:
        block.lease.release()
        raise
    return Block(block.ids, block.payloads, fields, block.lease, block.faults)


def _absent(payloads: Sequence[Any]) -> list[int]:
    """Rows without a payload: seldom any, and to look at each in Python costs more than to know that there are none."""
    if type(None) not in set(map(type, payloads)):
        return []
    return [row for row, payload in enumerate(payloads) if payload is None]


class _Reader(PassingOn):
    """Reads members, and makes of them what their columns keep."""

    def __init__(self, reader: Reader, kinds: Callable[[], dict[str, Kind]]) -> None:
        super().__init__(reader)
        self._kinds = kinds

    def read(self, extents: Extents) -> Block:
        """Of the source's block, its members made into columns; see `records.Reader`."""
        return columns_of(self._reader.read(extents), self._kinds)


def with_columns(
    source: Source,
    columns: Mapping[str, Kind] | Sequence[Kind],
    transform: object = None,
    decode: Decode = Decode(),
    made: type[Columnar] = Columnar,
) -> tuple[Columnar, object]:
    """The source with these columns, a sequence of kinds giving tuples, as `made`; and the image's transform.

    ConfigError for what are no columns, or a transform beside them.
    """
    if transform is not None:
        msg = "transform: with columns=, each column has its own; write Image(member, transform) in columns"
        raise ConfigError(msg)
    as_tuple = not isinstance(columns, Mapping)
    named: dict[str, Kind] = (
        dict(columns) if isinstance(columns, Mapping) else {str(k): kind for k, kind in enumerate(columns)}
    )
    if not named:
        msg = "columns: must name at least one; found none. Leave columns out for images and labels"
        raise ConfigError(msg)
    for name, kind in named.items():
        if not isinstance(kind, Kind):
            msg = f"columns: {name!r} must be a class of dali_feed.columns such as Text('txt'); found {kind!r}"
            raise ConfigError(msg)
    whole = made(source, named, as_tuple=as_tuple, decode=decode)
    return whole, whole.transform


# A stream whose fields are columns: another one's members, each made by its kind as it is polled.


class LiveColumnar(Columnar):
    """As `Columnar`, of a stream: what a kind leaves to the first record is told by the first that is polled."""

    _source: Any  # of LiveSource

    @property
    def pace(self) -> Pace:
        """The source's."""
        found: Pace = self._source.pace
        return found

    def live(self, at: Mapping[str, Any] | None, **how: Any) -> LiveReader:
        """A reader of the source's, and the kinds behind it; see `records.live.LiveSource`."""
        return _LiveReader(self._source.live(at, **how), self)

    def mark(self, position: Positions, *, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
        """The source's."""
        found: dict[str, Any] = self._source.mark(position, rank=rank, world_size=world_size)
        return found

    def merged(self, marks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The source's."""
        found: dict[str, Any] = self._source.merged(marks)
        return found

    def kinds(self) -> dict[str, Kind]:
        """The kinds, with what the first records told. ConfigError before any has come."""
        if self._settled is None:
            if any(kind.open for kind in self._kinds.values()):
                rule = "the dtype or shape of a column is taken from the first record of the stream, and none has come"
                msg = f"columns: {rule}; give dtype= and shape= to the column"
                raise ConfigError(msg)
            self._settled = self._kinds
        return self._settled

    def made(self, block: Block) -> Block:
        """A block of the source's with its members made into columns."""
        if self._settled is None and len(block.ids):
            with self._settling:
                if self._settled is None:
                    self._settled = self._settled_by(block)
        return columns_of(block, self.kinds) if len(block.ids) else block


class _LiveReader(PassingOn):
    """Polls members, and makes of them what their columns keep."""

    def __init__(self, reader: LiveReader, source: LiveColumnar) -> None:
        super().__init__(reader)
        self._source = source

    def poll(self, records: int, size: float, seconds: float) -> LiveBlock:
        """Of the source's block, its members made into columns; see `records.live.LiveReader`."""
        found = self._reader.poll(records, size, seconds)
        return LiveBlock(self._source.made(found.block), found.position, found.generation)

    def commit(self, position: Positions) -> None:
        """The source's."""
        self._reader.commit(position)
