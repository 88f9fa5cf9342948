"""Workers that share a stream's partitions, dealt to them by the broker: what a member is, begins at and commits.

The laws: at least once. The group's offsets are its only position; a worker commits what its loop has finished, and
goes on from what was committed. Who has which partition shows nowhere but in who has its records.

A partition is begun once. Whoever is assigned one of which the group has no offset commits where it begins before
it reads, so that a worker which dies at once costs nothing: "latest" is not looked up again by the next one. A
partition that came after the group began is read from its beginning, whatever `start` says: nobody has skipped it. So
each commit says, in its metadata, of how many partitions the topic was when the group began.

A hand-over costs one step of the loop. What was read ahead is void, in whatever stage it is; the loop is waited for
with the one batch that it has; what it has finished is committed, and looked for at the broker, before the partition
is another's. Partitions that stay are read again from where the loop was handed them.

A commit is a level, and no call: the loop says what it wants committed, the receiver's thread, which alone may call the
consumer, sends the newest level until it is there, and the loop waits until then. While partitions are assigned or
taken away it does not wait, as a hand-over waits for the loop: the level is sent by the callback, or right behind it.
The callbacks run within a poll of the receiver's thread. They raise nothing, as librdkafka would be left without an
answer: what goes wrong is kept, and raised by who polls the reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dali_feed import sync
from dali_feed.checks import number
from dali_feed.errors import ConfigError, DataLostError, SourceChangedError, SourceError, StateError
from dali_feed.external_sources.kafka.cluster import Cluster, raise_first
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import (
    GROUP_RIGHT,
    LOG,
    NO_RIGHTS,
    Meaning,
    Patience,
    Trouble,
    codes,
    denied,
    meaning,
    partitions_text,
)
from dali_feed.records.live import Positions, Progress

PROTOCOLS = ("classic", "consumer")
# A member joins at most once a second, and sends no heartbeat meanwhile: a session of one second has ended by then, and
# the worker begins anew, three seconds later.
LEAST_SESSION = 2.0
MOST_SESSION = 3600.0  # librdkafka's
_HEARTBEATS = 10  # within a session, unless they would be rarer than one a second
_POLLS = 300.0  # seconds; librdkafka's own, raised where a drain takes longer
_MARGIN = 60.0  # seconds to commit in, after a drain
_OTHERS = ("partition.assignment.strategy", "group.protocol.type", "group.remote.assignor")
_POLL_OPTION = "max.poll.interval.ms"


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
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
    session   seconds without a heartbeat after which a worker's partitions go to other workers, at least 2; None: 45,
              and with "consumer" the broker's value, which cannot be set here
    drain     seconds that the loop has to finish its batch where partitions move to another worker. What it has not
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
                raise ConfigError(f"ConsumerGroup({name}=): a name is needed; found {text!r}")
        if self.protocol not in PROTOCOLS:
            raise ConfigError(f'ConsumerGroup(protocol=): must be "classic" or "consumer"; found {self.protocol!r}')
        if self.session is not None:
            if self.protocol == "consumer":
                raise ConfigError(
                    f'ConsumerGroup(session=): with protocol="consumer" the broker sets it; found {self.session!r}; '
                    "set consumer.session.timeout.ms of the group there, and leave session= out"
                )
            rule = f"seconds, at least {LEAST_SESSION:.0f} and at most {MOST_SESSION:.0f}"
            number("ConsumerGroup(session=):", self.session, rule, lambda n: LEAST_SESSION <= n <= MOST_SESSION)
        rule = f"seconds, 0 to {MOST_SESSION:.0f}"
        number("ConsumerGroup(drain=):", self.drain, rule, lambda n: 0 <= n <= MOST_SESSION)

    def settings(self, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
        """The options of librdkafka that make a member."""
        options: dict[str, Any] = {"group.id": self.group, "group.protocol": self.protocol}
        if self.instance is not None:
            options["group.instance.id"] = self.instance if world_size == 1 else f"{self.instance}-{rank}"
        if self.protocol == "classic":
            options["partition.assignment.strategy"] = "cooperative-sticky"
            if self.session is not None:
                options["session.timeout.ms"] = round(1000 * self.session)
        return options

    def tuning(self) -> dict[str, Any]:
        """Options of librdkafka that a user may set in `config`."""
        # A partition that came later is seen when the member that deals asks for the topic's again: 5 minutes.
        options: dict[str, Any] = {"topic.metadata.refresh.interval.ms": 10_000}
        polls = max(_POLLS, self.drain + _MARGIN, self.session or 0.0)
        options[_POLL_OPTION] = round(1000 * polls)
        if self.protocol == "classic":
            options["heartbeat.interval.ms"] = round(min(1000.0, 1000 * (self.session or _POLLS) / _HEARTBEATS))
        return options

    def mark(self, topic: str) -> dict[str, Any]:
        """What a state holds of a group's stream: the group that has the position, and no position."""
        return {"topic": topic, "group": self.group}

    def check_mark(self, topic: str, mark: Mapping[str, Any]) -> None:
        """Raise StateError if a mark is not this group's: only the group may have a position."""
        if (other := dict(mark)) != self.mark(topic):
            raise StateError(
                f"{topic}: a worker of the group {self.group!r} continues at the offsets of the group, so its "
                f"state must be the group's; found {other}; leave the state out, or read without ConsumerGroup(...)"
            )

    def check(self, topic: str, config: Mapping[str, Any], start: Any) -> None:
        """Raise ConfigError where an option of `config`, or another argument of the stream, contradicts this."""
        if isinstance(start, Mapping | list | tuple):
            msg = f"{topic}: start= of a group cannot be a state, because the group has the position; leave it out"
            raise ConfigError(msg)
        ours = {*_OTHERS, "session.timeout.ms"}
        if taken := sorted(ours.intersection(config)):
            raise ConfigError(
                f"{topic}: config= must not set how a group assigns its partitions; found {', '.join(taken)}; "
                "ConsumerGroup(protocol=, session=) says it"
            )
        polls = str(config.get(_POLL_OPTION, ""))
        if polls.isdecimal() and int(polls) <= 1000 * self.drain:
            raise ConfigError(
                f"{topic}: {_POLL_OPTION} in config= must be above ConsumerGroup(drain=), or the group removes the "
                f"worker while its loop finishes; found {polls} ms and {self.drain:g} s"
            )


Start = str | float  # as `stream.checked_start` gives it; "group": there must be offsets

COMMIT_SECONDS = 5.0  # the loop waits for it
LAST_SECONDS = 2.0  # for the last commit of partitions that go
PAUSE_SECONDS = 0.05
_OUT = codes("UNKNOWN_MEMBER_ID FENCED_MEMBER_EPOCH")
_NOTE = re.compile(r"partitions=(\d+)\b")


class Membership:
    """What a member is assigned, begins at and commits; see this file's laws.

    The receiver's thread alone calls it, but for `commit`. The condition of the progress guards what is committed,
    wanted and starting.

    starting  partitions of which nothing may be given yet: it is not known at the broker where the group begins
    """

    def __init__(self, to: Connection, group: ConsumerGroup, start: Start, rank: int = 0, world_size: int = 1) -> None:
        self._to, self._group, self._start = to, group, start
        self._options = group.tuning(), group.settings(rank, world_size)
        self.progress: Progress  # the receiver's; and what it does as partitions come and go
        self.trouble: Trouble
        self.take_up: Callable[[Positions], None]
        self.withdraw: Callable[[], Positions]
        self.give_up: Callable[[Collection[int]], None]
        self.ended: Callable[[], bool]  # whether nobody wants records any more
        self.starting: set[int] = set()
        self._committed: dict[int, int] = {}  # of each partition that is ours; -1: the group has no offset of it
        self._wanted: dict[int, int] = {}
        self._sent: dict[int, int] = {}  # on its way to the broker
        self._until = self._not_before = self._since = 0.0  # of what was sent, of the next one, of starting: monotonic
        self._wrong = ""  # why the last commit was refused
        self._denied: SourceError | None = None
        self._failed: BaseException | None = None
        self._inside = self._leaving = self._paused = False
        self._note = ""  # of each commit: how many partitions the topic had when the group began

    def options(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of its consumer: those that a user's go before, and those that go before a user's."""
        tuning, settings = self._options
        return tuning, {**settings, "on_commit": self._heard}

    def subscribe(self, consumer: Consumer) -> None:
        """Ask for partitions."""
        consumer.subscribe([self._to.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    @property
    def who(self) -> str:
        """The worker, for people: `clicks: group 'workers', instance 'w1'`."""
        mine = self._group.instance
        return f"{self._to.topic}: group {self._group.group!r}{f', instance {mine!r}' if mine else ''}"

    def commit(self, position: Positions) -> None:
        """Have offsets committed of partitions that are ours, and wait until they are. For the loop's threads.

        While partitions come or go it is not waited for, and sent right behind that.

        Raises:
            SourceError: it is not done within five seconds; the next commit includes it.
            SourceDeniedError: no right.
        """
        with self.progress.changed:
            level = {p: n for p, n in position.items() if n > self._committed.get(p, n)}
            self._want(level)

            def settled() -> bool:
                over = self._inside or self._leaving or self._denied or self._failed
                return bool(over) or all(self._wanted.get(p, -1) < n for p, n in level.items())

            done = self.progress.changed.wait_for(settled, COMMIT_SECONDS)
            wrong, self._denied = self._denied, None
        if wrong is not None:
            raise wrong
        if not done:
            msg = f"{self._unsaid(self._wrong)}; check that the broker runs. What was not committed comes again"
            raise SourceError(msg)

    def serve(self, consumer: Consumer) -> None:
        """Send what is due, where no other commit is on its way; between any two polls.

        Raises what went wrong in a callback.
        """
        if self._failed is not None:
            raise self._failed
        now = sync.monotonic()
        with self.progress.changed:
            if self.starting and now - self._since >= self._to.timeout:
                raise SourceError(f"{self._unsaid(self._wrong)}; check that the broker runs")
            if not self._wanted or now < self._not_before or (self._sent and now < self._until):
                return
            self._sent, self._until = dict(self._wanted), now + COMMIT_SECONDS
        try:
            self._send(consumer, self._sent)
        except KafkaException as error:
            self._refuse(error.args[0], self._sent)

    def pause(self, consumer: Consumer, full: bool) -> None:
        """Let no records come where it is full, so that a poll meets events alone; and let them come again."""
        if full != self._paused:
            self._paused = full
            (consumer.pause if full else consumer.resume)(self._places(self._committed))

    def leave(self, consumer: Consumer) -> None:
        """Commit what the loop has finished, before the consumer is closed."""
        with self.progress.changed:
            self._leaving = True
            self.progress.changed.notify_all()
        if self._failed is None:
            try:
                self._publish(consumer, list(self._committed), self.progress.wait_finished(list(self._committed), 0.0))
            except Exception as error:  # noqa: BLE001  whatever it is, the group must be left
                LOG.warning("%s: left the group without a commit: %s", self.who, error)

    def lost(self, where: str, wanted: int, low: int, high: int) -> SourceError:
        """The error for a record that comes next and that the broker, which holds low..high-1, does not have."""
        group = self._group.group
        cure = (
            f"reset the offsets of the group {group!r} (kafka-consumer-groups --reset-offsets) when you know "
            "which records that skips"
        )
        if high < 0:
            return DataLostError(f"{where}: the broker no longer holds it; {cure}")
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

    def refused(self, error: KafkaError) -> ConfigError:
        """The error for a group that does not take this member, or another one that has its name."""
        words = error.str()
        if "fenced" in words or "instance ID is still used" in words:
            return ConfigError(
                f"{self.who}: one worker at a time may use the name of an instance; another running worker uses "
                f"it: {words}; give each worker its own ConsumerGroup(instance=)"
            )
        if "nsupported" in words or "not supported" in words:
            return ConfigError(
                f"{self.who}: the broker must know the group's protocol; {words}; "
                'ConsumerGroup(protocol="classic") works with any broker, "consumer" with Kafka 4.0 and newer'
            )
        if "rotocol" in words:
            return ConfigError(
                f"{self.who}: all members of a group must assign partitions in the same way, cooperative-sticky; "
                f"{words}; stop the other members, or use another group"
            )
        return ConfigError(
            f"{self.who}: the broker must accept the worker as a member; {words}; check ConsumerGroup(...)"
        )

    # Commits. The condition is held by who calls `_want`.

    def _want(self, level: Positions) -> None:
        self._wanted |= {p: max(n, self._wanted.get(p, n)) for p, n in level.items()}

    def _send(self, consumer: Consumer, offsets: Positions) -> None:
        places = [TopicPartition(self._to.topic, p, offset, metadata=self._note) for p, offset in offsets.items()]
        consumer.commit(offsets=places, asynchronous=True)

    def _heard(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        """The broker's answer to a commit."""
        wrong = error or next((each.error for each in places if each.error is not None), None)
        sent = {each.partition: each.offset for each in places}
        if wrong is None:
            self._landed(sent)
        elif sent == self._sent:
            self._refuse(wrong, sent)
        else:
            LOG.debug("%s", self._unsaid(wrong.str()))

    def _landed(self, offsets: Positions) -> None:
        with self.progress.changed:
            for p, offset in offsets.items():
                if p in self._committed:
                    self._committed[p] = max(offset, self._committed[p])
                    self.starting.discard(p)
                    if self._wanted.get(p, -1) <= offset:
                        self._wanted.pop(p, None)
            if self._sent == offsets:
                self._sent = {}
            self._wrong = ""
            self.progress.changed.notify_all()

    def _refuse(self, error: KafkaError, sent: Positions) -> None:
        """A commit was not taken: it is sent again, unless that is no use."""
        words = self._unsaid(error.str())
        with self.progress.changed:
            self._sent, self._wrong, self._not_before = {}, error.str(), sync.monotonic() + PAUSE_SECONDS
            if error.code() in _OUT:  # the partitions are others' now, and the next poll says so
                LOG.warning("%s; the group has removed the worker, and what was not committed comes again", words)
                self._wanted = {p: n for p, n in self._wanted.items() if p not in sent}
            elif meaning(error) in NO_RIGHTS or self.trouble.denied:
                self._denied = denied(self._to, self.trouble.denied or error.str(), needs=GROUP_RIGHT)
            elif meaning(error) is Meaning.REFUSED:
                self._denied = SourceError(f"{words}. What was not committed comes again")
            if self._denied is not None:
                self._wanted = {}
                self._failed = self._failed or (self._denied if self.starting else None)
            self.progress.changed.notify_all()

    def _unsaid(self, why: str) -> str:
        more = f" ({self.trouble.last})" if self.trouble.last else ""
        return (
            f"{self._to.topic}: offsets of the group {self._group.group!r} could not be committed at "
            f"{self._to.servers}: {why or 'no answer'}{more}"
        )

    def _publish(self, consumer: Consumer, partitions: Collection[int], done: Positions) -> None:
        """Commit what the loop has finished of these, and look for it at the broker.

        No poll may be begun in a callback, so its answer is not heard there; and a commit that waits for the answer
        may wait for a rebalance of the group.
        """
        ends, words = sync.monotonic() + LAST_SECONDS, ""
        levels = {p: max(done.get(p, -1), self._wanted.get(p, -1)) for p in partitions}
        due = {p: n for p, n in levels.items() if n > self._committed.get(p, n)}
        while due and (left := ends - sync.monotonic()) > 0:
            try:
                self._send(consumer, due)
                places = consumer.committed(self._places(due), timeout=min(left, LAST_SECONDS / 4))
                there = {each.partition: each.offset for each in places if each.error is None}
                self._landed({p: n for p, n in due.items() if there.get(p, -1) >= n})
                due = {p: n for p, n in due.items() if there.get(p, -1) < n}
            except KafkaException as error:
                words = error.args[0].str()
            if due:
                sync.sleep(min(PAUSE_SECONDS, left))
        if due:
            LOG.warning(
                "%s: gave up %s without a commit, and what it has finished comes again at other workers: %s",
                self.who,
                partitions_text(due),
                words or self._wrong or "the broker does not have it",
            )

    # Callbacks of the consumer, in a poll of the receiver's thread.

    @contextmanager
    def _callback(self) -> Iterator[None]:
        """Whoever waits for a commit goes on; what is raised is left for the next poll."""
        with self.progress.changed:
            self._inside = True
            self.progress.changed.notify_all()
        try:
            yield
        except BaseException as error:  # noqa: BLE001
            self._failed = self._failed or error
        finally:
            self._inside = False

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = sorted(each.partition for each in partitions)
        places: list[TopicPartition] = []
        with self._callback():
            if numbers and not self._leaving:
                offsets, fresh, self._note = self._begun(consumer, numbers)
                with self.progress.changed:
                    self._committed |= offsets | dict.fromkeys(fresh, -1)
                    # Sent behind this callback: librdkafka lets a commit wait until it has the answer.
                    self._wanted |= fresh
                    self.starting |= fresh.keys()
                    self._since = sync.monotonic()
                    self.take_up(offsets)
                places = [TopicPartition(self._to.topic, p, offset) for p, offset in offsets.items()]
                LOG.info("%s: was assigned %s", self.who, partitions_text(numbers))
        self._answer(consumer.incremental_assign, places)
        if self._paused and places:
            consumer.pause(places)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = sorted(each.partition for each in partitions)
        with self._callback():
            if numbers and not self._leaving and self._failed is None:
                handed = self.withdraw()
                done = self.progress.wait_finished(numbers, self._group.drain, self.ended)
                if late := [p for p in numbers if done.get(p, -1) < handed.get(p, -1)]:
                    LOG.warning(
                        "%s: gave up %s before its loop had finished the batch that it has, and that comes again at "
                        "another worker: ConsumerGroup(drain=) gives it %g s",
                        self.who,
                        partitions_text(late),
                        self._group.drain,
                    )
                self._publish(consumer, numbers, done)
                LOG.info("%s: gave up %s", self.who, partitions_text(numbers))
        self._forget(numbers)
        self._answer(consumer.incremental_unassign, partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = sorted(each.partition for each in partitions)
        with self._callback():
            self.withdraw()
            LOG.warning(
                "%s: the group removed this worker, and took %s from it (%s); what it has not committed comes "
                "again, at other workers. It joins again. Possible reasons: the process was stopped, the connection "
                "was broken, or the broker did not answer, for longer than ConsumerGroup(session=)",
                self.who,
                partitions_text(numbers),
                self.trouble.last or "no sign of life",
            )
        self._forget(numbers)
        self._answer(consumer.incremental_unassign, partitions)

    def _forget(self, partitions: Collection[int]) -> None:
        with self.progress.changed:
            for p in partitions:
                for at in (self._committed, self._wanted):
                    at.pop(p, None)
                self.starting.discard(p)
            self.give_up(partitions)
            self.progress.changed.notify_all()

    def _places(self, partitions: Collection[int]) -> list[TopicPartition]:
        return [TopicPartition(self._to.topic, p) for p in partitions]

    def _answer(self, how: Callable[[list[TopicPartition]], Any], partitions: list[TopicPartition]) -> None:
        try:
            how(partitions)
        except (KafkaException, RuntimeError) as error:  # a fatal error, which comes as an event, or closed
            LOG.debug("%s: %s", self.who, error)

    def _begun(self, consumer: Consumer, assigned: Sequence[int]) -> tuple[dict[int, int], dict[int, int], str]:
        """The next offset to read of each of these partitions; those that are to be committed before anything is given,
        as the group had none of them; and the note of this group's commits.
        """
        topic, group = self._to.topic, self._group.group
        known = self._stored(consumer, assigned)
        missing = [p for p in assigned if p not in known]
        fresh: dict[int, int] = {}
        first = _first_of(known)
        if missing:
            with Cluster(self._to) as cluster:  # of the member itself it would end its callback in a crash
                everything = cluster.partitions()
                whole = self._stored(consumer, everything)
                first = _first_of(whole) if whole else len(everything)
                early = [p for p in missing if p < first]
                if early and self._start == "group":
                    raise DataLostError(
                        f"{topic}[{early[0]}]: the group {group!r} must have an offset of it; there is none: nobody "
                        "has committed one, or the broker forgot it (offsets.retention.minutes); set it, or give "
                        'start="earliest" or "latest"'
                    )
                late = [p for p in missing if p >= first]
                fresh = cluster.begins("earliest", late) | cluster.begins(self._start, early)
        return {p: each.offset for p, each in known.items()} | fresh, fresh, f"partitions={first}"

    def _stored(self, consumer: Consumer, partitions: Sequence[int]) -> dict[int, TopicPartition]:
        """The group's offsets of the partitions that it has one of."""

        def ask(seconds: float) -> dict[int, TopicPartition]:
            places = consumer.committed(self._places(partitions), timeout=seconds)
            raise_first(places)
            return {each.partition: each for each in places if each.offset >= 0}

        return Patience(self._to, self.trouble, needs=GROUP_RIGHT).until(ask)


def _first_of(stored: Mapping[int, TopicPartition]) -> int:
    """What the notes of a group's commits say; 0 where another tool has set them: it knew all partitions there were."""
    notes = (_NOTE.search(each.metadata or "") for each in stored.values())
    return max((int(note[1]) for note in notes if note), default=0)
