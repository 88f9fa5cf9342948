"""Sample ids, and runs of positions in partitions.

The law: a record is identified by (partition, position) alone, packed in 64 bits, and that
identity is the same in every run. Everything random about a sample is keyed by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """

    partition: Int64s
    start: Int64s
    stop: Int64s

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
        return Extents(self.partition[rows], self.start[rows], self.stop[rows])

    @property
    def lengths(self) -> Int64s:
        """Positions in each run, int64 (n,)."""
        return self.stop - self.start

    def check_inside(self, counts: Int64s, told: str) -> None:
        """Raise ConfigError, with `told` before it, where a run leaves partitions of `counts` positions from 0 on."""
        inside = (self.partition >= 0) & (self.partition < len(counts)) & (self.start >= 0)
        if not (inside.all() and (self.stop <= counts[self.partition]).all()):
            msg = f"{told}: extents must lie inside the snapshot; found one that does not"
            raise ConfigError(msg)

    def ids(self) -> Int64s:
        """The sample id of every position, runs in order, int64 (sum of lengths,)."""
        lengths = self.lengths
        if len(self) == 1:
            return pack_ids(int(self.partition[0]), np.arange(self.start[0], self.stop[0], dtype=np.int64))
        if (lengths == 1).all():
            return pack_ids(self.partition, self.start)
        first = np.cumsum(lengths) - lengths
        position = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(self.start - first, lengths)
        return pack_ids(np.repeat(self.partition, lengths), position)
