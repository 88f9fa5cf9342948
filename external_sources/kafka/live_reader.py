"""One thread's way into a stream: the partitions of a rank, from their positions on, as long as it lives.

The law: a record's position moves when it is given, or when the partition has ended behind it; never by a jump. After
any error, and over any new connection, the reader goes on from its own positions. Records of a partition keep their
order; which partition comes first is the network's doing. The consumer is assigned at our offsets and belongs to no
group.

Silence in a stream may be peace or an outage, and only a question tells which: a lookout, a thread with a connection of
its own, asks every few seconds how many partitions there are and where they end. A partition is late only while its
turn has come: a record that is behind others in the queue of a loop that takes its time is not late, so the clock of a
partition runs from when the queue was seen empty, or much else was given.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from dali_feed.errors import (
    ClosedError,
    DataLostError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.external_sources.kafka.client import SLICE_SECONDS
from dali_feed.external_sources.kafka.cluster import Cluster, Identity
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import LOG, Meaning, denied, failed, gone, meaning, unreachable
from dali_feed.external_sources.kafka.reader import TopicReader, range_text
from dali_feed.external_sources.kafka.rows import MOST, Cells, KafkaParts
from dali_feed.records.live import LiveBlock, LiveReader, Positions
from dali_feed.records.source import Lease

__all__ = ["StreamReader"]

LOOK_SECONDS = 2.0
LEAST_SECONDS = 0.2  # between two, whatever is said
ASK_SECONDS = 2.0
GONE_SECONDS = 2.0  # a restarted broker may say 'unknown' for a moment
JOIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class LookoutAnswer:
    """An answer.

    asked   when the question was begun, time.monotonic seconds
    count   partitions that the topic has
    ends    last stable offset of each of ours that has a leader
    headless  the others, with the time since when they have none, time.monotonic seconds
    """

    asked: float
    count: int
    ends: dict[int, int]
    headless: dict[int, float]


class Watch:
    """Looks at the partitions of a rank, from the first `begin` on.

    look     the last answer
    failed   what ends the reading: no rights, or the topic is gone
    trouble  what was said instead of an answer
    """

    def __init__(self, to: Connection, rank: int, world_size: int) -> None:
        self._to = replace(to, timeout=min(ASK_SECONDS, to.timeout))
        self._half = to.timeout / 2
        self._rank, self._world_size = rank, world_size
        self.look: LookoutAnswer | None = None
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
            self._thread = threading.Thread(target=self._run, name="dali_feed-kafka-watch", daemon=True)
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
                    self.look = self._asked(begun)
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

    def _asked(self, begun: float) -> LookoutAnswer:
        there = self._cluster.metadata().topics[self._to.topic].partitions
        mine = range(self._rank, len(there), self._world_size)
        led = [p for p in mine if there[p].leader >= 0]
        before = {} if self.look is None else self.look.headless
        headless = {p: before.get(p, begun) for p in mine if there[p].leader < 0}
        return LookoutAnswer(begun, len(there), dict(zip(led, self._cluster.ends(led).tolist(), strict=True)), headless)

    def _unanswered(self, begun: float, said: str) -> None:
        self.trouble = said
        if self._since is None:
            self._since = begun
        self._until = time.monotonic()
        LOG.debug("%s: no answer: %s", self._to.topic, said)


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


MORE = 31  # records taken along with the one that was waited for: few enough that their bytes stay in cache


class StreamReader(TopicReader, LiveReader):
    """Polls the partitions p of a topic with p % world_size == rank; see `dali_feed.records.live.LiveReader`.

    at  the next offset to read of each of them

    Raises from `poll`:
        DataLostError: records that come next are gone (retention, deleted records).
        SourceChangedError: the topic was deleted, made anew or cut.
        SourceUnreachableError: no answer for `timeout` seconds, or records that do not come.
        SourceDeniedError: no rights.
        ClosedError: closed, or the stop event is set (seen within 0.1 s).
        ConfigError: used in a process that was forked from the reader's.
    """

    def __init__(
        self,
        to: Connection,
        parts: KafkaParts,
        identity: Identity,
        at: dict[int, int],
        *,
        rank: int = 0,
        world_size: int = 1,
        group: str | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__(to, parts, stop, identity)
        self._group, self._at = group, at
        self._rank, self._world_size = rank, world_size
        self._told = False
        self._left: list[Message] = []
        self._watch = Watch(to, rank, world_size)
        self._look: LookoutAnswer | None = None
        self._overdue = Overdue()
        self._heard = 0.0  # when the consumer gave something, time.monotonic seconds
        self._unknown = 0.0  # when it was last said that there is no such partition
        self._received = 0  # bytes
        self._doubted: dict[int, int] = {}  # partition -> offset that the broker said it does not have
        weakref.finalize(self, self._watch.close)

    def poll(self, records: int, size: float, seconds: float, lease: Lease) -> LiveBlock:
        """The records that have come; see `dali_feed.records.live.LiveReader.poll`."""
        self._guard.check()
        self._watch.begin()
        before: dict[int, int] = {}  # of the partitions that move
        taken = Cells(self._parts, min(records, MOST), lease)
        try:
            if records > 0:
                self._take(taken, before, size, time.monotonic() + seconds)
            if taken.count and not self._witness.vouches(self._identity.topic_id):
                self._identify(self._where(next(iter(before))))
            position = {p: self._at[p] for p in before} if self._told else dict(self._at)
            block = taken.block()
        except BaseException as error:
            self._at.update(before)  # nobody was given them: they come again
            self._told = False
            self._drop()
            if isinstance(error, KafkaException):
                raise failed(self._to, error) from error
            raise
        self._told = True
        return LiveBlock(block, position)

    def commit(self, position: Positions) -> None:
        """Set the group's offsets, for lag tools; does nothing without `group`. Raises SourceError within seconds."""
        if self._group is not None:
            with Cluster(self._to) as cluster:
                cluster.commit(self._group, position)

    @property
    def trouble(self) -> str:  # type: ignore[override]
        """The last error of librdkafka; empty while records come."""
        return self._trouble.last or self._watch.trouble

    def rest(self) -> None:
        """Take librdkafka's statistics, which pile up in it otherwise; see `records.live.LiveReader`."""
        message = None if self._consumer is None or self._guard.stop.is_set() else self._consumer.poll(0)
        if message is None:
            return
        self._left.append(message)
        if len(self._left) > MORE or self._witness.doubts(self._identity.topic_id):
            self._drop()  # its records come again, from our positions

    def close(self) -> None:
        """Close the connections, within two seconds whatever the broker does. Safe to call twice."""
        if self._guard.close():
            self._watch.close()
            self._drop()
            self._cluster = None

    def clients(self) -> tuple[Any, ...]:
        """What must not be destroyed in a child."""
        return *super().clients(), *self._watch.clients()

    def _take(self, taken: Cells, before: dict[int, int], size: float, deadline: float) -> None:
        """Records into `taken`, until one of the limits holds; `before` gets the old position of what moves."""
        batch, self._left = self._left, []
        while True:
            for n, message in enumerate(batch):
                partition, offset = message.partition(), message.offset()
                want = -1 if partition is None else self._at.get(partition, -1)
                if partition is None or offset is None or want < 0:
                    self._event(message, -1, before)
                elif message.error() is not None:
                    self._event(message, partition, before)
                elif offset >= want:  # else an older assignment's
                    if taken.count and taken.size + self._parts.weigh(message) > size:
                        self._left = batch[n:]
                        return
                    taken.append(partition, offset, message)
                    before.setdefault(partition, want)
                    self._at[partition] = offset + 1
                    if taken.full or taken.size >= size:
                        self._left = batch[n + 1 :]
                        return
            seconds = deadline - time.monotonic()
            batch = self._more(taken.rows - taken.count, max(0.0, seconds), before)
            if not batch and seconds <= 0:
                return

    def _more(self, most: int, seconds: float, before: dict[int, int]) -> list[Message]:
        """Up to `most` of what comes next; nothing where none came in time, or the next look is due."""
        if (look := self._watch.look) is not self._look and look is not None:
            self._looked(look, before)
        wait = min(SLICE_SECONDS, seconds)
        if not self._at:
            self._guard.stop.wait(wait)
            message = None
        else:
            client = self._connected()
            message = client.poll(wait)
        if self._guard.stop.is_set():
            msg = f"{self._to.topic}: reading was stopped"
            raise ClosedError(msg)
        if message is None:
            self._silence()
            return []
        batch = [message, *client.consume(min(most - 1, MORE), 0)] if most > 1 else [message]
        if self._doubts(self._where(next(iter(self._at)))):
            return []
        self._heard = time.monotonic()
        self._received += sum(map(len, batch))
        self._statistics.seen(batch)
        return batch

    def _looked(self, look: LookoutAnswer, before: dict[int, int]) -> None:
        """An answer has come: take up partitions that are new, and see who is late."""
        self._look = look
        new = [p for p in range(self._rank, look.count, self._world_size) if p not in self._at]
        if new:
            LOG.info("%s: partitions %s are new", self._to.topic, ", ".join(map(str, new)))
            for p in new:
                self._at[p] = before[p] = 0
        if new or 0.0 < self._unknown < look.asked:  # a consumer that is made now knows them
            self._unknown = 0.0
            self._drop()
        now = time.monotonic()
        for p, since in look.headless.items():
            if now - since >= self._to.timeout:
                said = self._trouble.last or "the partition has no leader"
                raise unreachable(self._to, now - since, said, self._where(p))
        self._overdue.looked(look, self._at, self._received, now)
        self._late(now)

    def _silence(self) -> None:
        """Nothing came: all is well, or there is something to be said."""
        now, where = time.monotonic(), self._where(next(iter(self._at), self._rank))
        if self._trouble.denied:
            raise denied(self._to, self._trouble.denied, where)
        if self._watch.failed is not None:
            raise self._watch.failed
        since, seconds = self._watch.unanswered()
        if seconds >= self._to.timeout and self._heard < since:
            raise unreachable(self._to, seconds, self._trouble.last, where)
        self._overdue.empty(self._at, now)
        self._late(now)

    def _late(self, now: float) -> None:
        """Connect anew for a partition that gives nothing of what it has, once at half of the timeout; or give up."""
        partition, seconds = self._overdue.longest(now)
        if seconds >= self._to.timeout:
            said = self._trouble.last or "there are records, but none comes"
            raise unreachable(self._to, seconds, said, self._where(partition))
        if seconds >= self._to.timeout / 2 and self._overdue.due(partition):
            where = self._where(partition)
            LOG.warning("%s: nothing came for %.0f s; connecting again (%s)", where, seconds, self._trouble.last)
            self._drop()
            self._connected(small=True)

    def _event(self, message: Message, partition: int, before: dict[int, int]) -> None:
        """Handle what is no record; `partition` is -1 where it is none of ours."""
        error = message.error()
        if error is None:
            return
        kind = meaning(error)
        if kind is Meaning.END:
            end = message.offset()
            if partition >= 0 and end is not None and end > self._at[partition]:
                before.setdefault(partition, self._at[partition])
                self._at[partition] = end
        elif kind is Meaning.RESET:
            if partition >= 0:
                self._lost(partition)
        elif kind is Meaning.GONE:
            self._unknown = time.monotonic()
            self._watch.ask()  # which has the last word
        else:
            self._trouble.judge(error, self._to, self._where(partition) if partition >= 0 else self._to.topic)

    def _lost(self, partition: int) -> None:
        """The broker does not have the next offset: raise, or connect anew where it turns out that it has."""
        where, want = self._where(partition), self._at[partition]
        self._identify(where)
        low, high = self._bounds(self._connected(), partition, where)
        if 0 <= low <= want <= high and self._doubted.get(partition) != want:
            self._doubted[partition] = want
            LOG.warning(
                "%s: the broker refused this offset, but it holds %d..%d; connecting again", where, low, high - 1
            )
            return self._drop()
        if 0 <= high < want:
            msg = (
                f"{where}: this offset comes next, but the partition ends at {high}: the topic was truncated or "
                "made again; start without the old state"
            )
            raise SourceChangedError(msg)
        msg = (
            f"{where}: this offset comes next, but the broker {range_text(low, high)}: retention or deletion removed "
            "records that were not read; give the topic a longer retention, and start without the old state to "
            "continue without those records"
        )
        raise DataLostError(msg)

    def _connected(self, *, small: bool = False) -> Consumer:
        """The consumer, assigned at our positions."""
        client = self._consumer
        if client is None:
            client = self._connect({}, small=small)
            client.assign([TopicPartition(self._to.topic, p, offset) for p, offset in self._at.items()])
        return client

    def _drop(self) -> None:
        """See `TopicReader`."""
        self._left = []
        super()._drop()

    def _where(self, partition: int) -> str:
        return self._to.where(partition, self._at.get(partition, 0))
