"""Who looks whether a stream is silent or cut off, which partitions are new, and which are late.

Silence may be peace or an outage, and only a question tells which: a lookout, a thread with a connection of its own,
asks every few seconds how many partitions there are and where they end. A partition is late only while its turn has
come: a record that is behind others in the queue of a loop that takes its time is not late, so the clock of a partition
runs from when the queue was seen empty, or much else was given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dali_feed.errors import ClosedError, SourceError, SourceNotFoundError, SourceUnreachableError
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import LOG, gone

LOOK_SECONDS = 2.0
LEAST_SECONDS = 0.2  # between two looks, whatever is said
ASK_SECONDS = 2.0
GONE_SECONDS = 2.0  # a restarted broker may say 'unknown' for a moment
JOIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class LookoutAnswer:
    """An answer.

    begun   when the question was begun, time.monotonic seconds
    count   partitions that the topic has
    ends    last stable offset of each of ours that has a leader
    headless  the others, with the time since when they have none, time.monotonic seconds
    """

    begun: float
    count: int
    ends: dict[int, int]
    headless: dict[int, float]


class Lookout:
    """Looks at the partitions that are `ours` of so many, from the first `begin` on.

    answer   the last one
    failed   what ends the reading: no rights, or the topic is gone
    trouble  what was said instead of an answer
    """

    def __init__(self, to: Connection, ours: Callable[[int], Iterable[int]]) -> None:
        self._to = replace(to, timeout=min(ASK_SECONDS, to.timeout))
        self._half = to.timeout / 2
        self._ours = ours
        self.answer: LookoutAnswer | None = None
        self.failed: SourceError | None = None
        self.trouble = ""
        self._since: float | None = None  # the first question that was not answered since the last that was
        self._until = 0.0
        self._stop, self._now = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._cluster = Cluster(self._to, self._stop, probe=False)

    def begin(self) -> None:
        """Start the thread, where that is not done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dali_feed-kafka-lookout", daemon=True)
            self._thread.start()

    def ask(self) -> None:
        """Look now."""
        self._now.set()

    def unanswered(self) -> tuple[float, float]:
        """Since when nothing is answered, time.monotonic seconds, and for how many seconds that is known; (0, 0)."""
        since = self._since
        return (0.0, 0.0) if since is None else (since, self._until - since)

    def close(self) -> None:
        """End the thread; one that is at a question ends after it, within two seconds."""
        self._stop.set()
        self._now.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def clients(self) -> tuple[Any, ...]:
        """What must not be destroyed in a child."""
        return (self._cluster,)

    def _run(self) -> None:
        absent = renewed = 0.0
        try:
            while not self._stop.is_set():
                begun = time.monotonic()
                try:
                    self.answer = self._look(begun)
                except SourceUnreachableError as error:
                    self._unanswered(begun, str(error))
                    if self._until - max(begun if self._since is None else self._since, renewed) >= self._half:
                        renewed = self._until
                        self._cluster.close()
                    continue
                except SourceNotFoundError as error:
                    absent = absent or begun
                    if time.monotonic() - absent > GONE_SECONDS:
                        self.failed = gone(self._to, str(error))
                        return
                    self._stop.wait(0.1)
                    continue
                absent, self._since, self.trouble = 0.0, None, ""
                self._stop.wait(LEAST_SECONDS)
                self._now.wait(LOOK_SECONDS - LEAST_SECONDS)
                self._now.clear()
        except ClosedError:
            return
        except SourceError as error:
            self.failed = error
        except Exception as error:  # noqa: BLE001  whatever ends the lookout, its reader must hear of it
            self.failed = SourceError(f"{self._to.topic}: {type(error).__name__}: {error}")
        finally:
            self._cluster.close()

    def _look(self, begun: float) -> LookoutAnswer:
        there = self._cluster.metadata().topics[self._to.topic].partitions
        ours = [p for p in self._ours(len(there)) if p in there]
        led = [p for p in ours if there[p].leader >= 0]
        before = {} if self.answer is None else self.answer.headless
        headless = {p: before.get(p, begun) for p in ours if there[p].leader < 0}
        return LookoutAnswer(begun, len(there), dict(zip(led, self._cluster.ends(led).tolist(), strict=True)), headless)

    def _unanswered(self, begun: float, words: str) -> None:
        self.trouble = words
        if self._since is None:
            self._since = begun
        self._until = time.monotonic()
        LOG.debug("%s: no answer: %s", self._to.topic, words)


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

    def looked(self, look: LookoutAnswer, at: Mapping[int, int], received: int, now: float) -> None:
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

    def rested(self) -> None:
        """Nothing was asked for, for some time: nobody's turn has come."""
        self._clocks.clear()

    def longest(self, now: float) -> tuple[int, float]:
        """(partition, seconds) of the one that is late for longest; (-1, 0) where none is."""
        late = ((now - clock.since, p) for p, clock in self._clocks.items() if clock.since is not None)
        seconds, partition = max(late, default=(0.0, -1))
        return partition, seconds

    def due(self, partition: int) -> bool:
        """True once for each time that it is late: what is stuck may go on over a new connection."""
        clock = self._clocks[partition]
        clock.renewed, before = True, clock.renewed
        return not before
