"""What a snapshot asks the cluster: a topic's partitions and their watermarks.

A question is repeated until it is answered, refused, or the source's timeout is over, for a cluster in the middle
of an election answers a moment later. Nothing asked here creates a topic.
"""

from __future__ import annotations

import difflib
import time

import numpy as np
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from dali_feed.errors import ConfigError, SourceError, SourceNotFoundError
from dali_feed.external_sources.kafka_errors import DENIED, GONE, Trouble, denied, unreachable
from dali_feed.external_sources.kafka_options import KafkaOptions, admin_options
from dali_feed.records import MAX_PARTITION, Int64s

__all__ = ["Cluster"]


class Cluster:
    """Questions about one topic, each asked until it is answered or the timeout is over."""

    def __init__(self, options: KafkaOptions, consumer: Consumer, trouble: Trouble) -> None:
        self._options = options
        self._consumer = consumer
        self._trouble = trouble
        self._begin = time.monotonic()

    def partitions(self) -> list[int]:
        """The topic's partitions. A consumer asks, for a producer's question would create the topic."""
        topic = self._options.topic
        while True:
            self._patience("")
            try:
                found = self._consumer.list_topics(topic, timeout=self._slice()).topics.get(topic)
            except KafkaException as error:
                self._said(error.args[0])
                continue
            if found is None or (found.error is not None and found.error.code() in GONE):
                raise self._missing()
            if found.error is None:
                if len(found.partitions) > MAX_PARTITION:
                    msg = f"{topic}: at most {MAX_PARTITION} partitions are supported; found {len(found.partitions)}"
                    raise SourceError(msg)
                return sorted(found.partitions)
            if found.error.code() == KafkaError.TOPIC_EXCEPTION:
                msg = f"topic: {topic!r} cannot be a topic's name (letters, digits, '.', '_' and '-')"
                raise ConfigError(msg)
            self._said(found.error)
            self._pause()

    def watermarks(self, partitions: list[int]) -> tuple[Int64s, Int64s]:
        """First kept and last stable offset of each partition: two requests to each broker, however many there are."""
        wanted = [TopicPartition(self._options.topic, p) for p in partitions]
        admin = AdminClient(admin_options(self._options, self._trouble))
        lows = self._offsets(admin, wanted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        highs = self._offsets(admin, wanted, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return lows, highs

    def _offsets(self, admin: AdminClient, wanted: list[TopicPartition], spec: OffsetSpec) -> Int64s:
        found: dict[int, int] = {}
        while len(found) < len(wanted):
            left = [tp for tp in wanted if tp.partition not in found]
            self._patience(f"[{left[0].partition}]")
            answers = admin.list_offsets(
                dict.fromkeys(left, spec),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=max(1.0, self._slice()),
            )
            failed = False
            for tp, answer in answers.items():
                try:
                    found[tp.partition] = answer.result().offset
                except KafkaException as error:
                    failed = True
                    self._said(error.args[0])
            if failed:
                admin.poll(0)
                self._pause()
        return np.array([found[tp.partition] for tp in wanted], np.int64)

    def _said(self, error: KafkaError) -> None:
        if error.code() in DENIED:
            raise denied(self._options.topic, self._options.servers, error.str())
        self._consumer.poll(0)  # runs the error callback, which knows more than "timed out"
        self._trouble.last = self._trouble.last or error.str()

    def _patience(self, which: str) -> None:
        if self._trouble.denied:
            raise denied(self._options.topic, self._options.servers, self._trouble.denied)
        seconds = time.monotonic() - self._begin
        if seconds >= self._options.timeout:
            raise unreachable(self._options.topic + which, self._options.servers, seconds, self._trouble.last)

    def _slice(self) -> float:
        """Short, so that refused credentials show early; within what is left."""
        return max(0.05, min(1.0, self._begin + self._options.timeout - time.monotonic()))

    def _pause(self) -> None:
        time.sleep(0.05)  # an answer that will change soon, such as an election's

    def _missing(self) -> SourceNotFoundError:
        topic = self._options.topic
        try:
            names = [name for name in self._consumer.list_topics(timeout=5.0).topics if not name.startswith("__")]
        except KafkaException as error:
            near = f"its list of topics could not be had ({error.args[0].str()})"
        else:
            close = difflib.get_close_matches(topic, names, n=5, cutoff=0.5)
            none = f"none of its {len(names)} topics has a similar name"
            near = f"did you mean {', '.join(close)}?" if close else none
        return SourceNotFoundError(f"{topic}: the topic must exist at {self._options.servers}; there is none; {near}")
