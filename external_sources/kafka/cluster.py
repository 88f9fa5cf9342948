"""Questions to a cluster about one topic: partitions, offsets, settings, a group's offsets, and which topic it is.

The laws: a question is repeated until it is answered, refused, or the timeout is over, as a cluster in the middle of an
election answers a moment later; a wish to the controller is sent once, for the first try may have been done. No
question creates a topic.

A group's offsets are asked for and set by a consumer that has the group's id and never subscribes. An admin client's
requests to a group's coordinator (offsets of groups, descriptions of groups) may abort the process where its answer
comes late or is an error: librdkafka's issues 3663 and 4605.

What is read counts once it is known which topic it was read from: a consumer goes on at the old offsets of a new topic
of the name without a word, whenever its fetches happen to lie within it. There are two ways to know. Since Kafka 3.1 a
fetch names the topic by its id and the broker refuses any other, so a consumer's records are of the id that it stands
at; and it says so when it learns one: a line of its log, which comes to us through the queue of its records, and ahead
of those that it concerns. This costs nothing. Where the line never came (older brokers, another librdkafka) the id is
asked for after each read.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, TypeVar

import numpy as np
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource, NewTopic, OffsetSpec, ResourceType

from dali_feed.errors import ConfigError, SourceDeniedError, SourceError, SourceNotFoundError, SourceUnreachableError
from dali_feed.external_sources.kafka.client import StuckError, admin, close_in_time, consumer, modest, timely
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import (
    NO_RIGHTS,
    QUIET,
    READING,
    SLICE_SECONDS,
    Meaning,
    NotYetError,
    Patience,
    Trouble,
    check_same,
    codes,
    denied,
    gone,
    meaning,
    similar,
    unreachable,
)
from dali_feed.records.extents import MAX_PARTITION, Int64s

_T = TypeVar("_T")

COMMIT_SECONDS = 5.0  # the training loop waits for it, after a checkpoint
HEARD_SECONDS = 0.002  # the longest that an answer to a commit lies there
ELECTION_SECONDS = 2.0  # without a controller
GONE_SECONDS = 2.0  # a restarted broker may say 'unknown' for a moment
_GROUP_NEEDS = "a group's offsets need the right Describe on it"
_OF_MEMBERS = ("max.poll.", "heartbeat.", "session.")  # options that fit a member alone
# A cluster that makes its topic of offsets, or moves a group, answers a moment later.
_SOON = codes("COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR _WAIT_COORD")
_SILENT = codes("_TIMED_OUT REQUEST_TIMED_OUT _TRANSPORT")
_REFUSED_WISHES = codes("INVALID_REQUEST TOPIC_EXCEPTION")
_CURES = {
    KafkaError.INVALID_REPLICATION_FACTOR: "; each replica needs a broker of its own: take fewer, or leave it out",
}
_NO_IDS = codes("_UNSUPPORTED_FEATURE UNSUPPORTED_VERSION")
_ZERO = "AAAAAAAAAAAAAAAAAAAAAA"  # what brokers that know no ids say
_LEARNT = re.compile(r"Topic (\S+) changed id from \S+ to (\S+)")  # from _ZERO, the first time
_FETCHES = re.compile(r"ApiKey Fetch \(1\) Versions \d+\.\.(\d+)")  # of each broker, when it is connected to
_BY_ID = 13  # the first version of a fetch that names topics by their ids
_CAME = re.compile(r"Topic \S+ \[\d+\] MessageSet size (\d+), error")
_UNPACKED = re.compile(r"Enqueue \d+ message\(s\) \((\d+) bytes, .* ([a-z0-9]+)\)$")


class Identity:
    """The id of the topic that a source's snapshot is of; its readers hold what they read to it.

    A topic made anew under the same name has another one. "" where no snapshot was taken, or the brokers have none.
    """

    def __init__(self) -> None:
        self.topic_id = ""


class Witness:
    """A consumer's logger, which hears at which topic of a name its fetches are; see the law of this file.

    In librdkafka (rd_kafka_topic_metadata_update) the line is queued before the id is set, and the id before the next
    fetch is made with it; a response to the id before is thrown away. With `log.queue`, which confluent_kafka sets for
    any logger, lines stand in the consumer's own queue, and before records.
    """

    DEBUG = "metadata,feature"  # what librdkafka must tell for this: some lines per connection, none per fetch
    SIZES = "msg"  # and for `packing`: two lines per fetch and partition

    def __init__(self, topic: str, *, aloud: bool) -> None:
        self._topic, self._aloud = topic, aloud
        self._by_name = self._by_id = False
        self._came = self._sent = self._unpacked = 0
        self._codecs: set[str] = set()
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
            elif came := _CAME.search(line):
                self._came = int(came[1])
            elif unpacked := _UNPACKED.search(line):
                # Of the largest fetch: others begin amid a batch, which is sent whole.
                self._unpacked, self._sent = max((self._unpacked, self._sent), (int(unpacked[1]), self._came))
                self._codecs.add(unpacked[2])
            if not self._aloud:
                return
        QUIET.log(level, text, *arguments)

    @property
    def packing(self) -> tuple[float, tuple[str, ...]]:
        """What was sent for each byte of payload, and how batches were compressed; 1.0 and none: that is not known."""
        return self._sent / self._unpacked if self._unpacked else 1.0, tuple(sorted(self._codecs))

    def vouches(self, topic_id: str) -> bool:
        """Whether every record that the consumer has given so far is of this id."""
        return self.topic_id == topic_id != "" and self._by_id and not self._by_name

    def doubts(self, topic_id: str) -> bool:
        """Whether what it gives may be of another."""
        return "" not in (self.topic_id, topic_id) and self.topic_id != topic_id


class Cluster:
    """Questions about one topic, over clients of its own, which are made at the first question. Used by one thread.

    A consumer asks for what is known of topics, for an admin client's question would create the topic; an admin client
    asks for the rest. Every question may raise:

        SourceUnreachableError: no answer for the timeout.
        SourceDeniedError: no rights, or credentials that are refused.
        ClosedError: the stop event is set.
        ConfigError: an option of `config` is none.

    `committed` and `commit` speak of `group`; `probe`: a silent server is asked if it wants TLS.
    """

    def __init__(
        self, to: Connection, stop: threading.Event | None = None, *, group: str = "", probe: bool = True
    ) -> None:
        self.to, self.trouble, self._group = to, Trouble(), group
        self._commits: list[tuple[KafkaError | None, list[TopicPartition]]] = []  # what was answered to them
        self._stop, self._probe = stop, probe
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._controlled: bool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        (client, self._consumer), self._admin = (self._consumer, None), None
        close_in_time(self.to.topic, client)

    @property
    def consumer(self) -> Consumer:
        """The consumer that asks. Of records it fetches little at once."""
        if self._consumer is None:
            config = {k: v for k, v in self.to.config.items() if not k.startswith(_OF_MEMBERS)}
            alone = Connection(self.to.topic, self.to.servers, self.to.timeout, config)
            settings: dict[str, Any] = modest(config)
            if self._group:
                commits = self._commits
                settings |= {"group.id": self._group, "on_commit": lambda *answer: commits.append(answer)}
            self._consumer = consumer(alone, self.trouble, settings=settings)
        return self._consumer

    @property
    def admin(self) -> AdminClient:
        """The admin client that asks."""
        if self._admin is None:
            self._admin = admin(self.to, self.trouble)
        return self._admin

    def metadata(self) -> ClusterMetadata:
        """The cluster, with this topic.

        Raises:
            SourceNotFoundError: no such topic; the message names similar ones.
            SourceError: it has more partitions than are supported.
        """
        topic = self.to.topic

        def ask(seconds: float) -> ClusterMetadata:
            cluster: ClusterMetadata = self.consumer.list_topics(topic, timeout=seconds)
            there = cluster.topics.get(topic)
            if there is None or (there.error is not None and meaning(there.error) is Meaning.GONE):
                raise self._missing()
            if there.error is None:
                return cluster
            if there.error.code() == KafkaError.TOPIC_EXCEPTION:
                raise ConfigError(f"topic: {topic!r} cannot be a topic's name (letters, digits, '.', '_' and '-')")
            raise KafkaException(there.error)

        cluster = self._answer(ask)
        if (count := len(cluster.topics[topic].partitions)) > MAX_PARTITION:
            raise SourceError(f"{topic}: at most {MAX_PARTITION} partitions are supported; found {count}")
        return cluster

    def partitions(self) -> list[int]:
        """The topic's partitions. Raises what `metadata` does."""
        return sorted(self.metadata().topics[self.to.topic].partitions)

    def has_controller(self) -> bool:
        """Whether an admin is answered: librdkafka's mock cluster names a controller that is none of its brokers."""
        begin = time.monotonic()

        def ask(seconds: float) -> bool:
            cluster = self.consumer.list_topics(self.to.topic, timeout=seconds)
            if cluster.controller_id < 0 and time.monotonic() - begin <= ELECTION_SECONDS:
                raise NotYetError("none is elected at the moment")
            return cluster.controller_id in cluster.brokers

        if self._controlled is None:
            self._controlled = self._answer(ask)
        return self._controlled

    def bounds(self, partitions: list[int]) -> tuple[Int64s, Int64s]:
        """First kept and last stable offset of each partition, int64 (n,): two requests to each broker.

        They are asked for as offsets of the two times that stand for the ends, by the consumer, whose connections are
        up by now: a new admin client's first question waits for a second, one time in ten.
        """
        return self._offsets(partitions, OFFSET_BEGINNING), self.ends(partitions)

    def ends(self, partitions: list[int]) -> Int64s:
        """Last stable offset of each partition, int64 (n,)."""
        return self._offsets(partitions, OFFSET_END)

    def since(self, partitions: list[int], milliseconds: int) -> Int64s:
        """The first offset of each partition whose record is of that time since 1970 or later; the end where none is.

        The ends are asked for first: what is produced in between is of that time, or comes behind it.
        """
        ends = self.ends(partitions)
        offsets = self._offsets(partitions, milliseconds)
        return np.where(offsets < 0, ends, offsets)  # below 0 is librdkafka's word for the end

    def begins(self, start: str | float, partitions: list[int]) -> dict[int, int]:
        """Where each begins: "... earliest" or "... latest", or with the first record of a time, seconds since 1970."""
        if not partitions:
            return {}
        if isinstance(start, str):
            lows, highs = self.bounds(partitions)
            offsets = highs if start.endswith("latest") else lows
        else:
            offsets = self.since(partitions, math.ceil(1000 * start))
        return dict(zip(partitions, offsets.tolist(), strict=True))

    def _offsets(self, partitions: list[int], time_or_end: int) -> Int64s:
        known: dict[int, int] = {}

        def ask(seconds: float) -> None:
            wanted = [TopicPartition(self.to.topic, p, time_or_end) for p in partitions if p not in known]
            answers = self.consumer.offsets_for_times(wanted, timeout=seconds)
            known.update({each.partition: each.offset for each in answers if each.error is None})
            raise_first(answers)

        if partitions:
            self._answer(ask)
        return np.array([known[p] for p in partitions], np.int64)

    def topic_id(self, where: str = "") -> str | None:
        """The topic's id; "" where the brokers have none (before Kafka 2.8), None where there is no such topic."""
        begin = time.monotonic()

        def ask(_: float) -> str | None:
            (answer,) = self.admin.describe_topics(TopicCollection([self.to.topic]), request_timeout=1.0).values()
            try:
                topic_id = str(answer.result().topic_id)
            except KafkaException as error:
                if error.args[0].code() in _NO_IDS:
                    return ""
                if meaning(error.args[0]) is not Meaning.GONE:
                    raise
                if time.monotonic() - begin > GONE_SECONDS:
                    return None
                raise NotYetError(error.args[0].str()) from error
            return "" if topic_id == _ZERO else topic_id

        return self._answer(ask, where)

    def known_id(self) -> str:
        """The topic's id; "" where there is none, or nobody who would say it."""
        return (self.topic_id() or "") if self.has_controller() else ""

    def check_identity(self, known: str, where: str) -> None:
        """Raise SourceChangedError where the topic is gone, or no longer the one whose id is `known`."""
        now = self.topic_id(where)
        if now is None:
            raise gone(self.to, where=where)
        check_same(where, known, now)

    def committed(self, partitions: Sequence[int]) -> dict[int, int]:
        """The group's offset of each of these partitions that it has one of; the group is not joined."""
        wanted = [TopicPartition(self.to.topic, p) for p in partitions]

        def ask(seconds: float) -> dict[int, int]:
            try:
                places = self.consumer.committed(wanted, timeout=seconds)
            except KafkaException:
                self._listen(0)
                raise
            raise_first(places)
            return {each.partition: each.offset for each in places if each.offset >= 0}

        return self._answer(ask, needs=_GROUP_NEEDS)

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Set the offset of each of these partitions of the group, which nobody joins: lag tools see a training.

        SourceError where it is not done within 5 seconds, or the timeout where that is less, or must not be.
        """
        wanted = [TopicPartition(self.to.topic, p, offset) for p, offset in offsets.items()]

        def ask(seconds: float) -> None:  # not a synchronous commit, which waits without end for a coordinator
            ends = time.monotonic() + seconds
            self._commits.clear()
            self.consumer.commit(offsets=wanted, asynchronous=True)
            while not self._commits:
                if time.monotonic() > ends:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                self._listen(HEARD_SECONDS)
            error, places = self._commits[0]
            if error is not None:
                raise KafkaException(error)
            raise_first(places)

        patience = Patience(self.to, self.trouble, seconds=min(COMMIT_SECONDS, self.to.timeout))
        try:
            patience.until(ask, again=lambda error: error.code() in _SOON | _SILENT)
        except (KafkaException, SourceUnreachableError, SourceDeniedError) as error:
            client, self._consumer = self._consumer, None
            if client is not None:  # the loop waits for no close: one with a commit on its way may take a minute
                with suppress(StuckError, KafkaException, RuntimeError):
                    timely(client.close, 0.0)
            cause, more = error.__cause__ or error, self.trouble.denied or self.trouble.last
            words = cause.args[0].str() if isinstance(cause, KafkaException) else "no answer"
            raise SourceError(
                f"{self.to.topic}: offsets of group {self._group!r} could not be set at {self.to.servers}: {words}"
                f"{f' ({more})' if more else ''}; "
                "check that the broker runs, that the group has no members, and the right Read on the group"
            ) from error

    def _listen(self, seconds: float) -> None:
        """Run the consumer's callbacks. Raise that there are no rights on the group, which comes as an event."""
        event = self.consumer.poll(seconds)
        error = None if event is None else event.error()
        if error is not None and meaning(error) in NO_RIGHTS:
            raise KafkaException(error)

    def groups(self) -> dict[str, str] | None:
        """The cluster's groups that may be seen, and their states; None where it does not say."""
        seconds = self.to.timeout
        try:
            listed = self.admin.list_consumer_groups(request_timeout=seconds).result(seconds + 1)
        except (KafkaException, TimeoutError):
            return None
        if listed.errors and not listed.valid:
            return None
        return {each.group_id: _state_name(each.state) for each in listed.valid}

    def settings(self) -> tuple[dict[str, str], str]:
        """The topic's configuration, or why it could not be had."""
        if not self.has_controller():
            return {}, "this broker does not answer questions about settings"
        topic = ConfigResource(ResourceType.TOPIC, self.to.topic)
        try:
            entries = self.admin.describe_configs([topic], request_timeout=self.to.timeout)[topic].result()
        except KafkaException as error:
            if meaning(error.args[0]) is Meaning.DENIED:
                return {}, "they need the right DescribeConfigs on the topic"
            return {}, error.args[0].str()
        return {name: str(entry.value) for name, entry in entries.items() if entry.value is not None}, ""

    def times(self, partitions: list[int]) -> tuple[dict[int, float], dict[int, float]]:
        """Unix seconds of the first and the newest record of each partition, where the broker knows them."""
        if not self.has_controller():
            return {}, {}
        newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        return self._times(partitions, OffsetSpec.for_timestamp(0)), self._times(partitions, newest)

    def _times(self, partitions: list[int], which: OffsetSpec) -> dict[int, float]:
        wanted = {TopicPartition(self.to.topic, p): which for p in partitions}
        known: dict[int, float] = {}
        for at, future in self.admin.list_offsets(wanted, request_timeout=self.to.timeout).items():
            try:
                answer = future.result()
            except KafkaException:
                continue  # an older broker, or a partition without a leader
            if answer.offset >= 0 and answer.timestamp >= 0:
                known[at.partition] = answer.timestamp / 1000
        return known

    def wish(self, doing: str, right: str, ask: Callable[..., dict[str, Future[Any]]]) -> None:
        """Have the controller do something, once. A SourceError where it could not, a ConfigError where it refuses.

        `doing` and `right` are for messages; `ask` is a method of the admin client, with its limits of time.
        """
        topic, servers, timeout = self.to.topic, self.to.servers, self.to.timeout
        if not self.has_controller():
            raise SourceError(
                f"{topic}: an admin client needs a controller; {servers} has none that "
                "answers; on the embedded broker use `dali_feed.testing.Broker.create`, in the process that runs it"
            )
        begin = time.monotonic()
        try:
            (future,) = ask(operation_timeout=timeout, request_timeout=timeout).values()
            future.result(timeout + 1)
        except TimeoutError:
            raise unreachable(self.to, time.monotonic() - begin, self.trouble.last) from None
        except ValueError as error:
            raise ConfigError(f"{topic}: {doing}: {error}") from error
        except KafkaException as error:
            code, words, kind = error.args[0].code(), error.args[0].str(), meaning(error.args[0])
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                raise ConfigError(
                    f"{topic}: a new topic needs a new name; {servers} already has a topic of this name; choose "
                    "another name, or delete that topic"
                ) from error
            if kind is Meaning.GONE:
                raise gone(self.to, words) from error
            if kind is Meaning.DENIED:
                raise denied(self.to, words, needs=f"{doing} needs the right {right} on the topic") from error
            if kind is Meaning.REFUSED or code in _REFUSED_WISHES:
                msg = f"{topic}: {doing}: the cluster must accept it; {servers} refuses: {words}{_CURES.get(code, '')}"
                raise ConfigError(msg) from error
            if code in _SILENT:
                raise unreachable(self.to, time.monotonic() - begin, self.trouble.last or words) from error
            raise SourceError(f"{topic}: {doing} at {servers} failed: {words}") from error

    def create(self, partitions: int, replication: int = -1, config: Mapping[str, str] | None = None) -> None:
        """Make the topic, and wait until all of it is there. Raises what `wish` does."""
        new = NewTopic(self.to.topic, partitions, replication, config=dict(config or {}))
        self.wish("creating it", "Create", lambda **limits: self.admin.create_topics([new], **limits))
        self.wait_for_leaders(lambda leaders: leaders is not None and len(leaders) == partitions and min(leaders) >= 0)

    def wait_for_leaders(self, wanted: Callable[[list[int] | None], bool]) -> None:
        """Wait until the list of its partitions' leaders is as wanted (None: no topic).

        Raises SourceError where that does not come within the timeout: the wish was done all the same.
        """

        def ask(seconds: float) -> None:
            there = self.consumer.list_topics(self.to.topic, timeout=seconds).topics.get(self.to.topic)
            missing = there is None or (there.error is not None and meaning(there.error) is Meaning.GONE)
            leaders = None if missing or there is None else [each.leader for each in there.partitions.values()]
            if not wanted(leaders or None):
                raise NotYetError("the list of topics does not show it yet")

        try:
            self._answer(ask)
        except SourceUnreachableError as error:
            raise SourceError(
                f"{self.to.topic}: it was done, but the list of topics of {self.to.servers} does not show it yet; look "
                "again later"
            ) from error

    def _answer(self, ask: Callable[[float], _T], where: str = "", needs: str = READING) -> _T:
        def question(seconds: float) -> _T:
            try:
                return ask(seconds)
            except KafkaException as error:
                if self._consumer is not None:
                    self._consumer.poll(0)  # runs the error callback, which knows more than "timed out"
                if self._admin is not None:
                    self._admin.poll(0)
                    if error.args[0].code() in _SILENT and seconds >= SLICE_SECONDS:  # its broker died, or is stuck
                        self._admin = None
                raise

        patience = Patience(self.to, self.trouble, self._stop, needs=needs, probe=self._probe)
        answer = patience.until(question, where)
        self.trouble.clear()
        return answer

    def _missing(self) -> SourceNotFoundError:
        topic = self.to.topic
        try:
            names = [name for name in self.consumer.list_topics(timeout=5.0).topics if not name.startswith("__")]
            near = similar(topic, names, "its topics")
        except KafkaException as error:
            near = f"its list of topics could not be read ({error.args[0].str()})"
        return SourceNotFoundError(f"{topic}: the topic must exist at {self.to.servers}; there is none; {near}")


def raise_first(places: Iterable[TopicPartition]) -> None:
    """Raise what went wrong with the first partition where something did."""
    for each in places:
        if each.error is not None:
            raise KafkaException(each.error)


def _state_name(state: object) -> str:
    name = str(getattr(state, "name", "")).replace("_", " ").lower()
    return "" if name in ("unknown", "dead") else name
