"""A worker of a fleet: a member of a consumer group, which reads the partitions that it is dealt.

The law: a record is given only while its partition is this worker's, and an offset is committed only while it is, and
never below where the worker began there. What was read of a partition that goes, and not yet given, is thrown away;
what was given is waited for and committed before it goes. A partition that was lost, because the worker was thrown
out, is another's: nothing is committed of it.

While nobody wants records the group must be polled all the same, for a member hears in `poll` that partitions are taken
away, behind all records that have come: `poll(0, ...)` does it with all partitions paused, so that it meets no records.
So a slow loop stays in the group, and gives up in time what others are to have.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from confluent_kafka import KafkaException, Message

from dali_feed.external_sources.kafka.client import close_in_time
from dali_feed.external_sources.kafka.cluster import Identity
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import LOG, failed, unreachable
from dali_feed.external_sources.kafka.group import Fleet, Membership, Start
from dali_feed.external_sources.kafka.reader import TopicReader
from dali_feed.external_sources.kafka.rows import MOST, Cells, KafkaParts
from dali_feed.records.live import Drain, LiveBlock, LiveReader, Positions
from dali_feed.records.source import Lease

__all__ = ["FleetReader"]

_NAME = "dali_feed-kafka-commit"
_T = TypeVar("_T")

POLL_SECONDS = 0.01  # a commit waits so long for its turn
WAIT_SECONDS = 0.002
LATE_SECONDS = 1.0
LINGER_SECONDS = 0.1  # to hear the answer of a commit, which else would wait for the next poll
CLOSE_SECONDS = 2.0


class FleetReader(TopicReader, LiveReader):
    """See `dali_feed.records.live.LiveReader`. It joins when it is first polled.

    Raises from `poll`:
        DataLostError: the records at the group's offset are gone (retention, deleted records).
        SourceNotFoundError: no such topic. SourceChangedError: it is gone, or was made anew.
        SourceUnreachableError: trouble for `timeout` seconds. SourceDeniedError: no rights.
        ConfigError: the group does not take this member; or used in a process that was forked from the reader's.
        ClosedError: closed, or the stop event is set (seen within 0.1 s).
    """

    def __init__(
        self,
        to: Connection,
        parts: KafkaParts,
        fleet: Fleet,
        start: Start,
        *,
        rank: int = 0,
        world_size: int = 1,
        stop: threading.Event | None = None,
        drain: Drain | None = None,
    ) -> None:
        super().__init__(to, parts, stop, Identity())
        self._fleet, self._start, self._drain = fleet, start, drain
        self._settings = fleet.settings(rank, world_size)
        self._turn = threading.Lock()  # whose turn it is to poll
        self._ended = threading.Event()
        self._barred = 0.0  # since when a commit has the turn, time.monotonic seconds
        self._member: Membership | None = None
        self._dropped: weakref.finalize[..., FleetReader] | None = None
        self._left: deque[Message] = deque()  # polled and not yet given
        self._taken: list[Message] = []  # to be given by the poll that is under way
        self._filled = 0  # their bytes
        self._moved: dict[int, int] = {}  # where partitions stand behind what was taken, since the last block
        self._next: dict[int, int] = {}

    @property
    def partitions(self) -> tuple[int, ...]:
        """Those that it is dealt now."""
        return () if self._member is None else tuple(sorted(self._member.dealt))

    @property
    def trouble(self) -> str:  # type: ignore[override]
        """What hinders: the last error of librdkafka, or that the worker has no partitions."""
        member = self._member
        if member is None:
            return ""
        return member.trouble.last or ("" if member.dealt else f"{member.who}: no partition is assigned to it")

    def poll(self, records: int, size: float, seconds: float, lease: Lease) -> LiveBlock:
        """Up to `records` records; see `LiveReader.poll`. A partition that was dealt is in `position` from then on."""
        deadline = time.monotonic() + seconds
        while not self._turn.acquire(timeout=max(0.0, min(POLL_SECONDS, deadline - time.monotonic()))):
            self._guard.check()
            now = time.monotonic()
            self._barred = self._barred or now
            if (seconds := now - self._barred) >= self._to.timeout:
                raise unreachable(self._to, seconds, "a commit waits for its answer")
            if now >= deadline:
                return self._block([], {}, lease)
        self._barred = 0.0
        try:
            self._guard.check()
            member = self._member or self._joined()
            if records > 0:
                member.resume()
                self._gather(member, records, size, deadline)
            else:
                member.pause()
                self._look(member)
            self._linger(member)
            taken, self._taken, self._filled = self._taken, [], 0
            moved, self._moved = self._moved, {}
            return self._block(taken, moved, lease)
        except KafkaException as error:
            raise failed(self._to, error) from error
        finally:
            self._turn.release()

    def commit(self, position: Positions) -> None:
        """Commit how far the loop is, in the partitions that are this worker's. Any thread may.

        Raises SourceError where it is not done within five seconds; SourceDeniedError.
        """
        member = self._member
        if member is None or self._ended.is_set():
            return
        asked = member.ask(position)
        while not asked.done.wait(WAIT_SECONDS):
            if self._ended.is_set():
                return
            if member.commits.due and self._turn.acquire(blocking=False):  # nobody polls just now
                threading.Thread(target=self._commit_now, args=(member,), name=_NAME, daemon=True).start()
            elif time.monotonic() > asked.deadline + LATE_SECONDS:
                member.commits.give_up(asked)
        if asked.error is not None:
            raise asked.error

    def _commit_now(self, member: Membership) -> None:
        try:
            member.commit_now()
        finally:
            self._turn.release()

    def close(self) -> None:
        """Commit what the loop has finished and leave, within some seconds. Safe to call twice."""
        if self._ended.is_set():
            return
        self._ended.set()
        if not self._guard.close():
            return
        mine = self._turn.acquire(timeout=CLOSE_SECONDS)
        member, self._member = self._member, None
        if self._dropped is not None:
            self._dropped.detach()
        if member is not None and mine:
            member.leave()
        elif member is not None:
            LOG.warning(
                "%s: it could not leave the group in %.1f s; its consumer stays open", member.who, CLOSE_SECONDS
            )
        if mine:
            self._turn.release()

    def _joined(self) -> Membership:
        forget, begin = _while_there(self._forget), _while_there(self._begin)
        member = Membership(
            self._to, self._fleet, self._start, self._settings, self._drain, forget, begin,
            self._statistics.begin(),
        )  # fmt: skip
        member.join()
        # Of a reader that nobody closes, whose member must not keep it: librdkafka ends a client that is collected, and
        # in it waits for ever for the callback that takes its partitions away.
        self._dropped = weakref.finalize(self, close_in_time, self._to.topic, member.consumer)
        self._member = member
        return member

    def _look(self, member: Membership) -> None:
        """Hear what there is, records apart."""
        while (found := member.poll(0)) is not None:
            self._left.append(found)
        member.silence()

    def _linger(self, member: Membership) -> None:
        ends = time.monotonic() + LINGER_SECONDS
        while member.commits.under_way and time.monotonic() < ends:
            if (found := member.poll(POLL_SECONDS)) is not None:
                self._left.append(found)

    def _gather(self, member: Membership, records: int, size: float, deadline: float) -> None:
        """Take records until there are enough, or the time is over."""
        left = self._left
        while not self._take(member, records, size):
            seconds = deadline - time.monotonic()
            found = member.poll(max(0.0, min(POLL_SECONDS, seconds)))
            if found is not None:
                left.append(found)
                continue
            self._guard.check()
            if seconds <= 0:
                return
            member.silence()

    def _take(self, member: Membership, records: int, size: float) -> bool:
        """Take what was polled; whether that is enough."""
        taken, left, known = self._taken, self._left, self._next
        records = min(records, MOST)
        while left and len(taken) < records and member.may_give:
            message = left[0]
            partition, offset, error = message.partition(), message.offset(), message.error()
            if error is not None:
                left.popleft()
                end = member.heard(error, message)
                if end is not None and partition in known and end > known[partition]:
                    known[partition] = self._moved[partition] = end
                continue
            if offset is None or partition not in known or offset < known[partition]:
                left.popleft()  # of an assignment before this one
                continue
            weight = self._parts.weigh(message)
            if taken and self._filled + weight > size:
                return True
            left.popleft()
            taken.append(message)
            self._filled += weight
            known[partition] = self._moved[partition] = offset + 1
            member.progress()
        return len(taken) >= records or self._filled >= size

    def _block(self, messages: list[Message], moved: dict[int, int], lease: Lease) -> LiveBlock:
        cells = Cells(self._parts, len(messages), lease)
        for message in messages:
            cells.append(message.partition() or 0, message.offset() or 0, message)
        self._statistics.seen(messages)
        return LiveBlock(cells.block(), moved)

    def _begin(self, dealt: Positions) -> None:
        self._next |= dealt
        self._moved |= dealt

    def _forget(self, partitions: Collection[int]) -> None:
        """Throw away what was polled of them and not given."""
        kept = [each for each in self._left if each.partition() not in partitions]
        self._left.clear()
        self._left.extend(kept)
        self._taken[:] = [each for each in self._taken if each.partition() not in partitions]
        self._filled = sum(map(self._parts.weigh, self._taken))
        for partition in partitions:
            self._next.pop(partition, None)
            self._moved.pop(partition, None)

    def clients(self) -> tuple[Any, ...]:
        """What must not be destroyed in a child."""
        return (self._member,)


def _while_there(method: Callable[[_T], None]) -> Callable[[_T], None]:
    """The method, as long as its object is there, which this does not keep."""
    weak = weakref.WeakMethod(method)

    def call(what: _T) -> None:
        if (found := weak()) is not None:
            found(what)

    return call
