"""Two members of a group in thousands of orders of events: what is given, handed over, committed and taken away.

One thread plays all of them, an event at a time by a seed. librdkafka's consumer is a scripted one: it fetches ahead,
gives a record of before although partitions went in the same poll, refuses commits and seeks, and moves partitions.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dali_feed.errors import SourceError
from dali_feed.external_sources.kafka import group as groups
from dali_feed.external_sources.kafka import live_reader
from dali_feed.external_sources.kafka.cluster import Identity
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.group import ConsumerGroup, Membership
from dali_feed.external_sources.kafka.live_reader import KafkaLiveReader
from dali_feed.external_sources.kafka.rows import KafkaParts
from dali_feed.records.extents import unpack_ids
from dali_feed.records.live import LiveBlock, Progress
from dali_feed.records.slabs import SlabPool

TO, PARTITIONS, RECORDS = Connection("t", "nowhere:1", 60.0), 3, 12
Place = tuple[int, int]


class Record:
    """A message of Kafka."""

    def __init__(self, partition: int, offset: int) -> None:
        self._place = partition, offset

    def partition(self) -> int:
        """Where it is."""
        return self._place[0]

    def offset(self) -> int:
        """Where it is there."""
        return self._place[1]

    def value(self) -> bytes:
        """A byte."""
        return b"x"

    def timestamp(self) -> tuple[int, int]:
        """None."""
        return 0, 0

    def error(self) -> None:
        """None."""

    key = headers = error

    def __len__(self) -> int:
        return 1


class Broker:
    """A topic, and a group's offsets, which begin at 0."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.committed = dict.fromkeys(range(PARTITIONS), 0)
        self.owner: dict[int, ScriptedConsumer] = {}


class ScriptedConsumer:
    """What a member asks of its consumer."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._rng = broker, broker.rng
        self.at: dict[int, int] = {}
        self.moves: deque[Callable[[], None]] = deque()  # callbacks that are due
        self._answers: deque[tuple[KafkaError | None, list[TopicPartition]]] = deque()
        self.heard: Any = None

    def subscribe(self, _: Any, *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        """Keep the callbacks."""
        self.on_assign, self.on_revoke, self.on_lost = on_assign, on_revoke, on_lost

    def poll(self, _: float) -> Record | None:
        """Callbacks first, or a record along with them that was fetched before."""
        before = self._next() if self._rng.random() < 0.5 else None
        if self.moves:
            self.moves.popleft()()
            return before
        if self._answers and self._rng.random() < 0.7:
            self.heard(*self._answers.popleft())
        return before

    def _next(self) -> Record | None:
        ready = [p for p, offset in self.at.items() if offset < RECORDS]
        if not ready:
            return None
        p = self._rng.choice(ready)
        self.at[p] += 1
        return Record(p, self.at[p] - 1)

    def seek(self, place: TopicPartition) -> None:
        """Go on from there; now and then not yet."""
        if place.partition not in self.at or self._rng.random() < 0.3:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.at[place.partition] = place.offset

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        """These too."""
        self.at |= {each.partition: each.offset for each in places}

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        """These no more."""
        for each in places:
            self.at.pop(each.partition, None)

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        """Refused now and then, and of another's partitions always."""
        assert asynchronous
        wrong = None
        if self._rng.random() < 0.3:
            wrong = KafkaError(KafkaError.REBALANCE_IN_PROGRESS)
        elif any(self._broker.owner.get(each.partition) is not self for each in offsets):
            wrong = KafkaError(KafkaError.ILLEGAL_GENERATION)
        else:
            for each in offsets:
                assert each.offset >= self._broker.committed[each.partition], "a commit went back"
                self._broker.committed[each.partition] = each.offset
        self._answers.append((wrong, offsets))

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """The group's offsets."""
        assert timeout > 0
        return [TopicPartition("t", each.partition, self._broker.committed[each.partition]) for each in places]


class Impatient(Progress):
    """Who waits for the loop lets it take its steps first."""

    steps: Callable[[], None]

    def wait_finished(self, partitions: Collection[int], *_: Any) -> dict[int, int]:
        """Without any time passing."""
        self.steps()
        return super().wait_finished(partitions, 0.0)


class Member:
    """A member, its feed that polls ahead, and its loop."""

    def __init__(self, broker: Broker, given: list[Place], *, orderly: bool) -> None:
        self._rng, self._given, self._orderly = broker.rng, given, orderly
        self.progress = Impatient()
        self.progress.steps = self._finish
        membership = Membership(TO, ConsumerGroup("g"), "earliest")
        self.reader: Any = KafkaLiveReader(
            TO, KafkaParts(), Identity(), {}, membership=membership, progress=self.progress
        )
        self.slabs = SlabPool(1 << 12)
        self.consumer = ScriptedConsumer(broker)
        self.consumer.heard = membership._heard
        receiver: Any = self.reader._receiver
        receiver._thread, receiver._consumer = True, self.consumer
        receiver._silence = lambda: None  # there is no broker to ask
        membership.subscribe(self.consumer)  # type: ignore[arg-type]
        self._ahead: deque[LiveBlock] = deque()

    def _finish(self) -> None:
        if self._orderly:
            self.progress.asked()
            self._void()

    def _void(self) -> None:
        """What was read ahead must not be taken any more."""
        assert not any(self.progress.took(each.position, each.generation) for each in self._ahead)

    def receive(self) -> None:
        """The receiver's thread takes a turn."""
        self.reader._receiver._turn()

    def poll(self) -> None:
        """The feed's thread reads ahead."""
        if len(self._ahead) < 4:
            self._ahead.append(self.reader.poll(self._rng.randint(1, 4), 1e9, 0.0, self.slabs.lease()))

    def take(self) -> None:
        """The loop asks for a batch."""
        self.progress.asked()
        if self._ahead:
            block = self._ahead.popleft()
            if self.progress.took(block.position, block.generation):
                partitions, offsets = unpack_ids(block.block.ids)
                self._given += zip(partitions.tolist(), offsets.tolist(), strict=True)
            block.block.lease.release()

    def commit(self) -> None:
        """The loop says that all is finished; the receiver has no turn in the meantime."""
        try:
            self.reader.commit(self.progress.done())
        except SourceError as error:
            assert "could not be committed" in str(error)

    def step(self) -> None:
        """Any of these."""
        self._rng.choice((self.receive, self.receive, self.receive, self.poll, self.take, self.commit))()


def move(broker: Broker, members: list[Member], *, lost: bool) -> None:
    """Some partitions go from who has them to another member."""
    for p in broker.rng.sample(range(PARTITIONS), broker.rng.randint(1, PARTITIONS)):
        source, target = broker.owner.get(p), broker.rng.choice(members).consumer
        if source is target or any(each.consumer.moves for each in members):
            continue
        place = [TopicPartition("t", p)]

        def assign(place: list[TopicPartition] = place, target: ScriptedConsumer = target) -> None:
            broker.owner[place[0].partition] = target
            target.moves.append(lambda: target.on_assign(target, place))

        def revoke(
            place: list[TopicPartition] = place, source: Any = source, assign: Callable[[], None] = assign
        ) -> None:
            if lost:
                broker.owner.pop(place[0].partition)
                source.on_lost(source, place)
            else:
                source.on_revoke(source, place)
            assign()

        if source is None:
            assign()
        else:
            source.moves.append(revoke)


def run(seed: int, *, orderly: bool) -> None:
    """A schedule; its laws are asserted."""
    rng = random.Random(seed)
    broker, given = Broker(rng), list[Place]()
    members = [Member(broker, given, orderly=orderly) for _ in range(2)]
    for p in range(PARTITIONS):
        broker.owner[p] = members[0].consumer
    whole = [TopicPartition("t", p) for p in range(PARTITIONS)]
    members[0].consumer.moves.append(lambda: members[0].consumer.on_assign(members[0].consumer, whole))
    everything = {(p, n) for p in range(PARTITIONS) for n in range(RECORDS)}
    for step in range(20_000):
        if step < 400 and rng.random() < 0.04:
            move(broker, members, lost=not orderly and rng.random() < 0.3)
        rng.choice(members).step()
        if step > 400 and set(given) == everything:
            break
    assert set(given) == everything, f"lost {sorted(everything - set(given))}"
    if orderly:
        assert set(Counter(given).values()) == {1}
        for p in range(PARTITIONS):
            assert [n for partition, n in given if partition == p] == list(range(RECORDS))
    assert all(offset <= RECORDS for offset in broker.committed.values())


@pytest.mark.parametrize("orderly", [True, False], ids=["orderly", "thrown out"])
@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 4000), marks=pytest.mark.long)], ids=len)
def test_whatever_the_order_of_events(monkeypatch: pytest.MonkeyPatch, seeds: range, *, orderly: bool) -> None:
    """Nothing is lost, no commit goes back; where all goes in order nothing comes twice, and nothing out of order."""
    monkeypatch.setattr(groups, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(groups, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(live_reader, "SLICE_SECONDS", 0.0)
    for seed in seeds:
        try:
            run(seed, orderly=orderly)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
