"""A broker, its group and consumers of it, for schedules: the only place where librdkafka's consumer is played.

What it plays is what a group's member may meet: callbacks that run within a poll, records that were fetched before
partitions went, seeks that come too early, commits whose answer comes later, or is an error, and partitions that are
taken away without a word.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kit.schedules import Schedule, patched

from dali_feed.external_sources import KafkaStream
from dali_feed.external_sources.kafka import group, live_reader, reader, stream

__all__ = ["Broker", "Message", "ScriptedConsumer", "Stream", "played"]

TOPIC = "scripted"


class Message:
    """A record, or an event."""

    def __init__(self, partition: int, offset: int, value: bytes = b"", error: KafkaError | None = None) -> None:
        self._partition, self._offset, self._value, self._error = partition, offset, value, error

    def __len__(self) -> int:
        return len(self._value)

    def partition(self) -> int:
        """Its partition."""
        return self._partition

    def offset(self) -> int:
        """Its offset."""
        return self._offset

    def error(self) -> KafkaError | None:
        """None of a record."""
        return self._error

    def value(self) -> bytes:
        """The payload."""
        return self._value

    def key(self) -> None:
        """None."""

    def headers(self) -> None:
        """None."""

    def timestamp(self) -> tuple[int, int]:
        """None."""
        return 0, 0


class Broker:
    """A topic, and one group on it.

    records    of each partition offset -> value; some offsets hold none
    committed  the group's offsets
    owner      who has each partition; target: who is to have it; None: a member that is not played
    check      is called with what a commit sets, before it does
    called     by member when its last callback began, and when that ended
    calm       commits arrive soon
    """

    def __init__(self, schedule: Schedule, partitions: int, count: int, *, calm: bool = False) -> None:
        self.schedule, rng, self.calm = schedule, schedule.rng, calm
        self.records = {
            p: {at: b"bad" if rng.random() < 0.15 else b"%d.%d" % (p, at) for at in range(count) if rng.random() < 0.9}
            for p in range(partitions)
        }
        self.end = count
        self.committed: dict[int, int] = {}
        self.owner: dict[int, ScriptedConsumer | None] = dict.fromkeys(range(partitions))
        self.target: dict[int, ScriptedConsumer | None] = dict.fromkeys(range(partitions))
        self.times = dict.fromkeys(range(partitions), 0)  # how often each was dealt
        self.begins = dict.fromkeys(range(partitions), 0)  # where each was to be read from when it was dealt
        self.members: list[ScriptedConsumer] = []
        self.check: Callable[[ScriptedConsumer, dict[int, int]], None] = lambda _, __: None
        self.losses = 0
        self.called: dict[str, tuple[float, float]] = {}

    def balance(self) -> None:
        """Deal the partitions anew to those that are members now."""
        for p in self.target:
            self.target[p] = self.schedule.rng.choice(self.members) if self.members else None

    def lose(self, consumer: ScriptedConsumer) -> None:
        """Its session is over: its partitions are others' before it knows."""
        self.losses += 1
        for p, owner in self.owner.items():
            if owner is consumer:
                self.owner[p] = None
                consumer.lost.add(p)
        self.balance()

    def apply(self, consumer: ScriptedConsumer, offsets: dict[int, int], times: dict[int, int]) -> KafkaError | None:
        """A commit arrives; one of an older assignment is refused."""
        if any(self.owner[p] is not consumer or self.times[p] != times[p] for p in offsets):
            return KafkaError(KafkaError.UNKNOWN_MEMBER_ID)
        self.check(consumer, offsets)
        self.committed |= offsets
        return None


class ScriptedConsumer:
    """Of one member, or of none: then it is assigned by hand. One thread's."""

    def __init__(self, broker: Broker, name: str, on_commit: Callable[[Any, Any], None] | None) -> None:
        self.broker, self.name, self._on_commit = broker, name, on_commit
        self.lost = set[int]()  # taken away, and it has not heard
        self._at: dict[int, int] = {}  # position of what is assigned
        self._ends = set[int]()  # partitions whose end was said
        self._paused = set[int]()
        # Commits on their way: when they arrive, and how often their partitions had been dealt when they were sent.
        self._sent: list[tuple[float, dict[int, int], dict[int, int]]] = []
        self._answers: list[tuple[KafkaError | None, dict[int, int]]] = []
        self._callbacks: tuple[Any, Any, Any] | None = None
        self.closed = False
        self._inside = 0

    # What confluent_kafka's consumer has.

    def subscribe(self, topics: Sequence[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        """Become a member."""
        del topics
        self._callbacks = on_assign, on_revoke, on_lost
        self.broker.members.append(self)
        self.broker.balance()

    def poll(self, timeout: float) -> Message | None:
        """The next record or event; callbacks run in here."""
        with self._alone():
            schedule = self.broker.schedule
            ends = schedule.now + timeout
            while True:
                ahead = self._next() if schedule.rng.random() < 0.3 else None  # fetched before callbacks run
                self._serve()
                if ahead is not None and ahead.partition() in self._at:
                    return ahead
                message = self._next()
                if message is not None or schedule.now >= ends:
                    return message
                schedule.wait("records", self._something, min(ends - schedule.now, 0.05))

    def consume(self, count: int, timeout: float) -> list[Message]:
        """Several."""
        del timeout
        with self._alone():
            batch: list[Message] = []
            while len(batch) < count and (message := self._next()) is not None:
                batch.append(message)
            return batch

    def assign(self, places: Sequence[TopicPartition]) -> None:
        """From now on these."""
        self._at = {each.partition: each.offset for each in places}

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        """These too."""
        self._at |= {each.partition: max(0, each.offset) for each in places}

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        """These not any more."""
        for each in places:
            self._at.pop(each.partition, None)
            self._ends.discard(each.partition)
            if self.broker.owner[each.partition] is self:
                self.broker.owner[each.partition] = None

    def seek(self, place: TopicPartition) -> None:
        """Go on from there; what was fetched is dropped. Not while the partition is not being fetched yet."""
        if place.partition not in self._at or self.broker.schedule.rng.random() < 0.2:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self._at[place.partition] = place.offset
        self._ends.discard(place.partition)

    def pause(self, places: Sequence[TopicPartition]) -> None:
        """Let no records come."""
        self._paused |= {each.partition for each in places}

    def resume(self, places: Sequence[TopicPartition]) -> None:
        """Let them come."""
        self._paused -= {each.partition for each in places}

    def commit(self, *, offsets: Sequence[TopicPartition], asynchronous: bool) -> None:
        """Send a commit, which arrives some time later."""
        assert asynchronous
        seconds = (0.0, 0.0, 0.02, 0.5) if self.broker.calm else (0.0, 0.0, 0.02, 0.5, 3.0)
        arrives = self.broker.schedule.now + self.broker.schedule.rng.choice(seconds)
        self._sent.append((arrives, {each.partition: each.offset for each in offsets}, dict(self.broker.times)))

    def committed(self, places: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        """What the group has."""
        self.broker.schedule.sleep(self.broker.schedule.rng.choice((0.0, 0.01, min(0.4, timeout))))
        self._arrive()
        known = self.broker.committed
        return [TopicPartition(TOPIC, each.partition, known.get(each.partition, -1001)) for each in places]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        """What there is."""
        del place, timeout
        return 0, self.broker.end

    def close(self) -> None:
        """Leave the group."""
        if self.closed:
            return
        if self._callbacks is not None:
            self.broker.members.remove(self)
            mine = self._mine()
            if mine:
                self._call(self._callbacks[1], mine)
            for p, owner in self.broker.owner.items():
                if owner is self:
                    self.broker.owner[p] = None
            self.broker.balance()
        self.closed = True
        self._at = {}

    # Inside.

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two threads in it at a time are a crash of librdkafka."""
        self._inside += 1
        assert self._inside == 1, "two threads use a consumer"
        assert not self.closed, "a consumer is used after it was closed"
        try:
            yield
        finally:
            self._inside -= 1

    def _mine(self) -> list[int]:
        return [p for p, owner in self.broker.owner.items() if owner is self]

    def _something(self) -> bool:
        target = self.broker.target
        goes = any(owner is self and target[p] is not self for p, owner in self.broker.owner.items())
        comes = any(owner is None and target[p] is self for p, owner in self.broker.owner.items())
        return bool(goes or comes or self.lost or self._answers)

    def _arrive(self) -> None:
        """Commits that have arrived."""
        broker = self.broker
        while self._sent and self._sent[0][0] <= broker.schedule.now:
            _, offsets, times = self._sent.pop(0)
            wrong = KafkaError(KafkaError.REQUEST_TIMED_OUT) if broker.schedule.rng.random() < 0.05 else None
            self._answers.append((wrong or broker.apply(self, offsets, times), offsets))

    def _serve(self) -> None:
        """Callbacks that are due."""
        self._arrive()
        while self._answers and self._on_commit is not None:
            error, offsets = self._answers.pop(0)
            places = [TopicPartition(TOPIC, p, offset) for p, offset in offsets.items()]
            self._on_commit(error, places)
        if self._callbacks is None:
            return
        on_assign, on_revoke, on_lost = self._callbacks
        broker = self.broker
        if lost := sorted(self.lost):
            self.lost.clear()
            self._sent.clear()
            self._call(on_lost, lost)
        if going := [p for p in self._mine() if broker.target[p] is not self]:
            self._call(on_revoke, going)
        coming = [p for p, owner in broker.owner.items() if owner is None and broker.target[p] is self]
        if coming:
            for p in coming:
                broker.owner[p] = self
                broker.times[p] += 1
                broker.begins[p] = broker.committed.get(p, 0)
            self._call(on_assign, coming)

    def _call(self, callback: Callable[[Any, list[TopicPartition]], None], partitions: Sequence[int]) -> None:
        """A callback of the member's."""
        broker, began = self.broker, self.broker.schedule.now
        broker.called[self.name] = began, math.inf
        callback(self, [TopicPartition(TOPIC, p) for p in partitions])
        broker.called[self.name] = began, broker.schedule.now

    def _next(self) -> Message | None:
        """A record of any partition, or the end of one."""
        broker = self.broker
        ready = [p for p in self._at if p not in self._paused and (self._at[p] < broker.end or p not in self._ends)]
        if not ready:
            return None
        p = broker.schedule.rng.choice(ready)
        at = next((offset for offset in range(self._at[p], broker.end) if offset in broker.records[p]), broker.end)
        if at < broker.end:
            self._at[p] = at + 1
            return Message(p, at, broker.records[p][at])
        self._at[p] = broker.end
        self._ends.add(p)
        return Message(p, broker.end, error=KafkaError(KafkaError._PARTITION_EOF))


class Lookout:
    """Nobody looks: the broker always answers."""

    answer = failed = None
    trouble = ""

    def __init__(self, *_: Any) -> None:
        """Of nothing."""

    def begin(self) -> None:
        """Nothing."""

    def ask(self) -> None:
        """Nothing."""

    def unanswered(self) -> tuple[float, float]:
        """Never."""
        return 0.0, 0.0

    def clients(self) -> tuple[Any, ...]:
        """None."""
        return ()

    def close(self) -> None:
        """Nothing."""


class Cluster:
    """Questions about the topic."""

    broker: Broker

    def __init__(self, *_: Any, **__: Any) -> None:
        """Of the broker."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def has_controller(self) -> bool:
        """None that knows the topic's id."""
        return False

    def partitions(self) -> list[int]:
        """All."""
        return list(self.broker.records)

    def begins(self, start: Any, partitions: Sequence[int]) -> dict[int, int]:
        """Where they begin."""
        del start
        return dict.fromkeys(partitions, 0)


class Stream(KafkaStream):
    """A stream of the broker's topic, whose dead letters have no original."""

    originals = False


@contextmanager
def played() -> Iterator[None]:
    """Within, consumers are those of `Cluster.broker`."""

    def consumer(*_: Any, tuning: Any = None, settings: Any = None, **__: Any) -> ScriptedConsumer:
        del tuning
        options = settings or {}
        return ScriptedConsumer(Cluster.broker, options.get("group.instance.id", ""), options.get("on_commit"))

    def close(topic: str, client: ScriptedConsumer | None) -> None:
        del topic
        if client is not None:
            client.close()

    with patched(
        (live_reader, "Lookout", Lookout),
        (live_reader, "_RECEIVERS", weakref.WeakSet()),  # no thread of them is there at the interpreter's end
        (live_reader, "MEMBER_SECONDS", 0.2),  # steps of virtual time cost real time
        (live_reader, "Cluster", Cluster),
        (group, "Cluster", Cluster),
        (stream, "Cluster", Cluster),
        (reader, "consumer", consumer),
        (reader, "close_in_time", close),
    ):
        yield
