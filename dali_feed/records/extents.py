"""Sample ids, runs of positions in partitions, and which positions hold a record.

The law: a record is identified by (partition, position) alone, packed in 64 bits, and that
identity is the same in every run. Everything random about a sample is keyed by it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError

POSITION_BITS = 40
MAX_POSITION = (1 << POSITION_BITS) - 1
MAX_PARTITION = (1 << 23) - 1  # the sign bit stays clear, so that ids are int64 tensors as they are

Int64s = NDArray[np.int64]


def pack_ids(partition: Int64s | int, position: Int64s | int) -> Int64s:
    """Pack partitions and positions (broadcast against each other) into sample ids, int64.

    Raises:
        ConfigError: a partition above 2**23 - 1 or a position above 2**40 - 1.
    """
    parts = np.asarray(partition, np.int64)
    positions = np.asarray(position, np.int64)
    for name, values, most in (("partition", parts, MAX_PARTITION), ("position", positions, MAX_POSITION)):
        if values.size and (values.min() < 0 or values.max() > most):
            worst = int(values.min()) if values.min() < 0 else int(values.max())
            msg = f"sample id: a {name} must lie in 0..{most} to fit in 64 bits; found {worst}"
            raise ConfigError(msg)
    return np.asarray((parts << POSITION_BITS) | positions, np.int64)


def unpack_ids(ids: Int64s) -> tuple[Int64s, Int64s]:
    """The (partition, position) arrays that `pack_ids` packed."""
    ids = np.asarray(ids, np.int64)
    return ids >> POSITION_BITS, ids & MAX_POSITION


def unpack_id(sample: int) -> tuple[int, int]:
    """The (partition, position) of one sample id."""
    return sample >> POSITION_BITS, sample & MAX_POSITION


@dataclass(frozen=True, slots=True)
class Extents:
    """Runs of positions, columnar: row k is positions start[k]..stop[k]-1 of partition[k].

    partition    of each run, int64 (n,)
    start, stop  its first position, and the one behind its last, int64 (n,)
    samples      the sample id of each run's one position, int64 (n,), where they are known to have no more
    """

    partition: Int64s
    start: Int64s
    stop: Int64s
    samples: Int64s | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of_samples(cls, ids: Int64s) -> Extents:
        """A run for each of these samples."""
        partition, position = unpack_ids(ids)
        return cls(partition, position, position + 1, np.asarray(ids, np.int64))

    @classmethod
    def one(cls, partition: int, start: int, stop: int) -> Extents:
        """A single run."""
        return cls(*(np.array([v], np.int64) for v in (partition, start, stop)))

    @classmethod
    def joined(cls, parts: Sequence[Extents]) -> Extents:
        """Those of the parts, one after the other."""
        names, none = ("partition", "start", "stop"), [np.empty(0, np.int64)]
        return cls(*(np.concatenate(none + [getattr(part, name) for part in parts]) for name in names))

    def __len__(self) -> int:
        return len(self.partition)

    def __getitem__(self, rows: slice | NDArray[Any]) -> Extents:
        samples = None if self.samples is None else self.samples[rows]
        return Extents(self.partition[rows], self.start[rows], self.stop[rows], samples)

    @property
    def positions(self) -> int:
        """In all runs together."""
        return len(self) if self.samples is not None else int(self.lengths.sum())

    @property
    def lengths(self) -> Int64s:
        """Positions in each run, int64 (n,)."""
        return self.stop - self.start

    def check_inside(self, counts: Int64s, title: str) -> None:
        """Raise ConfigError, with `title` before it, where a run leaves partitions of `counts` positions from 0 on."""
        outside = len(self) > 0
        if outside and len(counts):
            last, left = len(counts) - 1 - self.partition, counts.take(self.partition, mode="clip") - self.stop
            outside = bool(np.minimum.reduce(self.partition | self.start | last | left) < 0)  # a sign among them
        if outside:
            msg = f"{title}: extents must lie inside the snapshot; found one that does not"
            raise ConfigError(msg)

    def ids(self) -> Int64s:
        """The sample id of every position, runs in order, int64 (sum of lengths,)."""
        if self.samples is not None:
            return self.samples
        lengths = self.lengths
        if len(self) == 1:
            return pack_ids(int(self.partition[0]), np.arange(self.start[0], self.stop[0], dtype=np.int64))
        if (lengths == 1).all():
            return pack_ids(self.partition, self.start)
        first = np.cumsum(lengths) - lengths
        position = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(self.start - first, lengths)
        return pack_ids(np.repeat(self.partition, lengths), position)


# Which positions hold a record, where many do not: sorted runs, and each record's number in its partition.
#
# The law: numbers have no gaps, positions do, and each gives the other. A plan orders numbers, so that
# every record comes once; reads and sample ids use positions, as everywhere.
#
#     positions  0 1 2 3 4 5 6 7 8 9        runs     [1, 4) [6, 8) [9, 10)
#     records      a b c     d e   f        numbers  0..2   3..4   5


@dataclass(frozen=True, slots=True, eq=False)
class Present:
    """The positions of a snapshot that hold a record, as runs sorted by partition and position; 16 bytes a run.

    runs    runs of each partition, int64 (partitions,)
    start   the first position of each run, int64 (all runs,)
    before  records before each run, of all partitions, and at the end all records: int64 (all runs + 1,)
    """

    runs: Int64s
    start: Int64s
    before: Int64s

    @classmethod
    def of(cls, extents: Extents, partitions: int) -> Present:
        """From runs of positions, sorted, no two of which touch."""
        runs = np.bincount(extents.partition, minlength=partitions).astype(np.int64)
        return cls(runs, extents.start, np.concatenate([[0], np.cumsum(extents.lengths)]).astype(np.int64))

    @classmethod
    def of_flags(cls, first: list[int], flags: list[NDArray[np.bool_]]) -> Present:
        """From a flag per position: flags[p][k] says whether position first[p] + k of partition p holds a record."""
        parts = []
        for p, (at, there) in enumerate(zip(first, flags, strict=True)):
            edges = np.flatnonzero(np.diff(there, prepend=False, append=False)).astype(np.int64) + at
            parts.append(Extents(np.full(len(edges) // 2, p, np.int64), edges[::2], edges[1::2]))
        return cls.of(Extents.joined(parts), len(flags))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Present) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __len__(self) -> int:
        return int(self.before[-1])

    def digest(self) -> str:
        """Equal for equal contents."""
        digest = hashlib.blake2b(digest_size=16)
        for column in (self.runs, self.start, self.before):
            digest.update(np.ascontiguousarray(column, "<i8").tobytes())
        return digest.hexdigest()

    @property
    def records(self) -> Int64s:
        """Records of each partition, int64 (partitions,)."""
        return np.diff(self._base())

    def _base(self) -> Int64s:
        """Records before each partition, and all: int64 (partitions + 1,)."""
        return np.asarray(self.before[np.concatenate([[0], np.cumsum(self.runs)])], np.int64)

    def reached(self, count: Int64s, starts: Int64s, stops: Int64s) -> Int64s:
        """Per partition where the record after the first `count` stands, int64; at the ends its start and its stop."""
        left = np.flatnonzero((count > 0) & (count < self.records))
        out = np.where(count > 0, stops, starts)
        out[left] = self.positions(Extents(left, count[left], count[left] + 1)).start
        return np.asarray(out, np.int64)

    def positions(self, numbers: Extents) -> Extents:
        """Runs of positions of the records that `numbers` names, in the same order; each extent is one or more runs."""
        base = self._base()[numbers.partition]
        first, stop = base + numbers.start, base + numbers.stop
        a = np.searchsorted(self.before[1:], first, side="right")
        counts = np.where(first < stop, np.searchsorted(self.before[1:], stop, side="left") + 1 - a, 0)
        nth = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        run = np.repeat(a, counts) + nth
        before = self.before[run]
        begin = np.maximum(np.repeat(first, counts), before) - before
        end = np.minimum(np.repeat(stop, counts), self.before[run + 1]) - before
        return Extents(np.repeat(numbers.partition, counts), self.start[run] + begin, self.start[run] + end)


def packed(present: Present, starts: Int64s) -> dict[str, Any]:
    """Plain JSON: at most a few bytes a run, next to nothing where runs and holes repeat.

    Holes and lengths of the runs alternate, eight planes of bytes (most are zero), deflated, in base64.
    """
    stop = present.start + np.diff(present.before)
    ahead = np.concatenate([[0], stop[:-1]])
    firsts = (np.cumsum(present.runs) - present.runs)[present.runs > 0]
    ahead[firsts] = starts[present.runs > 0]
    pairs = np.stack([present.start - ahead, stop - present.start], axis=1).astype("<i8")
    planes = pairs.reshape(-1).view(np.uint8).reshape(-1, 8).T
    return {"runs": present.runs.tolist(), "packed": base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode()}


def unpacked(packing: Mapping[str, Any], starts: Int64s, stops: Int64s) -> Present:
    """What `packed` made, of a snapshot with these starts and stops.

    Raises:
        ValueError: it is not that.
        KeyError, TypeError: nor anything like it.
    """
    runs = np.array([int(n) for n in packing["runs"]], np.int64)
    count, room = int(runs.sum()), int((stops - starts).sum())
    if len(runs) != len(starts) or (runs < 0).any() or not 0 < count <= room:
        msg = f"runs of {len(runs)} partitions, {count} in all, where {len(starts)} hold {room} positions"
        raise ValueError(msg)
    inflate = zlib.decompressobj()
    try:
        planes = inflate.decompress(base64.b64decode(str(packing["packed"]), validate=True), count * 16 + 1)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from error
    if len(planes) != count * 16:
        msg = f"{count} runs take {count * 16} bytes; found {len(planes)}"
        raise ValueError(msg)
    pairs = np.frombuffer(planes, np.uint8).reshape(8, -1).T.copy().view("<i8").reshape(-1, 2).astype(np.int64)
    partition = np.repeat(np.arange(len(runs)), runs)
    first = np.cumsum(runs) - runs
    opens = np.zeros(count, bool)
    opens[first[runs > 0]] = True
    if (pairs[:, 1] < 1).any() or (pairs[:, 0] < np.where(opens, 0, 1)).any() or pairs.sum(dtype=np.float64) > room:
        msg = "runs must be apart and of one position at least"
        raise ValueError(msg)
    ends = np.cumsum(pairs.sum(axis=1))
    stop = starts[partition] + ends - np.concatenate([[0], ends])[first[partition]]
    if (stop > stops[partition]).any():
        msg = "runs must lie within the snapshot"
        raise ValueError(msg)
    return Present.of(Extents(partition, stop - pairs[:, 1], stop), len(runs))
