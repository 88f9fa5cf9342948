"""commit(): what lag tools are told, on both brokers, and what becomes of a broker that does not answer."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kit.broker.handle import Kafka
from kit.images import QUICK, jpeg, labelled
from kit.inside import Feed

from dali_feed import DataLoader, Shuffle
from dali_feed.errors import ClosedError
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import Message, ScriptedSource, broker

LENGTHS = (12, 5, 0, 7)


def fill(kafka: Kafka) -> str:
    """A topic of unequal partitions, the third of them empty."""
    topic = kafka.create(kafka.topic, len(LENGTHS))
    kafka.publish(
        topic,
        [
            Message(jpeg(n), headers=(("label", b"%d" % n),), partition=p)
            for p, length in enumerate(LENGTHS)
            for n in range(length)
        ],
    )
    return topic


def committed(servers: str, topic: str, group: str) -> list[int]:
    """The group's offsets, as another consumer of that group sees them; -1001 where there is none."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    try:
        found = consumer.committed([TopicPartition(topic, p) for p in range(len(LENGTHS))], timeout=30)
        return [tp.offset for tp in found]
    finally:
        consumer.close()


def per_partition(ids: list[int]) -> list[int]:
    """How many of the ids are of which partition."""
    return [sum(sample >> 40 == p for sample in ids) for p in range(len(LENGTHS))]


def test_lag_tools_see_the_progress(kafka: Kafka) -> None:
    """After each batch the group stands at what was given of each partition, and at the end after the epoch."""
    topic, group = fill(kafka), f"g-{kafka.topic}"
    source = KafkaTopic(topic, kafka.servers, group=group)
    with DataLoader(source, 5, shuffle=Shuffle(2, 3), lanes=5, device="cpu", info=True, tuning=QUICK) as loader:
        assert committed(kafka.servers, topic, group) == [-1001] * 4  # nothing is committed unless it is asked for
        seen: list[int] = []
        for n, (_, _, info) in enumerate(loader, 1):
            seen += info.ids.tolist()
            loader.commit()
            wanted = per_partition(seen) if n < len(loader) else list(LENGTHS)
            assert committed(kafka.servers, topic, group) == wanted
        loader.commit()
        assert committed(kafka.servers, topic, group) == list(LENGTHS)
        next(iter(loader))
        loader.commit()
        assert sum(committed(kafka.servers, topic, group)) == 5  # the next epoch counts anew


def test_what_is_committed_is_never_read(kafka: Kafka) -> None:
    """A new loader of the same group begins at its own beginning, whatever the group says."""
    topic, group = fill(kafka), f"g-{kafka.topic}"
    given = []
    for _ in range(2):
        with DataLoader(KafkaTopic(topic, kafka.servers, group=group), 8, device="cpu", info=True) as loader:
            given.append([info.ids.tolist() for _, _, info in loader])
            loader.commit()
    assert given[0] == given[1]


def test_first_offsets_count_from_the_first_kept_one(kafka: Kafka) -> None:
    """Where retention has cut a partition, its figure begins at what is kept."""
    topic, group = fill(kafka), f"g-{kafka.topic}"
    kafka.delete_records(topic, 0, 4)
    with Feed(KafkaTopic(topic, kafka.servers, group=group), 4, tuning=QUICK) as feed:
        feed.commit()
        assert committed(kafka.servers, topic, group) == [4, 0, 0, 0]


def test_other_ranks_and_no_group_commit_nothing(embedded: Kafka) -> None:
    """Rank 0 speaks for all; a topic without a group has nobody to speak to."""
    topic, group = fill(embedded), f"g-{embedded.topic}"
    for source, rank in (
        (KafkaTopic(topic, embedded.servers, group=group), 1),
        (KafkaTopic(topic, embedded.servers), 0),
    ):
        with Feed(source, 2, rank=rank, world_size=2, tuning=QUICK) as feed:
            next(iter(feed))
            feed.commit()
    assert committed(embedded.servers, topic, group) == [-1001] * 4


def test_a_dead_broker_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """It comes within the deadline, as a line in the log; training goes on with what is in memory."""
    with broker() as running:
        kafka = Kafka("embedded", running)
        topic = fill(kafka)
        source = KafkaTopic(topic, kafka.servers, group="g", timeout=5)
        with Feed(source, 4, tuning=QUICK) as feed:
            batches = iter(feed)
            next(batches)
            running.down()
            done = threading.Event()

            def commit() -> None:
                feed.commit()
                done.set()

            with caplog.at_level(logging.WARNING, "dali_feed"):
                threading.Thread(target=commit, daemon=True).start()
                assert done.wait(30)
            told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("commit: ")]
            assert len(told) == 1
            assert topic in told[0]
            assert "'g'" in told[0]
            assert "checkpoints own the position" in told[0]
            assert next(batches).ids.size == 4


def test_a_group_with_members_is_a_warning(real_kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """Offsets of consumers that subscribe are theirs: nothing is overwritten."""
    topic, group = fill(real_kafka), f"g-{real_kafka.topic}"
    member = Consumer({"bootstrap.servers": real_kafka.servers, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        member.subscribe([topic])
        assert member.poll(60) is not None  # it has joined
        with Feed(KafkaTopic(topic, real_kafka.servers, group=group), 4, tuning=QUICK) as feed:
            next(iter(feed))
            feed.commit()
        assert sum(record.getMessage().startswith("commit: ") for record in caplog.records) == 1
        assert committed(real_kafka.servers, topic, group) == [-1001] * 4
    finally:
        member.close()


class Told(ScriptedSource):
    """A source that keeps what is committed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(labelled(23), partitions=3, extent=4, **options)
        self.told: list[list[int]] = []

    def commit(self, positions: Any) -> None:
        """Note it down."""
        self.told.append(positions.tolist())


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [True, False, Shuffle(4, 2), Shuffle(3, 100)], ids=str)
@pytest.mark.parametrize("lanes", [1, 4])
def test_progress_is_monotone_and_ends_at_the_end(lanes: int, shuffle: bool | Shuffle, drop_last: bool) -> None:
    """Any order: it starts at the first position, never goes back, sums to what was given, and ends at the end."""
    source = Told(first=100)
    with Feed(source, 4, shuffle=shuffle, lanes=lanes, drop_last=drop_last, tuning=QUICK) as feed:
        feed.commit()
        assert source.told == [[100, 100, 100]]
        taken = 0
        for batch in feed:
            taken += len(batch)
            feed.commit()
            rows = list(zip(*source.told[-2:], strict=True))
            assert all(a <= b for a, b in rows)
            if len(source.told) <= len(feed):
                assert sum(source.told[-1]) - 300 == taken
        assert source.told[-1] == feed.snapshot.stops.tolist()
        feed.commit()
        assert source.told[-1] == source.told[-2]


def test_a_source_that_cannot_commit_is_left_alone(tmp_path: Any) -> None:
    """commit() does nothing there, and is an error only after close()."""
    feed = Feed(ScriptedSource(labelled(4)), 2, tuning=QUICK)
    feed.commit()
    feed.close()
    with pytest.raises(ClosedError):
        feed.commit()
