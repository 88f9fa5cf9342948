"""Questions to a cluster about one topic: partitions, offsets, settings, a group's offsets, and which topic it is.

The laws: a question is repeated until it is answered, refused, or the timeout is over, as a cluster in the middle of an
election answers a moment later; a wish to the controller is sent once, for the first try may have been done. No
question creates a topic.

What is read counts once it is known which topic it was read from: a consumer goes on at the old offsets of a new topic
of the name without a word, whenever its fetches happen to lie within it. There are two ways to know. Since Kafka 3.1 a
fetch names the topic by its id and the broker refuses any other, so a consumer's records are of the id that it stands
at; and it says so when it learns one: a line of its log, which comes to us through the queue of its records, and ahead
of those that it concerns. This costs nothing. Where the line never came (older brokers, another librdkafka) the id is
asked for after each read.
"""

from __future__ import annotations

import concurrent.futures
import difflib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    ListOffsetsResultInfo,
    OffsetSpec,
    ResourceType,
)

from dali_feed.errors import ClosedError, ConfigError, SourceDeniedError, SourceError, SourceNotFoundError
from dali_feed.external_sources.kafka.client import SLICE_SECONDS, Connection, admin_options, connect
from dali_feed.external_sources.kafka.errors import (
    DENIED,
    GONE,
    QUIET,
    Trouble,
    denied,
    gone,
    remade,
    speaks_tls,
    unreachable,
)
from dali_feed.records.extents import MAX_PARTITION, Int64s

__all__ = [
    "COMMIT_SECONDS",
    "Asker",
    "AtTopic",
    "Cluster",
    "Witness",
    "at_topic",
    "commit_offsets",
    "committed_offsets",
    "identify",
]

ELECTION_SECONDS = 2.0  # without a controller
SILENT_SECONDS = 3.0  # before we look whether it speaks TLS


class Cluster:
    """Requests about one topic, each repeated until it is answered or the timeout is over."""

    def __init__(
        self,
        to: Connection,
        consumer: Consumer,
        trouble: Trouble,
        stop: threading.Event | None = None,
        *,
        probe: bool = True,
    ) -> None:
        self._to = to
        self._consumer = consumer
        self._trouble = trouble
        self._begin = time.monotonic()
        self._probed = not probe  # whether it speaks TLS
        self._stop = stop or threading.Event()

    def partitions(self) -> list[int]:
        """The topic's partitions."""
        return sorted(self.metadata().topics[self._to.topic].partitions)

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
        topic = self._to.topic
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
                found: ClusterMetadata = self._consumer.list_topics(self._to.topic, timeout=self._slice())
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
            wanted = [TopicPartition(self._to.topic, p, end) for p in left]
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
            raise denied(self._to.topic, self._to.servers, error.str())
        self._consumer.poll(0)  # runs the error callback, which knows more than "timed out"
        self._trouble.last = self._trouble.last or error.str()

    def _patience(self, which: str) -> None:
        if self._stop.is_set():
            msg = f"{self._to.topic}: reading was stopped"
            raise ClosedError(msg)
        if self._trouble.denied:
            raise denied(self._to.topic, self._to.servers, self._trouble.denied, self._to.config)
        seconds = time.monotonic() - self._begin
        if not self._probed and seconds >= min(SILENT_SECONDS, self._to.timeout):
            self._probed = True
            if at := speaks_tls(self._to.servers, self._to.config):
                msg = f"{self._to.topic}: {at} uses TLS; set security.protocol to SSL or SASL_SSL in config="
                raise SourceDeniedError(msg)
        if seconds >= self._to.timeout:
            raise unreachable(self._to.topic + which, self._to.servers, seconds, self._trouble.last)

    def _slice(self) -> float:
        """Short, so that refused credentials show early; within what is left."""
        return max(0.05, min(1.0, self._begin + self._to.timeout - time.monotonic()))

    def _pause(self) -> None:
        self._stop.wait(0.05)  # an answer that will change soon, such as an election's

    def _missing(self) -> SourceNotFoundError:
        topic = self._to.topic
        try:
            names = [name for name in self._consumer.list_topics(timeout=5.0).topics if not name.startswith("__")]
        except KafkaException as error:
            near = f"its list of topics could not be read ({error.args[0].str()})"
        else:
            close = difflib.get_close_matches(topic, names, n=5, cutoff=0.5)
            none = f"none of its topics ({len(names)}) has a similar name"
            near = f"did you mean {', '.join(close)}?" if close else none
        return SourceNotFoundError(f"{topic}: the topic must exist at {self._to.servers}; there is none; {near}")


PAUSE_SECONDS = 0.05
_CURES = {
    KafkaError.INVALID_REPLICATION_FACTOR: "; each replica needs a broker of its own: take fewer, or leave it out",
}
_REFUSED = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_REQUEST,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_DELETION_DISABLED,
        KafkaError.TOPIC_EXCEPTION,
    }
)


@dataclass(frozen=True, slots=True)
class AtTopic:
    """One topic of a cluster, while something is done to it."""

    to: Connection
    trouble: Trouble
    consumer: Consumer
    cluster: Cluster
    admin: AdminClient

    def controller(self) -> None:
        """Make sure that somebody is there to do it."""
        if not self.cluster.answers():
            msg = (
                f"{self.to.topic}: an admin client needs a controller; {self.to.servers} has none that "
                "answers; on the embedded broker use `dali_feed.testing.Broker.create`"
            )
            raise SourceError(msg)

    def done(self, doing: str, right: str, ask: Callable[..., dict[str, concurrent.futures.Future[Any]]]) -> None:
        """Have it done; raises what the controller says, in our words."""
        topic, servers, timeout = self.to.topic, self.to.servers, self.to.timeout
        begun = time.monotonic()
        try:
            (future,) = ask(operation_timeout=timeout, request_timeout=timeout).values()
            future.result(timeout + 1)
        except concurrent.futures.TimeoutError:
            raise unreachable(topic, servers, time.monotonic() - begun, self.trouble.last) from None
        except ValueError as error:
            msg = f"{topic}: {doing}: {error}"
            raise ConfigError(msg) from error
        except KafkaException as error:
            code, said = error.args[0].code(), error.args[0].str()
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                msg = (
                    f"{topic}: a new topic needs a new name; {servers} already has a topic of this name; choose "
                    "another name, or grow or delete that topic"
                )
                raise ConfigError(msg) from error
            if code in GONE:
                raise gone(topic, servers, said) from error
            if code in DENIED:
                msg = (
                    f"{topic}: {doing} needs the right {right} on the topic; {servers} refuses: {said}; check "
                    "security.protocol, sasl.* and ssl.* in config= and the topic's ACLs"
                )
                raise SourceDeniedError(msg) from error
            if code in _REFUSED:
                cure = _CURES.get(code, "")
                msg = f"{topic}: {doing}: the cluster must accept it; {servers} refuses: {said}{cure}"
                raise ConfigError(msg) from error
            if code in (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError._TRANSPORT):
                raise unreachable(topic, servers, time.monotonic() - begun, self.trouble.last or said) from error
            msg = f"{topic}: {doing} at {servers} failed: {said}"
            raise SourceError(msg) from error

    def until(self, wanted: Callable[[list[int] | None], bool]) -> None:
        """Wait, at most the timeout, until the list of its partitions' leaders is as wanted (None: no topic)."""
        topic, deadline = self.to.topic, time.monotonic() + self.to.timeout
        while time.monotonic() < deadline:
            try:
                found = self.consumer.list_topics(topic, timeout=1.0).topics.get(topic)
            except KafkaException as error:
                self.trouble.last = error.args[0].str()
                continue
            missing = found is None or (found.error is not None and found.error.code() in GONE)
            leaders = None if missing or found is None else [each.leader for each in found.partitions.values()]
            if wanted(leaders or None):
                return
            time.sleep(PAUSE_SECONDS)
        msg = (
            f"{topic}: it was done, but the list of topics of {self.to.servers} does not show it yet; look again later"
        )
        raise SourceError(msg)

    def settings(self) -> tuple[dict[str, str], str]:
        """The topic's configuration, or why it could not be had."""
        asked = ConfigResource(ResourceType.TOPIC, self.to.topic)
        try:
            entries = self.admin.describe_configs([asked], request_timeout=self.to.timeout)[asked].result()
        except KafkaException as error:
            if error.args[0].code() in DENIED:
                return {}, "they need the right DescribeConfigs on the topic"
            return {}, error.args[0].str()
        return {name: str(entry.value) for name, entry in entries.items() if entry.value is not None}, ""

    def times(self, partitions: list[int]) -> tuple[dict[int, float], dict[int, float]]:
        """Unix seconds of the first and the newest record of each partition, where the broker knows them."""
        newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        return self._times(partitions, OffsetSpec.for_timestamp(0)), self._times(partitions, newest)

    def _times(self, partitions: list[int], which: OffsetSpec) -> dict[int, float]:
        wanted = {TopicPartition(self.to.topic, p): which for p in partitions}
        found: dict[int, float] = {}
        for at, future in self.admin.list_offsets(wanted, request_timeout=self.to.timeout).items():
            try:
                told: ListOffsetsResultInfo = future.result()
            except KafkaException:
                continue  # an older broker, or a partition without a leader
            if told.offset >= 0 and told.timestamp >= 0:
                found[at.partition] = told.timestamp / 1000
        return found


@contextmanager
def at_topic(to: Connection) -> Iterator[AtTopic]:
    """Clients for the topic that `to` names; nothing is asked yet."""
    trouble = Trouble()
    consumer = connect(to, trouble, modest=True)  # of records it reads one at most
    try:
        admin = AdminClient(admin_options(to, trouble))
        yield AtTopic(to, trouble, consumer, Cluster(to, consumer, trouble), admin)
    finally:
        consumer.close()


COMMIT_SECONDS = 5.0  # the training loop waits for it, after a checkpoint

_DENIED = DENIED | {KafkaError.GROUP_AUTHORIZATION_FAILED}
_NEEDS = "a group's offsets need the right Describe on it"
_SOON = frozenset(  # a cluster that makes its topic of offsets, or moves a group, answers a moment later
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)


def commit_offsets(to: Connection, group: str, offsets: Mapping[int, int]) -> None:
    """Set the group's offset of each of these partitions.

    Raises:
        SourceError: not done within 5 seconds, or the source's `timeout` where that is less; no rights; or the group
            has members, whose offsets they are.
    """
    trouble, deadline = Trouble(), time.monotonic() + min(COMMIT_SECONDS, to.timeout)
    admin = AdminClient(admin_options(to, trouble))
    wanted = [TopicPartition(to.topic, p, offset) for p, offset in offsets.items()]
    while True:
        error = _once(admin, ConsumerGroupTopicPartitions(group, wanted), max(0.05, deadline - time.monotonic()))
        if error is None:
            return
        if error.code() not in _SOON or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    admin.poll(0)  # runs the error callback, which knows more than "timed out"
    said = trouble.denied or trouble.last
    msg = (
        f"{to.topic}: offsets of group {group!r} could not be set at {to.servers}: {error.str()}"
        f"{f' ({said})' if said else ''}; check that the broker runs, that the group has no members, and the right Read"
        " on the group"
    )
    raise SourceError(msg)


def committed_offsets(
    to: Connection, group: str, partitions: Sequence[int], stop: threading.Event | None = None
) -> dict[int, int]:
    """The group's offset of each of these partitions that it has one of; the group is not joined.

    Raises:
        SourceDeniedError: no rights on the group.
        SourceUnreachableError: no answer for the source's `timeout`.
        ClosedError: the stop event is set.
    """
    trouble, begun, stopped = Trouble(), time.monotonic(), stop or threading.Event()
    admin = AdminClient(admin_options(to, trouble))
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(to.topic, p) for p in partitions])
    while not stopped.is_set():
        try:
            (future,) = admin.list_consumer_group_offsets([wanted], request_timeout=1.0).values()
            found = future.result(2.0).topic_partitions
            error = next((each.error for each in found if each.error is not None), None)
        except KafkaException as raised:
            error = raised.args[0]
        except concurrent.futures.TimeoutError:
            error = KafkaError(KafkaError._TIMED_OUT)
        if error is None:
            return {each.partition: each.offset for each in found if each.offset >= 0}
        admin.poll(0)  # runs the error callback, which knows more than "timed out"
        if trouble.denied or error.code() in _DENIED:
            said = trouble.denied or error.str()
            raise denied(to.topic, to.servers, said, to.config, _NEEDS)
        if time.monotonic() - begun >= to.timeout:
            seconds = time.monotonic() - begun
            raise unreachable(to.topic, to.servers, seconds, trouble.last or error.str())
        stopped.wait(0.05)
    msg = f"{to.topic}: reading was stopped"
    raise ClosedError(msg)


def _once(admin: AdminClient, wanted: ConsumerGroupTopicPartitions, seconds: float) -> KafkaError | None:
    """One attempt; what went wrong with it, or with the first partition where something did."""
    try:
        (future,) = admin.alter_consumer_group_offsets([wanted], request_timeout=seconds).values()
        done = future.result(seconds + 1)
    except KafkaException as error:
        found: KafkaError = error.args[0]
        return found
    except concurrent.futures.TimeoutError:
        return KafkaError(KafkaError._TIMED_OUT)
    return next((each.error for each in done.topic_partitions if each.error is not None), None)


_ZERO = "AAAAAAAAAAAAAAAAAAAAAA"  # what brokers that know no ids say
_NO_ID = {KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION}
_GONE_SECONDS = 2.0  # a restarted broker may say 'unknown' for a moment
_LEARNT = re.compile(r"Topic (\S+) changed id from \S+ to (\S+)")  # from _ZERO, the first time
_FETCHES = re.compile(r"ApiKey Fetch \(1\) Versions \d+\.\.(\d+)")  # of each broker, when it is connected to
_BY_ID = 13  # the first version of a fetch that names topics by their ids


class Witness:
    """A consumer's logger, which hears at which topic of a name its fetches are; see the law of this file.

    In librdkafka (rd_kafka_topic_metadata_update) the line is queued before the id is set, and the id before the next
    fetch is made with it; a response to the id before is thrown away. With `log.queue`, which confluent_kafka sets for
    any logger, lines stand in the consumer's own queue, and before records.
    """

    DEBUG = "metadata,feature"  # what librdkafka must tell for this: some lines per connection, none per fetch

    def __init__(self, topic: str, *, aloud: bool) -> None:
        self._topic, self._aloud = topic, aloud
        self._by_name = self._by_id = False
        self.topic_id = ""

    def log(self, level: int, text: str, *arguments: Any) -> None:
        """Listen to a line, and pass it on; one that only we asked for not (`aloud`: the user did too)."""
        if level <= logging.DEBUG:
            line = text % arguments if arguments else text
            if learnt := _LEARNT.search(line):
                if learnt[1] == self._topic:
                    self.topic_id = "" if learnt[2] == _ZERO else learnt[2]
            elif fetches := _FETCHES.search(line):
                by_id = int(fetches[1]) >= _BY_ID
                self._by_id, self._by_name = self._by_id or by_id, self._by_name or not by_id
            if not self._aloud:
                return
        QUIET.log(level, text, *arguments)

    def vouches(self, topic_id: str) -> bool:
        """Whether every record that the consumer has given so far is of this id."""
        return self.topic_id == topic_id != "" and self._by_id and not self._by_name

    def doubts(self, topic_id: str) -> bool:
        """Whether what it gives may be of another."""
        return "" not in (self.topic_id, topic_id) and self.topic_id != topic_id


class Asker:
    """Asks for the topic's id over a connection of its own, kept between questions: a millisecond each."""

    def __init__(self, to: Connection, stop: threading.Event | None = None) -> None:
        self._to, self._stop = to, stop or threading.Event()
        self._trouble = Trouble()
        self._admin = self._connected()

    def _connected(self) -> AdminClient:
        """A client; one whose broker died may wait for that one for ever, or its connection may be stuck."""
        return AdminClient(admin_options(self._to, self._trouble))

    def answers(self) -> bool:
        """Whether an admin is answered: librdkafka's mock cluster names a controller that is none of its brokers."""
        begun = time.monotonic()
        while True:
            try:
                cluster = self._admin.list_topics(self._to.topic, timeout=1.0)
            except KafkaException as error:
                self._said(error, self._to.topic, begun)
                continue
            if cluster.controller_id >= 0 or time.monotonic() - begun > _GONE_SECONDS:
                return cluster.controller_id in cluster.brokers
            self._stop.wait(SLICE_SECONDS)  # none is elected at the moment

    def ask(self, where: str) -> str | None:
        """The id; "" where the brokers have none (before Kafka 2.8), None where there is no such topic.

        Raises SourceUnreachableError after the source's timeout, SourceDeniedError, ClosedError at the stop event.
        """
        begun = time.monotonic()
        while True:
            question = self._admin.describe_topics(TopicCollection([self._to.topic]), request_timeout=1.0)
            try:
                found = str(next(iter(question.values())).result().topic_id)
            except KafkaException as error:
                code = error.args[0].code()
                if code in _NO_ID:
                    return ""
                if code not in GONE:
                    self._said(error, where, begun)
                elif time.monotonic() - begun > _GONE_SECONDS:
                    return None
                self._stop.wait(SLICE_SECONDS)
            else:
                return "" if found == _ZERO else found

    def _said(self, error: KafkaException, where: str, begun: float) -> None:
        """Wait on, or raise."""
        if self._stop.is_set():
            msg = f"{where}: reading was stopped"
            raise ClosedError(msg)
        self._admin.poll(0)  # runs the error callback, which knows more than "timed out"
        servers, said = self._to.servers, self._trouble.last or error.args[0].str()
        if self._trouble.denied or error.args[0].code() in DENIED:
            raise denied(where, servers, self._trouble.denied or said, self._to.config)
        if time.monotonic() - begun >= self._to.timeout:
            raise unreachable(where, servers, time.monotonic() - begun, said)
        self._admin = self._connected()


def identify(asker: Asker, known: str, where: str, servers: str) -> None:
    """Raise SourceChangedError where the topic is gone, or no longer the one whose id is `known`."""
    found = asker.ask(where)
    if found is None:
        raise gone(where, servers)
    if found not in (known, ""):
        raise remade(where, known, found)
