"""What a source gives: snapshots, extents, blocks; and the contract it keeps.

A position is a Kafka offset or a record's index in its shard. Positions may be absent: Kafka offsets
have holes. A block marks them; it never shifts the rows after a hole. Where a source knows the holes, a
snapshot says which positions are present, and a plan orders those alone.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from dali_feed.records.extents import Extents, Int64s, pack_ids, unpack_id, unpack_ids
from dali_feed.records.present import Present

__all__ = [
    "LABEL",
    "MANY_ABSENT",
    "Block",
    "Commits",
    "Extents",
    "Int64s",
    "Lease",
    "Member",
    "Members",
    "Mixture",
    "Reader",
    "Slabs",
    "Snapshot",
    "Source",
    "Stamped",
    "Stop",
    "Tabular",
    "alternatives",
    "lacking",
    "pack_ids",
    "unpack_id",
    "unpack_ids",
    "whole_shares",
]


# How the records of several sources are mixed: weights by epoch, and where an epoch ends.


Stop = Literal["first", "all"]
FINEST = 10_000  # parts that a weight is counted in at most


@dataclass(frozen=True, slots=True)
class Mixture:
    """Weights of the parts of a snapshot by epoch, and where an epoch ends. Pure in the epoch.

    table    (epoch, a weight per part) in ascending order; before the first epoch of it its weights hold too
    linear   between two epochs of the table weights go from one to the other in equal steps; else they jump
    stop     "first": an epoch ends before the first part would give a record again; "all": when every part has given
             each of its records
    samples  of an epoch; None: as `stop` says
    """

    table: tuple[tuple[int, tuple[float, ...]], ...]
    linear: bool = False
    stop: Stop = "first"
    samples: int | None = None

    def shares(self, epoch: int) -> tuple[int, ...]:
        """How many records of each part come in as many as all these together, in that epoch."""
        epochs = [at for at, _ in self.table]
        k = max(0, bisect.bisect_right(epochs, epoch) - 1)
        at, weights = self.table[k]
        if self.linear and k + 1 < len(self.table) and epoch > at:
            end, later = self.table[k + 1]
            gone = (epoch - at) / (end - at)
            a, b = ([w / math.fsum(its) for w in its] for its in (weights, later))
            weights = tuple(x + (y - x) * gone for x, y in zip(a, b, strict=True))
        return whole_shares(weights)

    def told(self) -> dict[str, Any]:
        """Plain JSON, equal for mixtures that are equal."""
        return {
            "weights": {str(epoch): list(weights) for epoch, weights in self.table},
            "linear": self.linear,
            "stop": self.stop,
            "samples": self.samples,
        }


def whole_shares(weights: tuple[float, ...]) -> tuple[int, ...]:
    """The smallest whole numbers in the proportion of the weights.

    Where none whose sum is FINEST at most are (to 1 in 10**9), parts of FINEST by largest remainder; a weight above 0
    is one part at least.
    """
    total = math.fsum(weights)
    near = [Fraction(weight / total).limit_denominator(FINEST) for weight in weights]
    whole = math.lcm(*(share.denominator for share in near))
    close = all(abs(float(share) - weight / total) < 1e-9 for share, weight in zip(near, weights, strict=True))
    if whole <= FINEST and close and sum(near) == 1:
        return tuple(int(share * whole) for share in near)
    exact = [weight / total * FINEST for weight in weights]
    parts = [max(math.floor(share), int(share > 0)) for share in exact]
    order = sorted(range(len(parts)), key=lambda k: (parts[k] - exact[k], k))
    for k in order[: max(0, FINEST - sum(parts))]:
        parts[k] += 1
    parts[parts.index(max(parts))] -= max(0, sum(parts) - FINEST)
    return tuple(parts)


LABEL = "label"  # the field that is an int64 array of classes, where a source has one
MANY_ABSENT = 0.004  # share of positions without a record above which their slots are worth a look


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a bounded source holds when an epoch starts. Every order is computed from this alone.

    source         one line that names the source in messages
    names          a name per partition, in canonical order
    starts, stops  positions start..stop-1 of each partition, int64 (partitions,)
    extent         how many positions are best read in one go
    record_bytes   mean payload size, an estimate: sizes memory, never order
    random_access  single records can be read at little cost (files, local shards)
    interleaved    canonical order takes the partitions in turn, an extent of each (Kafka)
    fingerprint    equal for equal contents: a state made for another one is refused
    pin            plain JSON from which `Source.snapshot(pin)` makes this very snapshot again, or None
                   where the source is fixed by its own files
    present        which positions hold a record, where the source has learnt that; None: a plan orders all of them
    absent         share of the positions that hold no record, 0..1: exact with `present`, else as far as is known
    parts          of a source made of several theirs, whose partitions stand here one after another: a plan cuts and
                   lines up each part's as that part wants it. () of any other
    mix            how the parts are mixed, slot by slot; None: they come one after another, or are shuffled as one
    """

    source: str
    names: tuple[str, ...]
    starts: Int64s
    stops: Int64s
    extent: int
    record_bytes: int
    random_access: bool
    interleaved: bool
    fingerprint: str
    pin: Mapping[str, Any] | None = None
    present: Present | None = None
    absent: float = 0.0
    parts: tuple[Snapshot, ...] = ()
    mix: Mixture | None = None

    def __len__(self) -> int:
        return self.positions if self.present is None else len(self.present)

    @property
    def positions(self) -> int:
        """How many positions there are, those that hold no record too."""
        return int((self.stops - self.starts).sum())

    @property
    def numbers(self) -> tuple[Int64s, Int64s]:
        """What a plan orders of each partition, from and up to, int64: positions, or the numbers of `present`."""
        if self.present is None:
            return self.starts, self.stops
        return np.zeros_like(self.starts), self.present.records

    def located(self, numbers: Extents) -> Extents:
        """The runs of positions for extents of a plan, in the same order; an extent may become several runs."""
        return numbers if self.present is None else self.present.positions(numbers)


class Lease(Protocol):
    """Memory that a block's payloads lie in; grows while the block is read, and goes back whole."""

    @property
    def slab_bytes(self) -> int:
        """How much it grows by; pieces larger than that cost more."""
        ...

    @property
    def size(self) -> int:
        """Bytes that it holds now, the unused ones too."""
        ...

    def room(self, size: int) -> memoryview:
        """A writable view of `size` bytes that nobody else has."""
        ...

    def ahead(self, size: int) -> list[memoryview]:
        """Writable views of `size` bytes in all, or of fewer where the lease may not take so many: never an error.

        Slabs, and first a piece of one where `size` is no multiple. `back` is to be told what became of them.
        """
        ...

    def back(self, views: list[memoryview], filled: int) -> None:
        """Those of `ahead` that nothing was put into, given back; `filled` bytes were put into the others."""
        ...

    def release(self) -> None:
        """Give the memory back; views into it must not be used again. Safe to call twice."""
        ...


class Slabs(Protocol):
    """A bounded pool of slabs."""

    def lease(self) -> Lease:
        """A lease that holds nothing yet."""
        ...


@dataclass(slots=True)
class Block:
    """Records of one read, row for row the positions that were asked for.

    ids       int64 (n,)
    payloads  views into the lease's slabs; None where the position is absent
    fields    per field beside the image an array, a list or `Pieces` of n values; rows without one hold any value
    faults    row -> why its record cannot be used, where the source or the codec knows already
    """

    ids: Int64s
    payloads: list[memoryview | None]
    fields: dict[str, Any]
    lease: Lease
    faults: dict[int, str] = field(default_factory=dict)


class Reader(Protocol):
    """One thread's way into a source. Not shared between threads, never inherited through fork.

    Where it has an attribute `trouble`, a str, the watchdog shows it: what hinders a read that is under way. Where it
    has `gauges()`, which gives `KafkaStats` or None, or `storage()`, a tuple of `StorageStats`, a loader's stats have
    what it measures (called from any thread, while it reads); where it has `rest()`, its thread calls that every few
    seconds while there is nothing to read.
    """

    def read(self, extents: Extents) -> Block:
        """All records of `extents`, in their order, in one block.

        Blocks until they are there. Returns early with a DaliFeedError when the stop event is set.
        A record that cannot be used is a row in `faults`; only what concerns more than one record
        is raised, as a SourceError.
        """
        ...

    def close(self) -> None:
        """Release connections and files. Safe to call twice."""
        ...


class Source(Protocol):
    """Where records are. Cheap to make: nothing is opened before `snapshot` or `reader`."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields beside the image, in the order a batch gives them; usually ('label',)."""
        ...

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """What there is now, or, given the pin of an earlier snapshot, that one again.

        Raises SourceChangedError or DataLostError where the pinned data is no longer there.
        """
        ...

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A new reader whose blocks lie in `slabs` (its own where None) and whose waits end at `stop`."""
        ...

    def where(self, partition: int, position: int) -> str:
        """A record's coordinates as people write them: `imagenet-train[3]@41872`, `train-0007.tar#118`."""
        ...


@runtime_checkable
class Stamped(Protocol):
    """A source of files. Its fingerprint says what is in them, not that they were written again with the same sizes."""

    def file_stamps(self) -> bytes:
        """Size and time of each file, by which what is kept of it from run to run is known to be of that file."""
        ...


def lacking(found: object) -> list[str]:
    """What an object lacks to be a source. Its properties are not asked: one may read an index to answer."""
    kind = type(found)
    names = ("snapshot", "reader", "where", "fields")
    return [name for name in names if not (hasattr(kind, name) or hasattr(found, name))]


@runtime_checkable
class Commits(Protocol):
    """A source that can publish, for tools that watch, how far it has been consumed. Most cannot."""

    def commit(self, positions: Int64s) -> None:
        """Publish a position per partition of the snapshot. It is never read back.

        Raises a SourceError after a few seconds where that cannot be done.
        """
        ...


@runtime_checkable
class Tabular(Protocol):
    """A source whose columns have names of their own: a loader's batches are dicts of them. Most have none."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names in order: all of `fields`, and one more, which is the images'."""
        ...


# Members: the named pieces of a record, and what a source says and gives of them.
#
# A tar sample's members are its files by suffix, a Kafka record's are `value`, `key`, `timestamp` and its headers, a
# table row's are its columns. A name may list several, "jpg;png": the foremost that a record has counts.


@dataclass(frozen=True, slots=True)
class Member:
    """A member, as a look at some records finds it.

    share  of those records that have it, 0..1
    bytes  mean size; 0 where it is a value and no bytes
    """

    name: str
    share: float
    bytes: int


@runtime_checkable
class Members(Protocol):
    """A source that can give any of its records' members, and nothing but those that it is asked for."""

    def members(self) -> tuple[Member, ...]:
        """What its records have, in a stable order."""
        ...

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same records with other members.

        Its payloads are the member `image`, empty views where that is None; its `fields` are `members`: lists of views
        of the slab, None where a record has none of it, or values where the source has them. Snapshot, ids and
        coordinates are the same. Raises ConfigError for a member that no record can have.
        """
        ...


def alternatives(name: str) -> tuple[str, ...]:
    """The members that a name lists, the foremost first."""
    return tuple(filter(None, (part.strip().lstrip(".") for part in name.split(";"))))
