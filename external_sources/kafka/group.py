"""Workers that share a stream's partitions, dealt to them by the broker: what a member is, begins at and commits.

The laws: at least once. The group's offsets are the fleet's only position; a worker commits what its loop has finished,
and goes on from what was committed. Who has which partition shows nowhere but in who has its records.

A partition is begun once. Whoever is dealt one of which the group has no offset commits where it begins before
it reads, so that a worker which dies at once costs nothing: "latest" is not looked up again by the next one. A
partition that came after the group began is read from its beginning, whatever `start` says: nobody has skipped it. So
each commit says, in its metadata, of how many partitions the topic was when the group began.

confluent_kafka lets one thread at a time into a consumer, and one that polls again and again keeps all others out. So
who wants a commit asks for it, and who has the consumer's turn sends it and hears the answer, between two polls. The
callbacks run in whatever thread polls the consumer. They raise nothing, as librdkafka would be left without an answer:
what goes wrong is kept, and raised by the next `poll`.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from dali_feed.errors import ConfigError, DataLostError, SourceChangedError, SourceError, StateError
from dali_feed.external_sources.kafka.client import close_in_time, consumer
from dali_feed.external_sources.kafka.cluster import Cluster, Witness, raise_first
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import (
    GROUP_RIGHT,
    LOG,
    NO_RIGHTS,
    Meaning,
    Patience,
    Trouble,
    denied,
    gone,
    meaning,
    unreachable,
)
from dali_feed.records.live import Drain, Positions

__all__ = ["Fleet", "Membership", "Start", "fleet_of"]

PROTOCOLS = ("classic", "consumer")
MOST_SESSION = 3600.0  # librdkafka's
_HEARTBEATS = 10  # within a session, unless they would be rarer than one a second
_POLLS = 300.0  # seconds; librdkafka's own, raised where a drain takes longer
_MARGIN = 60.0  # seconds to commit in, after a drain
_OTHERS = ("partition.assignment.strategy", "group.protocol.type", "group.remote.assignor")
_POLL_OPTION = "max.poll.interval.ms"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Workers that share a stream's partitions: each record goes to one of them, and after a crash perhaps to another
    too.

    A record counts as done when the loop asks for the next batch, or calls `loader.commit()`. It is committed by
    `loader.commit()`, and when its partition goes to another worker or the loader is closed. After a crash another
    worker continues from the last commit: the records after it come again, and none is lost.

    group     the consumer group's name
    protocol  "classic": a member of the group assigns the partitions (cooperative-sticky, so that only partitions that
              move stop); works with any broker. "consumer": the broker assigns them (KIP-848); Kafka 4.0 and newer
    instance  this worker's own name, which it has again after a restart (static membership): its partitions wait for
              it, up to `session`. Two workers must not have the same name. With several ranks each adds its number
    session   seconds without a heartbeat after which a worker's partitions go to other workers; None: 45, and with
              "consumer" the broker's value, which cannot be set here
    drain     seconds that the loop has to finish its records of partitions that move to another worker. What it has not
              finished by then comes again at that worker

    Raises:
        ConfigError: a value that is not allowed.
    """

    group: str
    protocol: Literal["classic", "consumer"] = "classic"
    instance: str | None = None
    session: float | None = None
    drain: float = 30.0

    def __post_init__(self) -> None:
        for name, text in (("group", self.group), ("instance", self.instance)):
            if (name == "group" or text is not None) and (not isinstance(text, str) or not text):
                msg = f"Fleet({name}=): a name is needed; found {text!r}"
                raise ConfigError(msg)
        if self.protocol not in PROTOCOLS:
            msg = f'Fleet(protocol=): must be "classic" or "consumer"; found {self.protocol!r}'
            raise ConfigError(msg)
        if self.session is not None:
            if self.protocol == "consumer":
                msg = (
                    f'Fleet(session=): with protocol="consumer" the broker sets it; found {self.session!r}; set '
                    "consumer.session.timeout.ms of the group there, and leave session= out"
                )
                raise ConfigError(msg)
            if not 0 < self.session <= MOST_SESSION:
                msg = (
                    f"Fleet(session=): must be seconds, above 0 and at most {MOST_SESSION:.0f}; found {self.session!r}"
                )
                raise ConfigError(msg)
        if not 0 <= self.drain <= MOST_SESSION:
            msg = f"Fleet(drain=): must be seconds, 0 to {MOST_SESSION:.0f}; found {self.drain!r}"
            raise ConfigError(msg)

    def settings(self, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
        """The options of librdkafka that make a member."""
        found: dict[str, Any] = {"group.id": self.group, "group.protocol": self.protocol}
        if self.instance is not None:
            found["group.instance.id"] = self.instance if world_size == 1 else f"{self.instance}-{rank}"
        if self.protocol == "classic":
            found["partition.assignment.strategy"] = "cooperative-sticky"
            if self.session is not None:
                found["session.timeout.ms"] = round(1000 * self.session)
        return found

    def tuning(self) -> dict[str, Any]:
        """Options of librdkafka that a user may set in `config`."""
        # A partition that came later is seen when the member that deals asks for the topic's again: 5 minutes.
        found: dict[str, Any] = {"topic.metadata.refresh.interval.ms": 10_000}
        polls = max(_POLLS, self.drain + _MARGIN, self.session or 0.0)
        found[_POLL_OPTION] = round(1000 * polls)
        if self.protocol == "classic":
            found["heartbeat.interval.ms"] = round(min(1000.0, 1000 * (self.session or _POLLS) / _HEARTBEATS))
        return found

    def mark(self, topic: str) -> dict[str, Any]:
        """What a state holds of a fleet's stream: the group that has the position, and no position."""
        return {"topic": topic, "fleet": self.group}

    def check_mark(self, topic: str, told: Mapping[str, Any]) -> None:
        """Raise StateError if a mark is not this fleet's: only the group may have a position."""
        if (found := dict(told)) != self.mark(topic):
            msg = (
                f"{topic}: a worker of the fleet {self.group!r} continues at the offsets of the group, so its "
                f"state must be the fleet's; found {found}; leave the state out, or read without fleet="
            )
            raise StateError(msg)

    def check(self, topic: str, config: Mapping[str, Any], group: str | None, start: Any) -> None:
        """Raise ConfigError where an option of `config`, or another argument of the stream, contradicts this."""
        if group is not None:
            msg = (
                f"{topic}: fleet= names the group to join, and group= names a group that is not joined; give only "
                f"one of the two: leave out {group!r}"
            )
            raise ConfigError(msg)
        if isinstance(start, Mapping | list | tuple):
            msg = f"{topic}: start= of a fleet cannot be a state, because the group has the position; leave it out"
            raise ConfigError(msg)
        ours = {*_OTHERS, "session.timeout.ms"}
        if taken := sorted(ours.intersection(config)):
            msg = (
                f"{topic}: config= must not set how a fleet assigns its partitions; found {', '.join(taken)}; "
                "Fleet(protocol=, session=) says it"
            )
            raise ConfigError(msg)
        polls = str(config.get(_POLL_OPTION, ""))
        if polls.isdecimal() and int(polls) <= 1000 * self.drain:
            msg = (
                f"{topic}: {_POLL_OPTION} in config= must be above Fleet(drain=), or the group removes the "
                f"worker while its loop finishes; found {polls} ms and {self.drain:g} s"
            )
            raise ConfigError(msg)


def fleet_of(told: Fleet | str) -> Fleet:
    """A fleet, or one of the group of that name. Raises ConfigError for anything else."""
    if isinstance(told, Fleet):
        return told
    if isinstance(told, str):
        return Fleet(told)
    msg = f"fleet: must be a consumer group's name or a Fleet; found {told!r}"
    raise ConfigError(msg)


Start = str | float  # as `start.checked_start` gives it; "group": there must be offsets

ASK_SECONDS = 1.0
_NOTE = re.compile(r"partitions=(\d+)\b")


def begun(
    to: Connection, consumer: Consumer, trouble: Trouble, group: str, start: Start, dealt: Sequence[int]
) -> tuple[dict[int, int], dict[int, int], str]:
    """Where the group is in the partitions that were dealt. It is called in the member's callback.

    Returns:
        The next offset to read of each; those of them that the group had no offset of, which are to be committed before
        anything is read; and the metadata of this group's commits: how many partitions the topic had when it began.

    Raises:
        DataLostError: `start` is "group", and it has no offset of a partition that was there when it began.
        SourceUnreachableError: no answer for `timeout` seconds.
        SourceDeniedError: no rights.
    """
    patience = Patience(to, trouble, needs=GROUP_RIGHT)
    found = _committed(patience, to.topic, consumer, dealt)
    missing = [p for p in dealt if p not in found]
    fresh: dict[int, int] = {}
    first = _first_of(found)
    if missing:
        with Cluster(to) as cluster:  # a question asked by the member itself would end its callback in a crash
            everything = cluster.partitions()
            whole = _committed(patience, to.topic, consumer, everything)
            first = _first_of(whole) if whole else len(everything)
            early = [p for p in missing if p < first]
            if early and start == "group":
                raise _none(to.topic, early[0], group)
            fresh = cluster.begins("earliest", [p for p in missing if p >= first]) | cluster.begins(start, early)
    return {p: each.offset for p, each in found.items()} | fresh, fresh, f"partitions={first}"


def _first_of(found: Mapping[int, TopicPartition]) -> int:
    """What the notes of a group's commits say; 0 where another tool has set them: it knew all partitions there were."""
    notes = (_NOTE.search(each.metadata or "") for each in found.values())
    return max((int(note[1]) for note in notes if note), default=0)


def _none(topic: str, partition: int, group: str) -> DataLostError:
    return DataLostError(
        f"{topic}[{partition}]: the group {group!r} must have an offset of it; there is none: nobody has committed"
        ' one, or the broker forgot it (offsets.retention.minutes); set it, or give start="earliest" or "latest"'
    )


def _committed(
    patience: Patience, topic: str, consumer: Consumer, partitions: Sequence[int]
) -> Mapping[int, TopicPartition]:
    """The group's offsets of the partitions that it has one of."""

    def ask(seconds: float) -> Mapping[int, TopicPartition]:
        places = consumer.committed([TopicPartition(topic, p) for p in partitions], timeout=seconds)
        raise_first(places)
        return {each.partition: each for each in places if each.offset >= 0}

    patience.progress()
    return patience.until(ask)


PROBE_SECONDS = 1.0
WATERMARK_SECONDS = 2.0
GONE_SECONDS = 2.0  # a restarted broker may say 'unknown' for a moment


COMMIT_SECONDS = 5.0  # the loop waits for it
PAUSE_SECONDS = 0.05
_OUT = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_MEMBER_EPOCH})


class PendingCommit:
    """A commit that somebody waits for.

    wanted  what to commit; asked for before each attempt, as it shrinks when partitions are lost
    landed  called with what was committed
    """

    def __init__(self, wanted: Callable[[], dict[int, int]], landed: Callable[[Mapping[int, int]], None]) -> None:
        self.wanted, self.landed = wanted, landed
        self.sent: dict[int, int] = {}
        self.deadline = time.monotonic() + COMMIT_SECONDS
        self.not_before = 0.0
        self.done = threading.Event()
        self.error: SourceError | None = None


class GroupCommits:
    """The commits of one consumer, one after another. It is the consumer's `on_commit`."""

    def __init__(self, to: Connection, group: str, trouble: Trouble) -> None:
        self._to, self._group, self._trouble = to, group, trouble
        self._asked: deque[PendingCommit] = deque()
        self._flying: PendingCommit | None = None

    def ask(
        self, wanted: Callable[[], dict[int, int]], landed: Callable[[Mapping[int, int]], None] = lambda _: None
    ) -> PendingCommit:
        """Have it committed by who has the turn. Any thread may ask."""
        asked = PendingCommit(wanted, landed)
        self._asked.append(asked)
        return asked

    def serve(self, consumer: Consumer, note: str) -> None:
        """Send what is due, where nothing is on its way; to be called by who has the turn, again and again."""
        if self._flying is not None:
            if time.monotonic() > self._flying.deadline:
                self._end(self._flying, KafkaError(KafkaError._TIMED_OUT))
                self._flying = None
            return
        for asked in self._next():
            if (error := self.send(consumer, asked.sent, note)) is None:
                self._flying = asked
                return
            self._answer(asked, error)

    def send(self, consumer: Consumer, offsets: Mapping[int, int], note: str) -> KafkaError | None:
        """Send one, whose answer nobody waits for; librdkafka sends it before it gives up a partition."""
        try:
            consumer.commit(offsets=self._places(offsets, note), asynchronous=True)
        except KafkaException as error:
            found: KafkaError = error.args[0]
            return found
        return None

    @property
    def due(self) -> bool:
        """Whether something is to be sent."""
        asked = next(iter(self._asked), None)
        return asked is not None and self._flying is None and asked.not_before <= time.monotonic()

    def _next(self) -> Iterator[PendingCommit]:
        """What is due, as long as nothing is on its way; what nothing is left of to commit is done."""
        while self.due:
            asked = self._asked.popleft()
            asked.sent = asked.wanted()
            if asked.sent:
                yield asked
            else:
                asked.done.set()

    @property
    def under_way(self) -> bool:
        """Whether an answer is to be heard."""
        return self._flying is not None

    def now(self, consumer: Consumer, note: str) -> None:
        """Send what is due and wait for the broker, however long; for a thread that can be left behind.

        It runs no callback, as a poll would.
        """
        for asked in self._next():
            try:
                done = consumer.commit(offsets=self._places(asked.sent, note), asynchronous=False)
            except KafkaException as error:
                self._answer(asked, error.args[0])
            except RuntimeError:  # closed
                self._answer(asked, KafkaError(KafkaError._FATAL))
            else:
                self._answer(asked, next((each.error for each in done or () if each.error is not None), None))

    def __call__(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        """Hear an answer."""
        wrong = error or next((each.error for each in places if each.error is not None), None)
        asked = self._flying
        if asked is not None and asked.sent == {each.partition: each.offset for each in places}:
            self._flying = None
            self._answer(asked, wrong)
        elif wrong is not None:
            LOG.warning("%s; what was not committed comes again, at other workers", self._said(wrong))

    def _places(self, offsets: Mapping[int, int], note: str) -> list[TopicPartition]:
        return [TopicPartition(self._to.topic, p, offset, metadata=note) for p, offset in offsets.items()]

    def _answer(self, asked: PendingCommit, error: KafkaError | None) -> None:
        if error is None:
            asked.landed(asked.sent)
            asked.done.set()
        elif error.code() in _OUT:  # the partitions are others' now, and the next poll says so
            LOG.warning(
                "%s; the group has removed the worker, and what was not committed comes again", self._said(error)
            )
            asked.done.set()
        elif meaning(error) in (*NO_RIGHTS, Meaning.REFUSED) or time.monotonic() > asked.deadline:
            self._end(asked, error)
        else:  # a rebalance, or a coordinator that moves
            asked.not_before = time.monotonic() + PAUSE_SECONDS
            self._asked.appendleft(asked)

    def give_up(self, asked: PendingCommit) -> None:
        """Nobody had the turn in time, as while partitions are given up."""
        asked.wanted = dict
        self._end(asked, KafkaError(KafkaError._TIMED_OUT))

    def _end(self, asked: PendingCommit, error: KafkaError) -> None:
        if meaning(error) in NO_RIGHTS or self._trouble.denied:
            asked.error = denied(self._to, self._trouble.denied or error.str(), needs=GROUP_RIGHT)
        else:
            asked.error = SourceError(
                f"{self._said(error)}; check that the broker runs. What was not committed comes again"
            )
        asked.done.set()

    def _said(self, error: KafkaError) -> str:
        why = f"{error.str()}{f' ({self._trouble.last})' if self._trouble.last else ''}"
        topic, servers = self._to.topic, self._to.servers
        return f"{topic}: offsets of the group {self._group!r} could not be committed at {servers}: {why}"


class Membership:
    """One consumer that has joined; `dealt` are its partitions, with the offset that the group is known to have there.

    forget  called with the partitions that go, before the loop is waited for
    begin   called with those that were dealt, and where they begin
    """

    def __init__(
        self,
        to: Connection,
        fleet: Fleet,
        start: Start,
        settings: Mapping[str, Any],
        drain: Drain | None,
        forget: Callable[[Collection[int]], None],
        begin: Callable[[Positions], None],
        statistics: Callable[[str], None] | None = None,
    ) -> None:
        self._to, self._fleet, self._start, self._drain = to, fleet, start, drain
        self._forget, self._begin = forget, begin
        self.trouble = Trouble()
        self._since = self._asked = 0.0  # when trouble began, and when we last asked whether it goes on, monotonic
        self._gone_since = 0.0
        self.commits = GroupCommits(to, fleet.group, self.trouble)
        self.dealt: dict[int, int] = {}
        self._begun: PendingCommit | None = None  # the commit of where the group begins
        self._note, self._topic_id = "", ""
        self._failed: BaseException | None = None
        self._paused = self._leaving = False
        self._witness = Witness(to.topic, aloud="debug" in to.config)
        debug = {"debug": Witness.DEBUG} if Witness.DEBUG else {}
        self.consumer = consumer(
            to,
            self.trouble,
            tuning=fleet.tuning(),
            settings={**settings, **debug, "on_commit": self.commits},
            logger=self._witness,
            statistics=statistics,
        )

    def join(self) -> None:
        """Ask for partitions. Raises where there is no such topic, no answer or no right."""
        with Cluster(self._to) as cluster:
            cluster.partitions()
        self.consumer.subscribe([self._to.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def poll(self, seconds: float) -> Message | None:
        """A record or an event; callbacks run in here, and what is returned came after them.

        One at a time: of several at once the first may be of a partition that a callback behind it gives up.
        """
        found = self.consumer.poll(seconds)
        if self._failed is not None:
            raise self._failed
        self.commits.serve(self.consumer, self._note)
        if self._begun is not None and self._begun.done.is_set():
            error, self._begun = self._begun.error, None
            if error is not None:
                raise error
        self._topic_id = self._topic_id or self._witness.topic_id
        if self._witness.doubts(self._topic_id):
            msg = (
                f"{self._to.topic}: the topic must be the one that the worker began with, whose id is "
                f"{self._topic_id}; found one of id {self._witness.topic_id}: the topic was deleted and made "
                "again; start the worker again"
            )
            raise SourceChangedError(msg)
        return found

    @property
    def who(self) -> str:
        """The worker, for people: `clicks: group 'workers', instance 'w1'`."""
        mine = self._fleet.instance
        return f"{self._to.topic}: group {self._fleet.group!r}{f', instance {mine!r}' if mine else ''}"

    def progress(self) -> None:
        """A record came."""
        if self.trouble.last or self._since or self._gone_since:
            self.trouble.clear()
            self._since = self._gone_since = 0.0

    def heard(self, error: KafkaError, message: Message) -> int | None:
        """Handle what is no record; the position that it proves in its partition, if any.

        Raises:
            DataLostError: the records at the group's offset are gone.
            SourceChangedError: the partition ends before the group's offset.
            SourceDeniedError: no rights.
            ConfigError: the group does not take a member of these settings, or another has this instance's name.
            SourceError: records that cannot be read.
        """
        kind = meaning(error)
        if kind is Meaning.END:
            self.progress()
            return message.offset()
        if kind is Meaning.RESET:
            raise self._lost_at(message.partition() or 0, message.offset() or 0)
        if kind is Meaning.REFUSED:
            raise self._refused(error)
        where = self._to.topic
        if kind is Meaning.BROKEN:
            where = self._to.where(message.partition() or 0, message.offset() or 0)
        if error.code() == KafkaError._MAX_POLL_EXCEEDED:
            LOG.warning("%s: nothing was polled for too long (%s); the worker joins again", self.who, error.str())
        self.trouble.judge(error, self._to, where, GROUP_RIGHT)
        return None

    def silence(self) -> None:
        """Nothing came: raise where waiting is no use.

        Raises SourceDeniedError, SourceChangedError, or SourceUnreachableError after `timeout` seconds of trouble.
        """
        to, trouble = self._to, self.trouble
        if trouble.denied:
            raise denied(to, trouble.denied, needs=GROUP_RIGHT)
        if not (trouble.gone or trouble.last):
            return
        now = time.monotonic()
        self._since = self._since or now
        if now - self._asked < PROBE_SECONDS:
            return
        self._asked = now
        try:
            found = self.consumer.list_topics(to.topic, timeout=PROBE_SECONDS).topics.get(to.topic)
        except KafkaException as error:
            if (seconds := time.monotonic() - self._since) >= to.timeout:
                raise unreachable(to, seconds, trouble.last) from error
            return
        if found is None or (found.error is not None and meaning(found.error) is Meaning.GONE):
            self._gone_since = self._gone_since or now
            if now - self._gone_since >= GONE_SECONDS:
                raise gone(to, trouble.gone)
            return
        self.progress()

    def _lost_at(self, partition: int, wanted: int) -> SourceError:
        topic, group = self._to.topic, self._fleet.group
        where = f"{topic}[{partition}]@{wanted}"
        cure = (
            f"reset the offsets of the group {group!r} (kafka-consumer-groups --reset-offsets) when you know "
            "which records that skips"
        )
        try:
            low, high = self.consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=WATERMARK_SECONDS)
        except KafkaException as error:
            return DataLostError(f"{where}: the broker no longer holds it ({error.args[0].str()}); {cure}")
        if wanted > high:
            return SourceChangedError(
                f"{where}: the partition must reach the group's offset; it ends at {high}: it was truncated, or "
                f"the topic was made again; {cure}"
            )
        return DataLostError(
            f"{where}: offsets {wanted}..{low - 1} must be read next by the group {group!r}, and the broker "
            f"holds {low}..{high - 1}: retention or deletion removed them; {cure}, and give the topic a longer "
            "retention"
        )

    def _refused(self, error: KafkaError) -> SourceError | ConfigError:
        said = error.str()
        if "fenced" in said or "instance ID is still used" in said:
            return ConfigError(
                f"{self.who}: one worker at a time may use the name of an instance; another running worker uses "
                f"it: {said}; give each worker its own Fleet(instance=)"
            )
        if "nsupported" in said or "not supported" in said:
            return ConfigError(
                f"{self.who}: the broker must know the group's protocol; {said}; "
                'Fleet(protocol="classic") works with any broker, "consumer" with Kafka 4.0 and newer'
            )
        if "rotocol" in said:
            return ConfigError(
                f"{self.who}: all members of a group must assign partitions in the same way, cooperative-sticky; "
                f"{said}; stop the other members, or use another group"
            )
        return ConfigError(f"{self.who}: the broker must accept the worker as a member; {said}; check Fleet(...)")

    def pause(self) -> None:
        """Let no records come, so that a poll meets events alone."""
        if not self._paused:
            self._paused = True
            self.consumer.pause(self._places(self.dealt))

    def resume(self) -> None:
        """Let records come again, from where they stopped."""
        if self._paused:
            self._paused = False
            self.consumer.resume(self._places(self.dealt))

    @property
    def may_give(self) -> bool:
        """Whether it is known at the broker where the group begins in all that was dealt."""
        return self._begun is None

    def ask(self, position: Positions) -> PendingCommit:
        """Have the offsets committed of partitions that are this worker's; of others, and what is already, none."""
        return self.commits.ask(lambda: self._new(position), self._landed)

    def commit_now(self) -> None:
        """Commit what was asked for, and wait for the broker; see `GroupCommits.now`."""
        self.commits.now(self.consumer, self._note)

    def leave(self) -> None:
        """Commit what the loop has finished and leave the group, within seconds whatever the broker does."""
        self._leaving = True
        if self._drain is not None and self.dealt and self._failed is None:
            try:
                self._bye(self._drain(list(self.dealt), 0.0))
            except Exception as error:  # noqa: BLE001  whatever it is, the group must be left
                LOG.warning("%s: left the group without a commit: %s", self.who, error)
        close_in_time(self._to.topic, self.consumer)

    def _new(self, position: Positions) -> dict[int, int]:
        """What of a position may be committed, and was not."""
        dealt = dict(self.dealt)  # another thread may change it
        return {p: offset for p, offset in position.items() if p in dealt and offset > dealt[p]}

    def _landed(self, offsets: Positions) -> None:
        self.dealt |= {p: offset for p, offset in offsets.items() if p in self.dealt}

    def _bye(self, position: Positions) -> None:
        """Commit before partitions go."""
        if (new := self._new(position)) and (error := self.commits.send(self.consumer, new, self._note)) is not None:
            LOG.warning("%s: gave up %s without a commit: %s", self.who, _listed(new), error.str())

    def _places(self, partitions: Collection[int]) -> list[TopicPartition]:
        return [TopicPartition(self._to.topic, p) for p in partitions]

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        found = sorted(each.partition for each in partitions)
        places: list[TopicPartition] = []
        try:
            if found and not self._leaving:
                to, group = self._to, self._fleet.group
                offsets, fresh, self._note = begun(to, consumer, self.trouble, group, self._start, found)
                self.dealt |= offsets
                if fresh:
                    # It is sent with the next poll: librdkafka lets a commit wait until it has this callback's answer.
                    self._begun = self.commits.ask(lambda: {p: o for p, o in fresh.items() if p in self.dealt})
                self._begin(offsets)
                places = [TopicPartition(to.topic, p, offset) for p, offset in offsets.items()]
                LOG.info("%s: was assigned %s", self.who, _listed(found))
        except BaseException as error:  # noqa: BLE001  raised by the next poll
            self._failed = self._failed or error
        self._answer(consumer.incremental_assign, places)
        if self._paused and places:
            consumer.pause(places)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        found = sorted(each.partition for each in partitions)
        try:
            if found and not self._leaving and self._failed is None:
                self._forget(found)
                if self._drain is not None:
                    done = self._drain(found, self._fleet.drain)
                    self._bye({p: offset for p, offset in done.items() if p in found})
                LOG.info("%s: gave up %s", self.who, _listed(found))
        except BaseException as error:  # noqa: BLE001  raised by the next poll
            self._failed = self._failed or error
        self._drop(found)
        self._answer(consumer.incremental_unassign, partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        found = sorted(each.partition for each in partitions)
        self._drop(found)
        self._forget(found)
        LOG.warning(
            "%s: the group removed this worker, and took %s from it (%s); what it has not committed comes "
            "again, at other workers. It joins again. Possible reasons: the process was stopped, the connection "
            "was broken, or the broker did not answer, for longer than Fleet(session=)",
            self.who,
            _listed(found),
            self.trouble.last or "no sign of life",
        )
        self._answer(consumer.incremental_unassign, partitions)

    def _drop(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            self.dealt.pop(partition, None)

    def _answer(self, how: Callable[[list[TopicPartition]], Any], partitions: list[TopicPartition]) -> None:
        try:
            how(partitions)
        except (KafkaException, RuntimeError) as error:  # a fatal error, which comes as an event, or closed
            LOG.debug("%s: %s", self.who, error)


def _listed(partitions: Collection[int]) -> str:
    return f"partition{'s' * (len(partitions) != 1)} {', '.join(map(str, partitions))}"
