"""A member's commits of the group's offsets.

confluent_kafka lets one thread at a time into a consumer, and one that polls again and again keeps all others out. So
who wants a commit asks for it, and who has the consumer's turn sends it and hears the answer, between two polls.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dali_feed.errors import SourceError
from dali_feed.external_sources.kafka.errors import LOG, Trouble, denied
from dali_feed.external_sources.kafka.fleet_start import GROUP_RIGHT, REFUSED
from dali_feed.external_sources.kafka.options import KafkaOptions

__all__ = ["Asked", "Commits"]

COMMIT_SECONDS = 5.0  # the loop waits for it
PAUSE_SECONDS = 0.05
_LAST = frozenset({KafkaError.OFFSET_METADATA_TOO_LARGE, KafkaError.INVALID_COMMIT_OFFSET_SIZE, KafkaError._FATAL})
_OUT = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_MEMBER_EPOCH})


class Asked:
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


class Commits:
    """The commits of one consumer, one after another. It is the consumer's `on_commit`."""

    def __init__(self, options: KafkaOptions, group: str, trouble: Trouble) -> None:
        self._options, self._group, self._trouble = options, group, trouble
        self._asked: deque[Asked] = deque()
        self._flying: Asked | None = None

    def ask(
        self, wanted: Callable[[], dict[int, int]], landed: Callable[[Mapping[int, int]], None] = lambda _: None
    ) -> Asked:
        """Have it committed by who has the turn. Any thread may ask."""
        asked = Asked(wanted, landed)
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

    def _next(self) -> Iterator[Asked]:
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
        return [TopicPartition(self._options.topic, p, offset, metadata=note) for p, offset in offsets.items()]

    def _answer(self, asked: Asked, error: KafkaError | None) -> None:
        if error is None:
            asked.landed(asked.sent)
            asked.done.set()
        elif error.code() in _OUT:  # the partitions are others' now, and the next poll says so
            LOG.warning(
                "%s; the group has removed the worker, and what was not committed comes again", self._said(error)
            )
            asked.done.set()
        elif error.code() in REFUSED | _LAST or error.fatal() or time.monotonic() > asked.deadline:
            self._end(asked, error)
        else:  # a rebalance, or a coordinator that moves
            asked.not_before = time.monotonic() + PAUSE_SECONDS
            self._asked.appendleft(asked)

    def give_up(self, asked: Asked) -> None:
        """Nobody had the turn in time, as while partitions are given up."""
        asked.wanted = dict
        self._end(asked, KafkaError(KafkaError._TIMED_OUT))

    def _end(self, asked: Asked, error: KafkaError) -> None:
        options, said = self._options, self._trouble.denied or error.str()
        if error.code() in REFUSED or self._trouble.denied:
            asked.error = denied(options.topic, options.servers, said, options.config, GROUP_RIGHT)
        else:
            asked.error = SourceError(
                f"{self._said(error)}; check that the broker runs. What was not committed comes again"
            )
        asked.done.set()

    def _said(self, error: KafkaError) -> str:
        why = f"{error.str()}{f' ({self._trouble.last})' if self._trouble.last else ''}"
        topic, servers = self._options.topic, self._options.servers
        return f"{topic}: offsets of the group {self._group!r} could not be committed at {servers}: {why}"
