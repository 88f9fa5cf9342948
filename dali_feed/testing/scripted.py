"""A source in memory whose faults are items in the data.

    source = ScriptedSource([(jpeg, 3), Corrupt(), Gap(), Stall(event, then=(jpeg, 4)), Abort()], partitions=2)

It keeps the whole contract of `dali_feed.records.source.Source`, and says afterwards what was read. Its records have
the members "value", their bytes, and "label", an int, -1 where an item has none.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.columns.image import Image
from dali_feed.columns.number import Number
from dali_feed.errors import ClosedError, ConfigError, SourceError
from dali_feed.records.pieces import Filling, Values
from dali_feed.records.source import (
    LABEL,
    Block,
    Extents,
    Fault,
    Lease,
    Member,
    Reader,
    Snapshot,
    Source,
    unpack_ids,
)

NO_LABEL = -1
VALUE = "value"
GARBAGE = b"\xff\xd8\xff\xe0 this is where a picture should be"
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Corrupt:
    """A record that is no image.

    reason   why the source itself reports it as a fault; None: it is read, and the screen refuses it
    payload  its bytes
    """

    reason: str | None = None
    payload: bytes = GARBAGE


@dataclass(frozen=True, slots=True)
class Gap:
    """A position that is absent."""


@dataclass(frozen=True, slots=True, eq=False)
class Stall:
    """The read waits here.

    event  once it is set, or the reader is stopped, the read goes on
    then   what comes then: bytes, or (bytes, label); None: a gap
    """

    event: threading.Event
    then: bytes | tuple[bytes, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Abort:
    """The read raises.

    exception  what is raised; None: a SourceError with the record's coordinates
    """

    exception: BaseException | None = None


Item = bytes | tuple[bytes, int] | Corrupt | Gap | Stall | Abort


class ScriptedSource(Source):
    """`items`, divided over `partitions` in contiguous parts whose lengths differ by one at most.

    first          position of each partition's first item: above 0 as in a Kafka log that retention has cut
    extent         how many neighbouring positions are read in one go (an extent); None: 8
    random_access  whether a single record is cheap to read, as in `dali_feed.records.source.Snapshot`
    interleaved    as in `dali_feed.records.source.Snapshot`
    name           for messages and coordinates: `name[partition]@position`

    A batch has images of "value", and labels if any item has one.

    Raises:
        ConfigError: fewer than one partition, an extent below 1, or an item of another type.
    """

    def __init__(
        self,
        items: Iterable[Item],
        *,
        partitions: int = 1,
        first: int = 0,
        extent: int | None = None,
        random_access: bool = True,
        interleaved: bool = False,
        name: str = "scripted",
    ) -> None:
        dealt = list(items)
        for k, item in enumerate(dealt):
            if not isinstance(plain_of(item), bytes | Corrupt | Gap | Abort):
                msg = f"ScriptedSource: items must be bytes, (bytes, label) or scripted faults; found {item!r} at {k}"
                raise ConfigError(msg)
        extent = 8 if extent is None else extent
        if partitions < 1 or extent < 1 or first < 0:
            raise ConfigError(
                "ScriptedSource: partitions and extent must be 1 or more and first 0 or more; "
                f"found {partitions}, {extent}, {first}"
            )
        borders = [len(dealt) * p // partitions for p in range(partitions + 1)]
        self._items = [dealt[a:b] for a, b in itertools.pairwise(borders)]
        self._first = first
        self._extent = extent
        self._random_access = random_access
        self._interleaved = interleaved
        self._name = name
        self._labelled = any(label_of(item) is not None for item in dealt)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._reads: list[tuple[int, int, int]] = []
        self._bytes_read = 0

    def __getstate__(self) -> dict[str, Any]:
        """Without what was read: another process reads for itself."""
        return {name: kept for name, kept in self.__dict__.items() if name not in {"_lock", "_reads", "_bytes_read"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        return self._name

    @property
    def preset(self) -> Mapping[str, Any]:
        """Images, and labels if any item has one."""
        images = {"image": Image(VALUE)}
        return images | {LABEL: Number(LABEL)} if self._labelled else images

    def members(self) -> tuple[Member, ...]:
        """The bytes, and the labels if any item has one."""
        sizes = [len(payload_of(plain_of(item))) for items in self._items for item in items]
        value = Member(VALUE, 1.0, round(sum(sizes) / max(1, len(sizes))))
        return (value, Member(LABEL, 1.0, 0)) if self._labelled else (value,)

    @property
    def reads(self) -> list[tuple[int, int, int]]:
        """(partition, start, stop) of every run of positions that any reader began to read, in that order."""
        with self._lock:
            return list(self._reads)

    @property
    def bytes_read(self) -> int:
        """Payload bytes that readers have given out."""
        with self._lock:
            return self._bytes_read

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All items. A pin is a ConfigError: the list already says what this source holds."""
        if pin is not None:
            raise ConfigError(
                f"{self._name}: pin must be None, as the items of a scripted source do not change; found {dict(pin)!r}"
            )
        digest = hashlib.sha256(b"%d" % self._first)
        sizes = []
        for items in self._items:
            digest.update(b"\npartition")
            for item in items:
                plain, label = plain_of(item), label_of(item)
                payload = payload_of(plain)
                sizes.append(len(payload))
                digest.update(f"\n{type(plain).__name__} {label} {len(payload)} ".encode() + payload)
        starts = np.full(len(self._items), self._first, np.int64)
        return Snapshot(
            source=self._name,
            names=tuple(f"{self._name}[{p}]" for p in range(len(self._items))),
            starts=starts,
            stops=starts + np.array([len(items) for items in self._items], np.int64),
            extent=self._extent,
            record_bytes=max(1, round(sum(sizes) / max(1, len(sizes)))),
            random_access=self._random_access,
            interleaved=self._interleaved,
            fingerprint=digest.hexdigest(),
        )

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> ScriptedReader:
        """A reader for one thread; see `dali_feed.records.source.Source`."""
        for name in members:
            if not self.can_have(name):
                raise ConfigError(f"{self._name}: its records have no member {name!r}")
        return ScriptedReader(self, tuple(members), stop or threading.Event())

    def where(self, partition: int, position: int) -> str:
        """`scripted[0]@17`."""
        return f"{self._name}[{partition}]@{position}"


class ScriptedReader(Reader):
    """Copies items into the lease, and does what the faults among them say."""

    def __init__(self, source: ScriptedSource, members: tuple[str, ...], stop: threading.Event) -> None:
        self._source, self._members, self._stop = source, members, stop
        self._closed = False

    def read(self, extents: Extents, lease: Lease) -> Block:
        """The items of `extents`; see `dali_feed.records.source.Reader`.

        Raises:
            ConfigError: an extent that leaves the snapshot.
            ClosedError: the reader is closed or stopped.
            BaseException: whatever an `Abort` says.
        """
        if self._closed:
            raise ClosedError(f"{self._source!r}: this reader is closed; make another one")
        source, ids = self._source, extents.ids()
        absent, faults = np.zeros(len(ids), bool), dict[int, Fault]()
        labels, values = np.full(len(ids), NO_LABEL, np.int64), Filling(len(ids), lease)
        filled = 0
        with source._lock:
            columns = (extents.partition, extents.start, extents.stop)
            source._reads += zip(*(column.tolist() for column in columns), strict=True)
        for row, (partition, position) in enumerate(zip(*(c.tolist() for c in unpack_ids(ids)), strict=True)):
            item = self._item(partition, position)
            self._act(item, partition, position)
            plain, label = plain_of(item), label_of(item)
            if label is not None:
                labels[row] = label
            if isinstance(plain, Gap):
                absent[row] = True
            elif VALUE in self._members:
                payload = payload_of(plain)
                values.keep(row, copied(payload, lease))
                filled += len(payload)
            if isinstance(plain, Corrupt) and plain.reason is not None:
                faults[row] = Fault("source", plain.reason)
        with source._lock:
            source._bytes_read += filled
        both: dict[str, Values] = {VALUE: values.pieces(), LABEL: labels}
        chosen = {name: both[name] for name in self._members}
        return Block(ids, chosen, lease, faults, absent if absent.any() else None)

    def close(self) -> None:
        """Safe to call twice."""
        self._closed = True

    def _item(self, partition: int, position: int) -> Item:
        items = self._source._items
        row = position - self._source._first
        if partition >= len(items) or not 0 <= row < len(items[partition]):
            msg = f"{self._source.where(partition, position)}: reads must lie inside the snapshot; this one does not"
            raise ConfigError(msg)
        return items[partition][row]

    def _act(self, item: Item, partition: int, position: int) -> None:
        where = self._source.where(partition, position)
        waits = isinstance(item, Stall) and not item.event.is_set()
        while not self._stop.is_set() and waits and isinstance(item, Stall):
            waits = not item.event.wait(_POLL_S)
        if self._stop.is_set():
            raise ClosedError(f"{where}: the read was stopped")
        if isinstance(item, Abort):
            raise item.exception or SourceError(f"{where}: the script aborts the read here")


def plain_of(item: Item) -> bytes | Corrupt | Gap | Abort:
    """The item at a position once a stall is over, without its label."""
    record = item.then if isinstance(item, Stall) else item
    if record is None:
        return Gap()
    return record[0] if isinstance(record, tuple) else record


def label_of(item: Item) -> int | None:
    """Its label, if it has one."""
    record = item.then if isinstance(item, Stall) else item
    return record[1] if isinstance(record, tuple) else None


def payload_of(plain: bytes | Corrupt | Gap | Abort) -> bytes:
    """Its bytes; none of what has none."""
    if isinstance(plain, Corrupt):
        return plain.payload
    return plain if isinstance(plain, bytes) else b""


def copied(payload: bytes, lease: Lease) -> memoryview:
    """A copy in that memory."""
    view = lease.room(len(payload))
    view[:] = payload
    return view
