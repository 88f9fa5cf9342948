"""Which partitions of a stream give nothing although there is something: stuck ones, or their broker's records lost.

The law: a partition is late only while its turn has come. A record that is behind others in the queue of a loop that
takes its time is not late: the clock of a partition runs from when the queue was seen empty, or much else was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dali_feed.external_sources.kafka.watch import Look

__all__ = ["Overdue"]

MUCH = 64 << 20  # bytes of others' records: many times what a consumer keeps


@dataclass(slots=True)
class _Clock:
    """Of a partition that stands at `position` although it goes on behind it."""

    position: int
    received: int  # bytes, of all partitions, when it was begun
    since: float | None = None  # when its turn had come
    renewed: bool = False


class Overdue:
    """Clocks of the partitions that are late. Seconds are time.monotonic's."""

    def __init__(self) -> None:
        self._clocks: dict[int, _Clock] = {}

    def looked(self, look: Look, at: Mapping[int, int], received: int, now: float) -> None:
        """Compare an answer with where the reader is, and how many bytes it has received in all."""
        late = {p for p, end in look.ends.items() if p in at and end > at[p]}
        for p in late:
            clock = self._clocks.get(p)
            if clock is None or clock.position != at[p]:
                self._clocks[p] = _Clock(at[p], received)
            elif clock.since is None and received - clock.received > MUCH:
                clock.since = now
        for p in self._clocks.keys() - late:
            del self._clocks[p]

    def empty(self, at: Mapping[int, int], now: float) -> None:
        """The queue is empty: whoever is late is late from now on."""
        for p, clock in list(self._clocks.items()):
            if at[p] != clock.position:
                del self._clocks[p]
            elif clock.since is None:
                clock.since = now

    def longest(self, now: float) -> tuple[int, float]:
        """(partition, seconds) of the one that is late for longest; (-1, 0) where none is."""
        found = ((now - clock.since, p) for p, clock in self._clocks.items() if clock.since is not None)
        seconds, partition = max(found, default=(0.0, -1))
        return partition, seconds

    def due(self, partition: int) -> bool:
        """True once for each time that it is late: what is stuck may go on over a new connection."""
        clock = self._clocks[partition]
        clock.renewed, before = True, clock.renewed
        return not before
