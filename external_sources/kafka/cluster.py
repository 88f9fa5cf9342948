"""Requests of a snapshot to the cluster: a topic's partitions and their watermarks.

A request is repeated until it is answered, refused, or the source's timeout is over, as a cluster in the middle
of an election answers a moment later. No request here creates a topic.
"""

from __future__ import annotations

import difflib
import threading
import time

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ClusterMetadata

from dali_feed.errors import ClosedError, ConfigError, SourceDeniedError, SourceError, SourceNotFoundError
from dali_feed.external_sources.kafka.errors import DENIED, GONE, Trouble, denied, unreachable
from dali_feed.external_sources.kafka.options import KafkaOptions
from dali_feed.external_sources.kafka.tls import speaks_tls
from dali_feed.records.extents import MAX_PARTITION, Int64s

__all__ = ["Cluster"]

ELECTION_SECONDS = 2.0  # without a controller
SILENT_SECONDS = 3.0  # before we look whether it speaks TLS


class Cluster:
    """Requests about one topic, each repeated until it is answered or the timeout is over."""

    def __init__(
        self,
        options: KafkaOptions,
        consumer: Consumer,
        trouble: Trouble,
        stop: threading.Event | None = None,
        *,
        probe: bool = True,
    ) -> None:
        self._options = options
        self._consumer = consumer
        self._trouble = trouble
        self._begin = time.monotonic()
        self._probed = not probe  # whether it speaks TLS
        self._stop = stop or threading.Event()

    def partitions(self) -> list[int]:
        """The topic's partitions."""
        return sorted(self.metadata().topics[self._options.topic].partitions)

    def answers(self) -> bool:
        """Whether an admin is answered, whatever becomes of the topic; see `Asker.answers`, which would create it."""
        begun = time.monotonic()
        while True:
            found = self._asked()
            if found.controller_id >= 0 or time.monotonic() - begun > ELECTION_SECONDS:
                return found.controller_id in found.brokers
            self._pause()

    def metadata(self) -> ClusterMetadata:
        """The cluster, with this topic. A consumer asks, for a producer's question would create the topic."""
        topic = self._options.topic
        while True:
            cluster = self._asked()
            found = cluster.topics.get(topic)
            if found is None or (found.error is not None and found.error.code() in GONE):
                raise self._missing()
            if found.error is None:
                if len(found.partitions) > MAX_PARTITION:
                    msg = f"{topic}: at most {MAX_PARTITION} partitions are supported; found {len(found.partitions)}"
                    raise SourceError(msg)
                return cluster
            if found.error.code() == KafkaError.TOPIC_EXCEPTION:
                msg = f"topic: {topic!r} cannot be a topic's name (letters, digits, '.', '_' and '-')"
                raise ConfigError(msg)
            self._said(found.error)
            self._pause()

    def _asked(self) -> ClusterMetadata:
        while True:
            self._patience("")
            try:
                found: ClusterMetadata = self._consumer.list_topics(self._options.topic, timeout=self._slice())
            except KafkaException as error:
                self._said(error.args[0])
            else:
                return found

    def watermarks(self, partitions: list[int]) -> tuple[Int64s, Int64s]:
        """First kept and last stable offset of each partition: two requests to each broker, however many there are.

        They are asked for as offsets of the two times that stand for the ends, by the consumer, whose connections are
        up by now: a new admin client's first question waits for a second, one time in ten.
        """
        return self._offsets(partitions, OFFSET_BEGINNING), self._offsets(partitions, OFFSET_END)

    def ends(self, partitions: list[int]) -> Int64s:
        """Last stable offset of each partition."""
        return self._offsets(partitions, OFFSET_END)

    def since(self, partitions: list[int], milliseconds: int) -> Int64s:
        """The first offset of each partition whose record is of that time since 1970 or later; the end where none is.

        The ends are asked for first: what is produced in between is of that time, or comes behind it.
        """
        ends = self._offsets(partitions, OFFSET_END)
        found = self._offsets(partitions, milliseconds)
        return np.where(found < 0, ends, found)  # below 0 is librdkafka's word for the end

    def _offsets(self, partitions: list[int], end: int) -> Int64s:
        found: dict[int, int] = {}
        while len(found) < len(partitions):
            left = [p for p in partitions if p not in found]
            self._patience(f"[{left[0]}]")
            wanted = [TopicPartition(self._options.topic, p, end) for p in left]
            try:
                answers = self._consumer.offsets_for_times(wanted, timeout=self._slice())
            except KafkaException as error:
                self._said(error.args[0])
                self._pause()
                continue
            found.update({tp.partition: tp.offset for tp in answers if tp.error is None})
            errors = [tp.error for tp in answers if tp.error is not None]
            if errors:
                self._said(errors[0])
                self._pause()
        return np.array([found[p] for p in partitions], np.int64)

    def _said(self, error: KafkaError) -> None:
        if error.code() in DENIED:
            raise denied(self._options.topic, self._options.servers, error.str())
        self._consumer.poll(0)  # runs the error callback, which knows more than "timed out"
        self._trouble.last = self._trouble.last or error.str()

    def _patience(self, which: str) -> None:
        if self._stop.is_set():
            msg = f"{self._options.topic}: reading was stopped"
            raise ClosedError(msg)
        if self._trouble.denied:
            raise denied(self._options.topic, self._options.servers, self._trouble.denied, self._options.config)
        seconds = time.monotonic() - self._begin
        if not self._probed and seconds >= min(SILENT_SECONDS, self._options.timeout):
            self._probed = True
            if at := speaks_tls(self._options.servers, self._options.config):
                msg = f"{self._options.topic}: {at} uses TLS; set security.protocol to SSL or SASL_SSL in config="
                raise SourceDeniedError(msg)
        if seconds >= self._options.timeout:
            raise unreachable(self._options.topic + which, self._options.servers, seconds, self._trouble.last)

    def _slice(self) -> float:
        """Short, so that refused credentials show early; within what is left."""
        return max(0.05, min(1.0, self._begin + self._options.timeout - time.monotonic()))

    def _pause(self) -> None:
        self._stop.wait(0.05)  # an answer that will change soon, such as an election's

    def _missing(self) -> SourceNotFoundError:
        topic = self._options.topic
        try:
            names = [name for name in self._consumer.list_topics(timeout=5.0).topics if not name.startswith("__")]
        except KafkaException as error:
            near = f"its list of topics could not be read ({error.args[0].str()})"
        else:
            close = difflib.get_close_matches(topic, names, n=5, cutoff=0.5)
            none = f"none of its topics ({len(names)}) has a similar name"
            near = f"did you mean {', '.join(close)}?" if close else none
        return SourceNotFoundError(f"{topic}: the topic must exist at {self._options.servers}; there is none; {near}")
