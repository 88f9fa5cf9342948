"""What a broker may answer to a request: the read goes on, or an error says what was refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError
from kit.broker.handle import Kafka, OpenedStream, payloads, read, rows, value
from kit.groups import Worker, group_of_tests
from kit.limits import LONG
from kit.streamed import gather

from dali_feed.errors import (
    ConfigError,
    DataLostError,
    SourceDeniedError,
    SourceError,
)
from dali_feed.external_sources import KafkaStream, KafkaTopic
from dali_feed.testing import publish

pytestmark = pytest.mark.waits

FETCH, LIST_OFFSETS, JOIN = 1, 2, 11  # requests, by their numbers in Kafka's protocol
VALUES = [value(i) for i in range(20)]


SOON = [
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.INVALID_MSG,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
]


@pytest.mark.parametrize("code", SOON)
def test_a_read_goes_on_behind_an_answer_that_passes(embedded: Kafka, answers: Callable[..., None], code: int) -> None:
    """A replica that lags or moves refuses once what is there: topic and stream give every record, once, in order."""
    source = KafkaTopic(embedded.topic, embedded.servers, label=None, timeout=LONG)
    source.snapshot()
    answers(FETCH, code)
    assert payloads(read(source, rows((0, 0, 20)))) == VALUES
    stream = OpenedStream(KafkaStream(embedded.topic, embedded.servers, label=None, start="earliest", timeout=LONG))
    answers(FETCH, code)
    found = gather(stream, lambda found: len(found) >= 20)
    assert found.position == {0: 20}
    stream.close()


def test_an_offset_that_is_refused_twice_is_lost(embedded: Kafka, answers: Callable[..., None]) -> None:
    """One answer that contradicts the broker's own offsets is doubted, the next one is believed: nothing waits on."""
    source = KafkaTopic(embedded.topic, embedded.servers, label=None, timeout=LONG)
    source.snapshot()
    answers(FETCH, *[KafkaError.OFFSET_OUT_OF_RANGE] * 2)
    with pytest.raises(DataLostError, match=r"\[0\]@0: the snapshot has offsets 0..19, but the broker holds 0..19"):
        read(source, rows((0, 0, 20)))


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SourceDeniedError, "needs the rights Describe and Read on the topic"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, SourceDeniedError, "the broker must accept the credentials"),
        (KafkaError.MSG_SIZE_TOO_LARGE, SourceError, r"the broker's data cannot be read: .*Message size too large"),
    ],
)
def test_a_read_ends_at_an_answer_that_stays(
    embedded: Kafka, answers: Callable[..., None], code: int, error: type[SourceError], said: str
) -> None:
    """No right, or data that cannot be read: the error has the offset, of a topic and of a stream."""
    source = KafkaTopic(embedded.topic, embedded.servers, label=None, timeout=LONG)
    source.snapshot()
    answers(FETCH, code)
    with pytest.raises(error, match=rf"^{embedded.topic}\[0\]@0: .*{said}"):
        read(source, rows((0, 0, 20)))
    stream = OpenedStream(KafkaStream(embedded.topic, embedded.servers, label=None, start="earliest", timeout=LONG))
    answers(FETCH, code)
    with pytest.raises(error, match=rf"^{embedded.topic}\[0\]@0: .*{said}"):
        gather(stream, lambda found: len(found) >= 20)
    stream.close()


def test_a_record_in_full_needs_the_right_to_read(embedded: Kafka, answers: Callable[..., None]) -> None:
    """For a dead letter: no right is an error, a topic that a broker does not know yet is waited for."""
    source = KafkaTopic(embedded.topic, embedded.servers, label=None, timeout=LONG)
    answers(FETCH, KafkaError.UNKNOWN_TOPIC_OR_PART)
    found = source.original(0, 5)
    assert found is not None
    assert found.value == VALUES[5]
    answers(FETCH, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(SourceDeniedError, match=r"\[0\]@5: reading needs the rights"):
        source.original(0, 5)


def test_ends_that_are_refused_for_a_moment_are_asked_for_again(embedded: Kafka, answers: Callable[..., None]) -> None:
    """A partition whose leader moves has its ends a moment later; without the right there are none."""
    answers(LIST_OFFSETS, KafkaError.NOT_LEADER_FOR_PARTITION)
    assert len(KafkaTopic(embedded.topic, embedded.servers, label=None, timeout=LONG).snapshot()) == 20
    answers(LIST_OFFSETS, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(SourceDeniedError, match=f"^{embedded.topic}: reading needs the rights"):
        KafkaTopic(embedded.topic, embedded.servers, label=None, timeout=LONG).snapshot()


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (KafkaError.GROUP_AUTHORIZATION_FAILED, SourceDeniedError, "joining a group needs the right Read on it"),
        (
            KafkaError.INCONSISTENT_GROUP_PROTOCOL,
            ConfigError,
            "all members of a group must assign partitions in the same way",
        ),
        (
            KafkaError.INVALID_SESSION_TIMEOUT,
            ConfigError,
            r"must accept the worker as a member; .*check ConsumerGroup\(\.\.\.\)",
        ),
    ],
)
def test_a_worker_that_is_refused_says_by_what(
    embedded: Kafka, answers: Callable[..., None], code: int, error: type[Exception], said: str
) -> None:
    """The group and the cure, and its loop ends at once."""
    worker = Worker(embedded.topic, embedded.servers, group_of_tests(embedded.topic))
    answers(JOIN, code)
    with pytest.raises(error, match=said):
        gather(worker.opened, lambda found: len(found) >= 20)
    worker.reader.close()


def test_a_record_that_is_not_taken_is_told_by_who_publishes(embedded: Kafka) -> None:
    """A test that fills a topic must not go on without some of it."""
    topic = embedded.create(embedded.topic, 1)
    cluster: Any = embedded.cluster
    cluster.fail_next(0, [KafkaError.TOPIC_AUTHORIZATION_FAILED])  # of Produce
    with pytest.raises(
        SourceError, match="every record must be delivered; 1 were not; record 0: .*authorization failed"
    ):
        publish(embedded.servers, topic, [(b"a", 1)])
    assert repr(cluster) == f"<embedded Kafka broker {embedded.servers}>"
    with pytest.raises(SourceError, match=f"topic '{topic}'"):
        cluster.create(topic, 1)
