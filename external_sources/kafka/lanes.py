"""The producers of a run behind one face: which one a record goes to, and how far the run is.

Compression is a producer's, so there is one for values that are packed already and one for the others (`auto`).
Each keeps the order of its own records in a partition; records of the two kinds may change places there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dali_feed.external_sources.kafka.lane import Lane, LaneOptions
from dali_feed.external_sources.kafka.made import Item
from dali_feed.external_sources.kafka.packed import is_packed
from dali_feed.external_sources.kafka.tally import Settled
from dali_feed.external_sources.kafka.transactions import TransactionLane, name_of
from dali_feed.external_sources.kafka.writes import Written
from dali_feed.records.tally import Tally

__all__ = ["AUTO", "CODECS", "Lanes", "SharedLanes", "TransactionLanes"]

CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
AUTO = {True: "none", False: "lz4"}  # by whether the value is packed

Where = Callable[[int], str]


class Lanes(Protocol):
    """What a run needs of its producers."""

    @property
    def position(self) -> int:
        """The first record that is not known to be in the topic."""
        ...

    def take(self, number: int, item: Item, partition: int) -> None:
        """Send a record, or count why there is none. Numbers grow."""
        ...

    def keep(self, number: int) -> None:
        """See how far the run is; all records before this number were handed over."""
        ...

    def finish(self, number: int) -> None:
        """Wait until all are settled."""
        ...

    def tally(self) -> Tally:
        """What became of the records before `position`."""
        ...

    def back(self, refused: dict[int, str]) -> None:
        """Stand where the last transaction ended; those that were refused are not sent again."""
        ...

    def close(self) -> None:
        """Drop what is not delivered."""
        ...


class SharedLanes:
    """Producers without transactions; what becomes of their records is settled in one line."""

    def __init__(self, options: LaneOptions, compression: str, position: int, tally: Tally, where: Where) -> None:
        self._options, self._compression = options, compression
        self._settled = Settled(position, tally, where)
        self._lanes: dict[str, Lane] = {}

    @property
    def position(self) -> int:
        """See `Lanes`."""
        return self._settled.mark

    def take(self, number: int, item: Item, partition: int) -> None:
        """See `Lanes`."""
        if isinstance(item, Written):
            self._lane(_codec(self._compression, item)).send(number, item, partition)
        else:
            self._settled.begin(number)
            self._settled.end(number, item)

    def keep(self, number: int) -> None:
        """See `Lanes`."""
        for lane in self._lanes.values():
            lane.poll()

    def finish(self, number: int) -> None:
        """See `Lanes`."""
        for lane in self._lanes.values():
            lane.flush()

    def tally(self) -> Tally:
        """See `Lanes`."""
        return self._settled.tally

    def back(self, refused: dict[int, str]) -> None:
        """There is no way back."""

    def close(self) -> None:
        """See `Lanes`."""
        for lane in self._lanes.values():
            lane.close()

    def _lane(self, codec: str) -> Lane:
        if codec not in self._lanes:
            self._lanes[codec] = Lane(self._options, codec, self._settled, {})
        return self._lanes[codec]


class TransactionLanes:
    """Producers with transactions, each with a position of its own: a record's value says whose it is."""

    def __init__(self, options: LaneOptions, compression: str, run: str, where: Where, *, opened: bool) -> None:
        self._compression, self._refused = compression, dict[int, str]()
        self._lanes: dict[str, TransactionLane] = {}
        try:
            for codec in AUTO.values() if compression == "auto" else (compression,):
                name = name_of(run, codec)
                self._lanes[codec] = TransactionLane(options, codec, where, name, opened=opened)
        except BaseException:
            self.close()
            raise
        self._first = next(iter(self._lanes.values()))

    @property
    def position(self) -> int:
        """See `Lanes`."""
        return min(lane.position for lane in self._lanes.values())

    def take(self, number: int, item: Item, partition: int) -> None:
        """See `Lanes`."""
        lane = self._lanes[_codec(self._compression, item)] if isinstance(item, Written) else self._first
        if number < lane.position:
            return
        if not isinstance(item, Written):
            lane.refused(number, item)
        elif number in self._refused:
            lane.refused(number, self._refused[number])
        else:
            lane.begin()
            lane.send(number, item, partition)

    def keep(self, number: int) -> None:
        """Commit."""
        for lane in self._lanes.values():
            if number > lane.position:
                lane.commit(number)

    def finish(self, number: int) -> None:
        """Commit."""
        self.keep(number)

    def tally(self) -> Tally:
        """See `Lanes`; of what is not committed too."""
        found = Tally()
        for lane in self._lanes.values():
            found.add(lane.settled.tally)
        return found

    def back(self, refused: dict[int, str]) -> None:
        """See `Lanes`."""
        self._refused |= refused
        for lane in self._lanes.values():
            lane.back()

    def close(self) -> None:
        """See `Lanes`."""
        for lane in self._lanes.values():
            lane.close()


def _codec(compression: str, item: Written) -> str:
    return AUTO[is_packed(item.value or b"")] if compression == "auto" else compression
