"""What a broker may answer to a request: the read goes on, or an error says what was refused."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from broker.handle import Kafka, payloads, read, rows, value
from confluent_kafka import Consumer, KafkaError, TopicPartition
from fleets import Worker, fleet_of_tests
from limits import LONG
from streamed import gather

from dali_feed.errors import (
    ClosedError,
    ConfigError,
    DataLostError,
    SourceDeniedError,
    SourceError,
    SourceUnreachableError,
)
from dali_feed.external_sources import KafkaStream, KafkaTopic
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import Trouble
from dali_feed.external_sources.kafka.group import GroupCommits
from dali_feed.testing import Broker

pytestmark = pytest.mark.waits

FETCH, LIST_OFFSETS, COMMIT, OFFSETS, JOIN = 1, 2, 8, 9, 11  # requests, by their numbers in Kafka's protocol
VALUES = [value(i) for i in range(20)]


@pytest.fixture
def answers(embedded: Kafka) -> Callable[..., None]:
    """Has the broker, with twenty records in a topic, answer the next requests of a kind with these errors."""
    embedded.publish(embedded.topic, [(each, i) for i, each in enumerate(VALUES)], partitions=1)
    cluster = embedded.cluster
    assert isinstance(cluster, Broker)
    return lambda request, *errors: cluster.fail_next(request, list(errors))


def options_of(kafka: Kafka, timeout: float = LONG) -> Connection:
    """Of a source of the topic."""
    return Connection(kafka.topic, kafka.servers, timeout)


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
    stream = KafkaStream(embedded.topic, embedded.servers, label=None, start="earliest", timeout=LONG).live()
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
    stream = KafkaStream(embedded.topic, embedded.servers, label=None, start="earliest", timeout=LONG).live()
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
            r"must accept the worker as a member; .*check Fleet\(\.\.\.\)",
        ),
    ],
)
def test_a_worker_that_is_refused_says_by_what(
    embedded: Kafka, answers: Callable[..., None], code: int, error: type[Exception], said: str
) -> None:
    """The group and the cure, and its loop ends at once."""
    worker = Worker(embedded.topic, embedded.servers, fleet_of_tests(embedded.topic))
    answers(JOIN, code)
    with pytest.raises(error, match=said):
        gather(worker.reader, lambda found: len(found) >= 20)
    worker.reader.close()


def test_offsets_of_a_group_are_asked_for_until_they_are_told(embedded: Kafka, answers: Callable[..., None]) -> None:
    """A coordinator that loads is waited for, as long as the source waits; the right to see them is needed."""
    group = embedded.topic
    answers(COMMIT, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    Cluster(options_of(embedded)).commit(group, {0: 7})
    answers(OFFSETS, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    assert Cluster(options_of(embedded)).committed(group, [0]) == {0: 7}
    answers(OFFSETS, KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(SourceDeniedError, match="a group's offsets need the right Describe on it"):
        Cluster(options_of(embedded)).committed(group, [0])
    answers(OFFSETS, *[KafkaError.COORDINATOR_LOAD_IN_PROGRESS] * 50)
    with pytest.raises(SourceUnreachableError, match=f"^{embedded.topic}: "):
        Cluster(options_of(embedded, 0.05)).committed(group, [0])


def test_a_question_about_a_topic_ends_with_the_reader(embedded: Kafka) -> None:
    """Nobody answers: the timeout of the source ends it, and so does the stop event, at once."""
    broker: Any = embedded.cluster
    broker.down()
    with pytest.raises(SourceUnreachableError, match="here: "):
        Cluster(options_of(embedded, 0.01)).topic_id("here")
    stop = threading.Event()
    stop.set()
    stopped = Cluster(options_of(embedded), stop)
    with pytest.raises(ClosedError, match="here: reading was stopped"):
        stopped.topic_id("here")
    with pytest.raises(ClosedError, match=f"{embedded.topic}: reading was stopped"):
        stopped.has_controller()


class Committing:
    """A member that was dealt its partition by hand, and its commits."""

    def __init__(self, kafka: Kafka) -> None:
        self.trouble = Trouble()
        self.commits = GroupCommits(options_of(kafka), kafka.topic, self.trouble)
        self.landed: list[dict[int, int]] = []
        fixed = {"bootstrap.servers": kafka.servers, "group.id": kafka.topic, "enable.auto.commit": False}
        self.consumer = Consumer({**fixed, "on_commit": self.commits}, logger=logging.getLogger("quiet"))
        self.consumer.assign([TopicPartition(kafka.topic, 0, 0)])

    def commit(self, offset: int) -> SourceError | None:
        """Have it committed, as the reader's thread does; why it could not be."""
        asked = self.commits.ask(lambda: {0: offset}, lambda sent: self.landed.append(dict(sent)))
        deadline = time.monotonic() + LONG
        while not asked.done.is_set():
            assert time.monotonic() < deadline
            self.commits.serve(self.consumer, "")
            self.consumer.poll(0.01)
        return asked.error


def test_commits_are_sent_again_or_told(
    embedded: Kafka, answers: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """A rebalance delays one, a member that was thrown out gives up with a warning, a missing right is an error."""
    member = Committing(embedded)
    answers(COMMIT, KafkaError.REBALANCE_IN_PROGRESS)
    assert member.commit(5) is None
    assert member.landed == [{0: 5}]
    answers(COMMIT, KafkaError.UNKNOWN_MEMBER_ID)
    assert member.commit(6) is None
    assert "the group has removed the worker, and what was not committed comes again" in caplog.text
    assert member.landed == [{0: 5}]
    answers(COMMIT, KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert isinstance(member.commit(7), SourceDeniedError)
    answers(COMMIT, KafkaError.INVALID_COMMIT_OFFSET_SIZE)
    error = member.commit(8)
    assert "could not be committed" in str(error)
    assert "What was not committed comes again" in str(error)
    assert member.commit(9) is None
    assert member.landed == [{0: 5}, {0: 9}]
    member.consumer.close()


def test_a_last_commit_is_waited_for(embedded: Kafka, answers: Callable[..., None]) -> None:
    """A worker that leaves sends what is due and hears the answer; one that came to nothing is told."""
    member = Committing(embedded)
    nothing = member.commits.ask(dict)
    last = member.commits.ask(lambda: {0: 3}, lambda sent: member.landed.append(dict(sent)))
    member.commits.now(member.consumer, "")
    assert nothing.done.is_set()
    assert (last.done.is_set(), last.error, member.landed) == (True, None, [{0: 3}])
    answers(COMMIT, KafkaError.GROUP_AUTHORIZATION_FAILED)
    refused = member.commits.ask(lambda: {0: 4})
    member.commits.now(member.consumer, "")
    assert isinstance(refused.error, SourceDeniedError)
    late = member.commits.ask(lambda: {0: 4})
    member.commits.give_up(late)
    assert "Timed out" in str(late.error)
    assert late.wanted() == {}
    member.consumer.close()
    closed = member.commits.ask(lambda: {0: 4})
    member.commits.now(member.consumer, "")
    assert "could not be committed" in str(closed.error)


def test_a_record_that_is_not_taken_is_told_by_who_publishes(embedded: Kafka) -> None:
    """A test that fills a topic must not go on without some of it."""
    topic = embedded.create(embedded.topic, 1)
    cluster: Any = embedded.cluster
    cluster.fail_next(0, [KafkaError.TOPIC_AUTHORIZATION_FAILED])  # of Produce
    with pytest.raises(
        SourceError, match="every record must be delivered; 1 were not; record 0: .*authorization failed"
    ):
        embedded.publish(topic, [(b"a", 1)])
    assert repr(cluster) == f"<embedded Kafka broker {embedded.servers}>"
    with pytest.raises(SourceError, match=f"topic '{topic}'"):
        cluster.create(topic, 1)
