"""Insides that contract/topics/test_kafka_answers.py needs not: they go with what they test."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from kit.broker.handle import Kafka, value
from kit.limits import LONG

from dali_feed.errors import (
    ClosedError,
    SourceDeniedError,
    SourceError,
    SourceUnreachableError,
)
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
