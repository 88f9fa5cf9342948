"""What a source gives: snapshots, extents, blocks; and the contract it keeps.

The law: a source reads members by name, those that it is asked for and no others; all else that is made of a record
(formats, columns, the screen) is a function from block to block behind it.

A position is a Kafka offset or a record's index in its shard. Positions may be absent: Kafka offsets
have holes. A block marks them; it never shifts the rows after a hole. Where a source knows the holes, a
snapshot says which positions are present, and a plan orders those alone.
"""

from __future__ import annotations

import bisect
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ClosedError, ConfigError
from dali_feed.records.extents import Extents, Int64s, Present, pack_ids, unpack_id, unpack_ids
from dali_feed.records.gauges import KafkaStats, StorageStats
from dali_feed.records.slabs import Lease, SlabPool

__all__ = [
    "EXTENT_BYTES",
    "LABEL",
    "MANY_ABSENT",
    "Block",
    "Extents",
    "Fault",
    "Int64s",
    "Lease",
    "Member",
    "Mixture",
    "Original",
    "Reader",
    "Records",
    "RowReader",
    "Snapshot",
    "Source",
    "Stage",
    "Stop",
    "alternatives",
    "check_known",
    "check_no_pin",
    "fixed_snapshot",
    "pack_ids",
    "sampled",
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

    def to_json(self) -> dict[str, Any]:
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


LABEL = "label"  # the column of classes, where a source's preset has one
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


Stage = Literal["source", "screen", "decode"]  # where a record was refused


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a record cannot be used.

    stage   what refused it: "source", "screen" or "decode"
    reason  in words, with what was found
    member  the member or column that it is about; "": no one of them
    """

    stage: Stage
    reason: str
    member: str = ""


@dataclass(slots=True)
class Block:
    """Records of one read, row for row the positions that were asked for.

    ids     int64 (n,)
    values  name -> values of n rows: `dali_feed.records.pieces.Values` of members as a source gives them, what columns
            keep behind `Columns`. A row that is
            absent or has a fault may hold any value
    lease   all memory that views among the values lie in; whoever leased it releases it, once
    faults  row -> why its record cannot be used
    absent  bool (n,): positions that hold no record; None: none of them
    """

    ids: Int64s
    values: dict[str, Any]
    lease: Lease
    faults: dict[int, Fault] = field(default_factory=dict)
    absent: NDArray[np.bool_] | None = None

    def absent_rows(self) -> list[int]:
        """Rows whose positions hold no record, ascending."""
        return [] if self.absent is None else np.flatnonzero(self.absent).tolist()

    @property
    def whole(self) -> bool:
        """Whether each row has a record that has no fault."""
        return not self.faults and self.absent is None

    def usable(self) -> NDArray[np.bool_]:
        """Rows with a record that has no fault, bool (n,)."""
        rows = np.ones(len(self.ids), bool) if self.absent is None else ~self.absent
        rows[list(self.faults)] = False
        return rows


class Reader(ABC):
    """One thread's way into a source. Not shared between threads, never inherited through fork.

    trouble  what hinders a read that is under way, for the watchdog; "": nothing. Read by other threads
    """

    trouble: str = ""

    @abstractmethod
    def read(self, extents: Extents, lease: Lease) -> Block:
        """All records of `extents`, in their order, in one block, with the members that the reader was made for.

        Blocks until they are there. Memory is taken of `lease`, which the caller releases, also when this raises.
        Returns early with a DaliFeedError when the stop event is set. A record that cannot be used is a row in
        `faults`; only what concerns more than one record is raised, as a SourceError.
        """

    @abstractmethod
    def close(self) -> None:
        """Release connections and files. Safe to call twice."""

    def gauges(self) -> KafkaStats | None:
        """What it has measured of a broker; called from any thread, while it reads. None: it does not."""
        return None

    def storage(self) -> tuple[StorageStats, ...]:
        """What it has measured of its files; called from any thread, while it reads."""
        return ()

    def rest(self) -> None:  # noqa: B027  most readers need none
        """Called by its thread every few seconds while there is nothing to read."""

    @property
    def rests(self) -> bool:
        """Whether `rest` does anything."""
        return type(self).rest is not Reader.rest


# Members: the named pieces of a record, and what a source says and gives of them.
#
# A tar sample's members are its files by suffix, a Kafka record's are `value`, `key`, `timestamp` and its headers, a
# table row's are its columns. A column's name of one may list several, "jpg;png": the first that a record has counts;
# and it may go on inside of one that has a format, `json:body.label`. Both are resolved before a source is asked
# (`dali_feed.columns.request`).


@dataclass(frozen=True, slots=True)
class Member:
    """A member, as a look at some records finds it.

    name   as columns have it
    share  of those records that have it, 0..1
    bytes  mean size; 0 where it is a value and no bytes
    """

    name: str
    share: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Original:
    """A record as its log holds it, of which members are a part."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Records(ABC):
    """Where records are, bounded (`Source`) or without an end (`dali_feed.records.live.Stream`).

    Cheap to make: nothing is opened before it is asked for members, a snapshot or a reader.

    inner      the member whose format's paths need no `member:` before them, such as a topic's `value`; None: none
    unit       what a record of it is called in errors
    known      whether `can_have` answers without a look at the data
    named      whether a batch of its preset is a dict of columns; else it is a tuple of them
    any_names  whether it resolves names of columns itself (a source made of several does, part by part): `can_have` is
               asked for each of them, which may raise ConfigError, and `named_reader` reads them
    first_of   whether its readers take "jpg;png" as one member, the first of these that a record has, and read no other
    """

    inner: str | None = None
    unit = "record"
    known = True
    named = False
    any_names = False
    first_of = False

    @property
    def preset(self) -> Mapping[str, Any]:
        """What a batch holds where nobody says `columns=`: name -> `dali_feed.columns.Column`, in order."""
        return {}

    @abstractmethod
    def members(self) -> tuple[Member, ...]:
        """What its records have, in a stable order."""

    def can_have(self, member: str) -> bool:
        """Whether a record may have such a member; by default one that `members` lists."""
        return any(member == each.name for each in self.members())

    def has_path(self, member: str, path: str) -> bool:
        """Whether a member with a format may have something at that path; by default nobody knows that it has not."""
        del member, path
        return True

    def image_of(self, member: str) -> str:
        """What is asked for where a column of images is made of `member`, which may list several, "a;b".

        It is that itself, but of a source whose member is the path of a file, or the pixels of an image: there it is
        a member that holds the encoded image. Raises ConfigError where no image can be made of it.
        """
        return member

    def format_of(self, member: str) -> Any:
        """The `dali_feed.formats.Format` of what a member holds; None where it has none.

        A colon is a letter of its name then.
        """
        del member
        return None

    def lacks(self, member: str) -> str:
        """What is said of a record without that member, behind "the record"; "": what is said of any."""
        del member
        return ""

    @abstractmethod
    def where(self, partition: int, position: int) -> str:
        """A record's coordinates as people write them: `imagenet-train[3]@41872`, `train-0007.tar#118`."""

    def original(self, partition: int, position: int) -> Original | None:
        """The record in full, read again, of a source that keeps more of it than its members; None where it is gone.

        Raises a SourceError where there is no answer.
        """
        del partition, position
        return None

    @property
    def originals(self) -> bool:
        """Whether `original` gives records in full."""
        return type(self).original is not Source.original


class Source(Records):
    """A bounded source: a snapshot says what it holds, and every position of it can be read, again and again."""

    @abstractmethod
    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """What there is now, or, given the pin of an earlier snapshot, that one again.

        It does not depend on the members that are asked for. Raises SourceChangedError or DataLostError where the
        pinned data is no longer there.
        """

    @abstractmethod
    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        """A new reader of these members, by their plain names; its waits end at `stop`.

        Raises ConfigError for a member that no record can have.
        """

    def named_reader(
        self, names: Sequence[str], optional: Collection[str], stop: threading.Event | None = None
    ) -> Reader:
        """A new reader of names as columns have them, of a source with `any_names`; records may lack the optional ones.

        Raises ConfigError for a name that no record can have.
        """
        raise NotImplementedError

    def dense(self, members: Sequence[str]) -> bool:
        """Whether its readers put the rows of these members side by side into a dense lease, whichever are asked for.

        That makes sense where a record lies anywhere in a file and nothing is made of its bytes.
        """
        del members
        return False

    def file_stamps(self) -> bytes | None:
        """Size and time of each file, by which what is kept of it from run to run is known to be of that file.

        A fingerprint says what is in the files, not that they were written again with the same sizes. None: no files.
        """
        return None

    def commit(self, positions: Int64s) -> None:
        """Publish a position per partition of the snapshot, for tools that watch. It is never read back.

        Raises a SourceError after a few seconds where that cannot be done.
        """

    @property
    def commits(self) -> bool:
        """Whether `commit` does anything."""
        return type(self).commit is not Source.commit


def alternatives(name: str) -> tuple[str, ...]:
    """The members that a name lists, the first choice first."""
    return tuple(filter(None, (part.strip().lstrip(".") for part in name.split(";"))))


# Sources whose records never change: what they hold is counted when they are made, or first looked at.


EXTENT_BYTES = 8 << 20  # of what is best read in one go
SAMPLED = 64  # records that a look at a source takes


def sampled(count: int) -> Int64s:
    """Up to 64 numbers below `count`, spread over all of them, ascending."""
    places = np.linspace(0, count - 1, SAMPLED).round().astype(np.int64).tolist()
    return np.array(sorted(set(places)), np.int64)  # np.unique would import numpy.ma before the first batch


def check_no_pin(title: str, pin: Mapping[str, Any] | None, what: str = "records") -> None:
    """Raise ConfigError for the pin of a source that never changes."""
    if pin is not None:
        msg = f"{title}: {what} are fixed and take no pin; found {dict(pin)!r}"
        raise ConfigError(msg)


def fixed_snapshot(
    title: str,
    names: tuple[str, ...],
    counts: Int64s,
    fingerprint: str,
    *,
    extent: int,
    record_bytes: int,
    random_access: bool = True,
) -> Snapshot:
    """That of a source which never changes: partitions of so many records, int64 (partitions,), from position 0 on."""
    return Snapshot(
        source=title,
        names=names,
        starts=np.zeros(len(counts), np.int64),
        stops=counts.copy(),
        extent=extent,
        record_bytes=record_bytes,
        random_access=random_access,
        interleaved=False,
        fingerprint=fingerprint,
    )


class RowReader(Reader):
    """Reads records of a source of `counts` records in each partition, for one thread; a subclass has `_fill`."""

    def __init__(self, title: str, counts: Int64s | int, stop: threading.Event | None) -> None:
        self._title, self._counts = title, np.atleast_1d(np.asarray(counts, np.int64))
        self._stop, self._closed = stop or threading.Event(), False
        self._pool: SlabPool | None = None  # of its leases
        self._kept = 0  # bytes that it has from read to read, beside them

    def read(self, extents: Extents, lease: Lease) -> Block:
        """All records of `extents` in order; see `dali_feed.records.source.Reader`.

        Raises:
            ConfigError: an extent that leaves the snapshot.
            SourceChangedError: a file is not what it was when the source looked at it.
            DataLostError: it is gone, or ends before a record does.
            ClosedError: the reader is closed or the stop event is set.
            SourceError: the process has no descriptors or memory left, or the disk fails.
        """
        if self._closed or self._stop.is_set():
            msg = f"{self._title}: this reader is closed, or its read was stopped; make another one"
            raise ClosedError(msg)
        extents.check_inside(self._counts, self._title)
        self._pool = self._pool or lease.pool
        block = Block(extents.ids(), {}, lease)
        single = extents.samples is not None
        self._fill(block, *((extents.partition, extents.start) if single else unpack_ids(block.ids)))
        return block

    def close(self) -> None:
        """Nothing stays open between reads. Safe to call twice."""
        self._closed = True
        self._keep(0)

    def _keep(self, size: int) -> None:
        """So many bytes are what it has from read to read now: its pool counts them."""
        if self._pool is not None:
            self._pool.keep(size - self._kept)
            self._kept = size

    def _check_stop(self) -> None:
        if self._stop.is_set():
            msg = f"{self._title}: the read was stopped"
            raise ClosedError(msg)

    def _fill(self, block: Block, partition: Int64s, position: Int64s) -> None:
        """Put the values of these records into the block."""
        raise NotImplementedError


def check_known(members: Iterable[str], known: Iterable[str], title: str) -> None:
    """Raise ConfigError, which `title` begins, for a member that is none of those known."""
    names = tuple(known)
    for member in members:
        if member not in names:
            msg = f"{title}: member {member!r}: no record has it; found {', '.join(names[:8])}"
            raise ConfigError(msg)
