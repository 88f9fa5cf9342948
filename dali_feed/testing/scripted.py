"""Sources in memory whose faults are items in the data: a bounded one, and a stream that a test writes to.

    source = ScriptedSource([(jpeg, 3), Corrupt(), Gap(), Stall(event, then=(jpeg, 4)), Abort()], partitions=2)

    stream = ScriptedStream([(jpeg, 3), Gap(), (jpeg, 4)], [Stall(event, then=(jpeg, 5))], pace=Pace(timeout=0.01))
    stream.append(0, (jpeg, 6))      # a producer
    stream.grow((jpeg, 7))           # a new partition
    stream.readers[0].give_up([0], 30.0)   # as a group does that gives a partition to another worker

They keep the contracts of `dali_feed.records.source.Source` and `dali_feed.records.live.Stream`, and say afterwards
what was read or committed. Their records have the members "value", their bytes, and "label", an int, -1 where an item
has none.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dali_feed.columns.column import Number
from dali_feed.columns.image import Image
from dali_feed.errors import ClosedError, ConfigError, SourceError, StateError
from dali_feed.records.live import LiveBlock, LiveReader, Pace, Positions, Progress, Stream
from dali_feed.records.pieces import Filling, Values
from dali_feed.records.source import (
    LABEL,
    Block,
    Extents,
    Fault,
    Int64s,
    Lease,
    Member,
    Reader,
    Records,
    Snapshot,
    Source,
    pack_ids,
    unpack_ids,
)

NO_LABEL = -1
VALUE = "value"
GARBAGE = b"\xff\xd8\xff\xe0 this is where a picture should be"
_STOP_SECONDS = 0.005  # how often a read that stalls looks whether it is stopped
_POLL_SECONDS = 0.05  # how often a stream's reader looks at a stall's event and the stop event


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


class _Entry(NamedTuple):
    """An item as it is read: what comes at its position once `stall` is set, that one's bytes, and its label."""

    plain: bytes | Corrupt | Gap | Abort
    payload: bytes
    label: int | None
    stall: threading.Event | None


def _entry(item: Item | _Entry) -> _Entry:
    if isinstance(item, _Entry):
        return item
    stall = item.event if isinstance(item, Stall) else None
    record = item.then if isinstance(item, Stall) else item
    plain, label = (record[0], record[1]) if isinstance(record, tuple) else (record, None)
    payload = plain.payload if isinstance(plain, Corrupt) else plain if isinstance(plain, bytes) else b""
    return _Entry(Gap() if plain is None else plain, payload, label, stall)


class _Scripted(Records):
    """Items in partitions, which subclasses give out."""

    def __init__(self, partitions: Iterable[Iterable[Item]], name: str) -> None:
        self._name = name
        self._items = [self._checked(items) for items in partitions]
        self._labelled = any(_entry(item).label is not None for items in self._items for item in items)

    def __repr__(self) -> str:
        return self._name

    @property
    def preset(self) -> Mapping[str, Any]:
        """Images, and labels if any item that it began with has one."""
        images = {"image": Image(VALUE)}
        return images | {LABEL: Number(LABEL)} if self._labelled else images

    def where(self, partition: int, position: int) -> str:
        """`scripted[0]@17`."""
        return f"{self._name}[{partition}]@{position}"

    def _checked(self, items: Iterable[Item]) -> list[Item | _Entry]:
        every = list(items)
        entries = list[Item | _Entry](map(_entry, every))
        for k, (item, entry) in enumerate(zip(every, entries, strict=True)):
            if not isinstance(_entry(entry).plain, bytes | Corrupt | Gap | Abort):
                rule = "items must be bytes, (bytes, label) or scripted faults"
                raise ConfigError(f"{type(self).__name__}: {rule}; found {item!r} at {k}")
        return entries

    def _raise_abort(self, abort: Abort, partition: int, position: int) -> None:
        raise abort.exception or SourceError(f"{self.where(partition, position)}: the script aborts the read here")


def _block(ids: Int64s, entries: Sequence[_Entry], members: Sequence[str], lease: Lease) -> Block:
    """The block of these entries, copied into the lease."""
    values, faults = Filling(len(ids), lease), dict[int, Fault]()
    for row, (plain, payload, _, _) in enumerate(entries):
        if VALUE in members and not isinstance(plain, Gap):
            view = lease.room(len(payload))
            view[:] = payload
            values.keep(row, view)
        if isinstance(plain, Corrupt) and plain.reason is not None:
            faults[row] = Fault("source", plain.reason)
    labels = np.array([NO_LABEL if entry.label is None else entry.label for entry in entries], np.int64)
    both: dict[str, Values] = {VALUE: values.pieces(), LABEL: labels}
    absent = np.array([isinstance(entry.plain, Gap) for entry in entries], bool)
    return Block(ids, {name: both[name] for name in members}, lease, faults, absent if absent.any() else None)


class ScriptedSource(_Scripted, Source):
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
        super().__init__([items], name)
        extent = 8 if extent is None else extent
        if partitions < 1 or extent < 1 or first < 0:
            raise ConfigError(
                "ScriptedSource: partitions and extent must be 1 or more and first 0 or more; "
                f"found {partitions}, {extent}, {first}"
            )
        (dealt,) = self._items
        borders = [len(dealt) * p // partitions for p in range(partitions + 1)]
        self._items = [dealt[a:b] for a, b in itertools.pairwise(borders)]
        self._first, self._extent = first, extent
        self._random_access, self._interleaved = random_access, interleaved
        sizes = [len(_entry(item).payload) for item in dealt]
        self._mean = round(sum(sizes) / max(1, len(sizes)))
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

    def members(self) -> tuple[Member, ...]:
        """The bytes, and the labels if any item has one."""
        value = Member(VALUE, 1.0, self._mean)
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
        for items in self._items:
            digest.update(b"\npartition")
            for plain, payload, label, _ in map(_entry, items):
                digest.update(f"\n{type(plain).__name__} {label} {len(payload)} ".encode() + payload)
        starts = np.full(len(self._items), self._first, np.int64)
        return Snapshot(
            source=self._name,
            names=tuple(f"{self._name}[{p}]" for p in range(len(self._items))),
            starts=starts,
            stops=starts + np.array([len(items) for items in self._items], np.int64),
            extent=self._extent,
            record_bytes=max(1, self._mean),
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
        with source._lock:
            columns = (extents.partition, extents.start, extents.stop)
            source._reads += zip(*(column.tolist() for column in columns), strict=True)
        places = zip(*(column.tolist() for column in unpack_ids(ids)), strict=True)
        entries = [self._entry(partition, position) for partition, position in places]
        if VALUE in self._members:
            with source._lock:
                source._bytes_read += sum(len(entry.payload) for entry in entries)
        return _block(ids, entries, self._members, lease)

    def close(self) -> None:
        """Safe to call twice."""
        self._closed = True

    def _entry(self, partition: int, position: int) -> _Entry:
        """The one at that position, when its stall is over; an abort is raised."""
        source, row = self._source, position - self._source._first
        where = source.where(partition, position)
        if partition >= len(source._items) or not 0 <= row < len(source._items[partition]):
            raise ConfigError(f"{where}: reads must lie inside the snapshot; this one does not")
        entry = _entry(source._items[partition][row])
        while entry.stall is not None and not self._stop.is_set() and not entry.stall.wait(_STOP_SECONDS):
            pass
        if self._stop.is_set():
            raise ClosedError(f"{where}: the read was stopped")
        if isinstance(entry.plain, Abort):
            source._raise_abort(entry.plain, partition, position)
        return entry


class ScriptedStream(_Scripted, Stream):
    """Partitions of items, to which more can be added at any time, by any thread.

    pace   when a batch is handed over
    start  where it begins: "earliest", or "latest"
    name   for messages and coordinates: `name[partition]@position`
    """

    def __init__(
        self, *partitions: Iterable[Item], pace: Pace | None = None, start: str = "earliest", name: str = "scripted"
    ) -> None:
        super().__init__(partitions, name)
        self._pace, self._start = pace or Pace(), start
        self._changed = threading.Condition()
        self.committed: dict[int, int] = {}
        self.readers: list[ScriptedStreamReader] = []

    # A producer's.

    def append(self, partition: int, *items: Item) -> None:
        """Add items to a partition."""
        with self._changed:
            self._items[partition] += self._checked(items)
            self._changed.notify_all()

    def grow(self, *items: Item) -> None:
        """Add a partition."""
        with self._changed:
            self._items.append(self._checked(items))
            self._changed.notify_all()

    # A source's.

    @property
    def pace(self) -> Pace:
        """As it was given."""
        return self._pace

    def members(self) -> tuple[Member, ...]:
        """The payload is "value", the label "label"."""
        return Member(VALUE, 1.0, 0), Member(LABEL, 1.0, 0)

    def live(
        self,
        at: Mapping[str, Any] | None,
        members: Sequence[str],
        *,
        rank: int = 0,
        world_size: int = 1,
        stop: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> LiveReader:
        """A reader; see `dali_feed.records.live.Stream`."""
        for name in members:
            if not self.can_have(name):
                raise ConfigError(f"{self._name}: its records have the members 'value' and 'label'; found {name!r}")
        with self._changed:
            ends = {p: len(items) for p, items in enumerate(self._items) if p % world_size == rank}
        if at is None:
            position = {p: end if self._start == "latest" else 0 for p, end in ends.items()}
        else:
            known = self._known(at)
            position = {p: known.get(p, 0) for p in ends}
            missing = [p for p in ends if p not in known and p < int(at["partitions"])]
            if missing:
                msg = f"{self._name}: the mark must have all partitions of rank {rank} of {world_size}; lacks {missing}"
                raise StateError(msg)
        stop = stop or threading.Event()
        reader = ScriptedStreamReader(self, position, tuple(members), rank, world_size, stop, progress)
        self.readers.append(reader)
        return reader

    def mark(self, position: Positions, *, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
        """Plain JSON."""
        at = {str(p): n for p, n in sorted(position.items())}
        return {"stream": self._name, "rank": rank, "partitions": len(self._items), "position": at}

    def merged(self, marks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One mark, made from those of several ranks."""
        ranks = [mark["rank"] for mark in marks]
        if len(set(ranks)) != len(ranks):
            raise StateError(f"{self._name}: marks must be of different ranks; found {ranks}")
        position: dict[int, int] = {}
        for mark in marks:
            position |= self._known(mark)
        return self.mark(position)

    def _known(self, mark: Mapping[str, Any]) -> dict[int, int]:
        if mark.get("stream") != self._name:
            raise StateError(f"{self._name}: the mark must be of this stream; found {mark.get('stream')!r}")
        return {int(p): n for p, n in mark["position"].items()}


class ScriptedStreamReader(LiveReader):
    """Gives the items of its partitions in turn; see `dali_feed.records.live.LiveReader`."""

    def __init__(
        self,
        source: ScriptedStream,
        position: dict[int, int],
        members: tuple[str, ...],
        rank: int,
        world_size: int,
        stop: threading.Event,
        progress: Progress | None,
    ) -> None:
        self._source, self._at, self._rank, self._world_size = source, position, rank, world_size
        self._members, self._stop = members, stop
        self._progress, self._alone = progress or Progress(), progress is None
        self._gone: set[int] = set()  # partitions that were given up
        self._began = self._closed = False

    def poll(self, records: int, size: float, seconds: float, lease: Lease) -> LiveBlock:
        """The items that are there; whatever an `Abort` says is raised."""
        deadline, source, progress = time.monotonic() + seconds, self._source, self._progress
        taken: list[tuple[int, int, _Entry]] = []
        if self._alone:
            progress.asked()
        with source._changed:
            first, generation = dict(self._at), progress.generation
            while True:
                if self._stop.is_set() or self._closed:
                    raise ClosedError(f"{source!r}: reading was stopped")
                if progress.generation != generation:  # what was found before is void
                    taken, first, generation = [], dict(self._at), progress.generation
                full = self._take(taken, records, size)
                left = deadline - time.monotonic()
                if full or left <= 0:
                    break
                source._changed.wait(min(left, _POLL_SECONDS))
            progress.begins({p: first.get(p, 0) for p in self._at})
            moved = {p: n for p, n in self._at.items() if first.get(p) != n or not self._began}
            self._began = True
        if self._alone:
            progress.took(moved, generation)
        partition, position = np.array([place for *place, _ in taken], np.int64).reshape(-1, 2).T
        block = _block(pack_ids(partition, position), [entry for *_, entry in taken], self._members, lease)
        return LiveBlock(block, moved, generation)

    def give_up(self, partitions: Collection[int], seconds: float) -> Positions:
        """Give partitions to nobody: what was read ahead is void, and the loop has so long to finish its batch.

        Gives how far it has finished them. Other partitions are read again from where the loop was handed them.
        """
        source, progress = self._source, self._progress
        with source._changed:
            self._gone |= set(partitions)
            self._at |= progress.withdraw()
            for p in partitions:
                self._at.pop(p, None)
        done = progress.wait_finished(partitions, seconds)
        progress.forget(partitions)
        return done

    def _take(self, taken: list[tuple[int, int, _Entry]], records: int, size: float) -> bool:
        """Take what is there, a partition after the other; whether that is enough."""
        bytes_taken = sum(len(entry.payload) for _, _, entry in taken)
        for p, items in enumerate(self._source._items):
            if p % self._world_size != self._rank or p in self._gone:
                continue
            self._at.setdefault(p, 0)
            while len(taken) < records and self._at[p] < len(items):
                entry = _entry(items[self._at[p]])
                if entry.stall is not None and not entry.stall.is_set():
                    break
                if isinstance(entry.plain, Abort):
                    if taken:
                        return True
                    self._source._raise_abort(entry.plain, p, self._at[p])
                if not isinstance(entry.plain, Gap):
                    bytes_taken += len(entry.payload)
                    if taken and bytes_taken > size:
                        return True
                    taken.append((p, self._at[p], entry))
                self._at[p] += 1
        return len(taken) >= records or bytes_taken >= size

    def commit(self, position: Positions) -> None:
        """Kept in the source."""
        self._source.committed |= position

    def close(self) -> None:
        """Safe to call twice."""
        self._closed = True
