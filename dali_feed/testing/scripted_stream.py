"""A stream in memory that a test writes to, and whose faults are items in the data, as those of `ScriptedSource`.

    stream = ScriptedStream([(jpeg, 3), Gap(), (jpeg, 4)], [Stall(event, then=(jpeg, 5))], pace=Pace(timeout=0.01))
    stream.append(0, (jpeg, 6))      # a producer
    stream.grow((jpeg, 7))           # a new partition
    stream.readers[0].give_up([0], 30.0)   # as a group does that gives a partition to another worker

It keeps the contract of `dali_feed.records.live.Stream`, and says what was committed. Its records have the members of
`ScriptedSource`: "value" and "label".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dali_feed.columns.image import Image
from dali_feed.columns.number import Number
from dali_feed.errors import ClosedError, ConfigError, SourceError, StateError
from dali_feed.records.live import LiveBlock, LiveReader, Pace, Positions, Progress, Stream
from dali_feed.records.pieces import Filling, Values
from dali_feed.records.source import LABEL, Block, Fault, Lease, Member, pack_ids
from dali_feed.testing.scripted import (
    NO_LABEL,
    VALUE,
    Abort,
    Corrupt,
    Gap,
    Item,
    Stall,
    copied,
    label_of,
    payload_of,
    plain_of,
)

_POLL_S = 0.05  # how often a stall's event and the stop event are looked at


class ScriptedStream(Stream):
    """Partitions of items, to which more can be added at any time, by any thread.

    pace   when a batch is handed over
    start  where it begins: "earliest", or "latest"
    name   for messages and coordinates: `name[partition]@position`
    """

    def __init__(
        self, *partitions: Iterable[Item], pace: Pace | None = None, start: str = "earliest", name: str = "scripted"
    ) -> None:
        self._items: list[list[Item]] = [list(items) for items in partitions]
        self._pace, self._start, self._name = pace or Pace(), start, name
        self._labelled = any(label_of(item) is not None for items in self._items for item in items)
        self._changed = threading.Condition()
        self.committed: dict[int, int] = {}
        self.readers: list[ScriptedStreamReader] = []

    def __repr__(self) -> str:
        return self._name

    # A producer's.

    def append(self, partition: int, *items: Item) -> None:
        """Add items to a partition."""
        with self._changed:
            self._items[partition] += items
            self._changed.notify_all()

    def grow(self, *items: Item) -> None:
        """Add a partition."""
        with self._changed:
            self._items.append(list(items))
            self._changed.notify_all()

    # A source's.

    @property
    def preset(self) -> Mapping[str, Any]:
        """Images, and labels if any item that it began with has one."""
        images = {"image": Image(VALUE)}
        return images | {LABEL: Number(LABEL)} if self._labelled else images

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

    def where(self, partition: int, position: int) -> str:
        """`scripted[0]@17`."""
        return f"{self._name}[{partition}]@{position}"

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
        taken: list[tuple[int, int, Item]] = []
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
                source._changed.wait(min(left, _POLL_S))
            progress.begins({p: first.get(p, 0) for p in self._at})
            moved = {p: n for p, n in self._at.items() if first.get(p) != n or not self._began}
            self._began = True
        if self._alone:
            progress.took(moved, generation)
        return LiveBlock(self._block(taken, lease), moved, generation)

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

    def _take(self, taken: list[tuple[int, int, Item]], records: int, size: float) -> bool:
        """Take what is there, a partition after the other; whether that is enough."""
        source = self._source
        bytes_taken = sum(len(payload_of(plain_of(item))) for _, _, item in taken)
        for p, items in enumerate(source._items):
            if p % self._world_size != self._rank or p in self._gone:
                continue
            self._at.setdefault(p, 0)
            while len(taken) < records and self._at[p] < len(items):
                item = items[self._at[p]]
                if isinstance(item, Stall) and not item.event.is_set():
                    break
                plain = plain_of(item)
                if isinstance(plain, Abort):
                    if taken:
                        return True
                    raise plain.exception or SourceError(f"{source.where(p, self._at[p])}: the script aborts here")
                if not isinstance(plain, Gap):
                    bytes_taken += len(payload_of(plain))
                    if taken and bytes_taken > size:
                        return True
                    taken.append((p, self._at[p], item))
                self._at[p] += 1
        return len(taken) >= records or bytes_taken >= size

    def _block(self, taken: list[tuple[int, int, Item]], lease: Lease) -> Block:
        ids = pack_ids(np.array([p for p, _, _ in taken], np.int64), np.array([n for _, n, _ in taken], np.int64))
        values, faults, labels = Filling(len(taken), lease), dict[int, Fault](), list[int]()
        for row, (_, _, item) in enumerate(taken):
            plain, label = plain_of(item), label_of(item)
            values.keep(row, copied(payload_of(plain), lease))
            labels.append(NO_LABEL if label is None else label)
            if isinstance(plain, Corrupt) and plain.reason is not None:
                faults[row] = Fault("source", plain.reason)
        both: dict[str, Values] = {VALUE: values.pieces(), LABEL: np.array(labels, np.int64)}
        return Block(ids, {name: both[name] for name in self._members}, lease, faults)

    def commit(self, position: Positions) -> None:
        """Kept in the source."""
        self._source.committed |= position

    def close(self) -> None:
        """Safe to call twice."""
        self._closed = True
