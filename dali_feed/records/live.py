"""What a source is whose records never end: it has no snapshot and no plan, only a position that moves on.

The law: a record is given to one rank, once, in the order of its partition; which records come together in a block
is the network's doing, so nothing may depend on it but the borders of batches. What a reader gave is not consumed: the
training loop's position is, and that is what a state holds. A stream that goes on from a state gives what came behind
it: nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from dali_feed.records.source import Block, Extents, Lease, Reader, Records

__all__ = ["Drain", "LiveBlock", "LiveReader", "Pace", "Positions", "Stream", "is_live"]


Positions = Mapping[int, int]  # partition -> the next position to read there

# Called in the reader's thread with the partitions that are taken away and the seconds there are: waits until the loop
# has finished what it was handed of them, and returns how far that is; at once where its own stop event is set.
Drain = Callable[[Collection[int], float], Positions]


@dataclass(frozen=True, slots=True)
class Pace:
    """When a batch of a stream is handed over; the first that holds decides.

    timeout  seconds after its first record has come; None: only when it is full
    size     bytes of its payloads, so that large and small records fill a batch of equal cost; None: by count alone.
             A record larger than that is a batch by itself
    idle     seconds without any record, after which an empty batch is handed over, so that no rank keeps the others
             waiting in a collective; None: wait
    """

    timeout: float | None = None
    size: int | None = None
    idle: float | None = None


@dataclass(slots=True)
class LiveBlock:
    """Records in the order in which they came, none absent, and where their partitions stand behind them.

    `position` has each partition that has moved, by records or by offsets that hold none. A reader's first block, with
    records or without, has all partitions of its rank: where they stand before anything came of them.
    """

    block: Block
    position: dict[int, int]


class LiveReader(Reader):
    """One thread's way into a stream. Not shared between threads, but for `commit`; never inherited through fork."""

    @abstractmethod
    def poll(self, records: int, size: float, seconds: float, lease: Lease) -> LiveBlock:
        """Up to `records` records: as soon as so many are there, or `size` bytes of payload, or after `seconds`.

        The record that would pass `size` is left for the next call, unless it is the first. Seconds 0 asks for
        what has come already. `records` 0 asks for none: whoever has no room does so every second or two, as the member
        of a group must hear what becomes of its partitions (`drain` is called in here). Memory is taken of `lease`,
        which the caller releases, also when this raises: a ClosedError when the stop event is set, and a SourceError
        where it cannot go on.
        """

    def read(self, extents: Extents, lease: Lease) -> Block:
        """What has no end is polled."""
        raise NotImplementedError

    @abstractmethod
    def commit(self, position: Positions) -> None:
        """Publish how far the loop is. Raises a SourceError after a few seconds where that cannot be done."""


class Stream(Records):
    """Where records come from that never end. Cheap to make: nothing is opened before `live`."""

    @property
    @abstractmethod
    def pace(self) -> Pace:
        """When a batch is handed over."""

    @abstractmethod
    def live(
        self,
        at: Mapping[str, Any] | None,
        members: Sequence[str],
        *,
        rank: int = 0,
        world_size: int = 1,
        stop: threading.Event | None = None,
        drain: Drain | None = None,
    ) -> LiveReader:
        """A reader of these members of this rank's partitions, from `at` on, a mark of before; None: from the begin.

        Where it begins is captured here, once. Raises StateError where `at` is of something else, or lacks a partition
        of this rank.
        """

    @abstractmethod
    def mark(self, position: Positions, *, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
        """A rank's position as plain JSON, with what it was made for: all of its partitions, as blocks said them."""

    @abstractmethod
    def merged(self, marks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One mark of those of several ranks of one run, which a run of any world size goes on from.

        Raises StateError where they are not of one run, or two are of one rank.
        """


def is_live(source: object) -> TypeGuard[Stream]:
    """Whether records come from it that never end."""
    return isinstance(source, Stream)
