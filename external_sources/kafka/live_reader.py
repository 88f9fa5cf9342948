"""One reader of a topic that never ends: a thread that owns the consumer brings records, another takes them.

The laws: a record's position moves when it is taken, or when the partition has ended behind it; never by a jump. After
any error, and over any new connection, the reader goes on behind what it has brought. Records of a partition keep their
order; partitions are taken by turns. What comes is stamped with the generation of the progress when it is queued, by
the thread that alone changes it.

Who owns what: the consumer, and where each partition goes on, are the receiver's thread's alone, since confluent_kafka
lets one thread into a consumer at a time. What has come and was not taken, and what a group wants committed, is guarded
by the condition of the progress. The two ways in which partitions come and go are `take_up` and `give_up`: a stream
takes up those of its rank once, and new ones as they appear; a group those that it is assigned.
"""

from __future__ import annotations

import atexit
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from dali_feed import sync
from dali_feed.errors import DataLostError, SourceChangedError
from dali_feed.external_sources.kafka.client import SLICE_SECONDS
from dali_feed.external_sources.kafka.cluster import Cluster, Identity
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import (
    GROUP_RIGHT,
    LOG,
    READING,
    Meaning,
    denied,
    failed,
    meaning,
    partitions_text,
    unreachable,
)
from dali_feed.external_sources.kafka.group import Membership
from dali_feed.external_sources.kafka.lookout import Lookout, LookoutAnswer, Overdue
from dali_feed.external_sources.kafka.reader import TopicReader, range_text, spoilt_text
from dali_feed.external_sources.kafka.rows import MOST, Cells, KafkaParts
from dali_feed.records.gauges import KafkaStats
from dali_feed.records.live import LiveBlock, LiveReader, Positions, Progress
from dali_feed.records.source import Lease

FULL_BYTES = 4 << 20  # that wait to be taken; with more the broker is asked for none
OVERHEAD = 1 << 10  # bytes of a record that are not its value, so that tiny ones do not wait by the million
SHARE = 8  # records of a partition in a row, where others have some too
MORE = 31  # records received along with the one that was waited for: few enough that their bytes stay in cache
MEMBER_SECONDS = 0.01  # of a member's poll, which keeps a commit waiting
STATISTICS_SECONDS = 5.0  # after which librdkafka's statistics are taken, though nothing else is
LEAVE_SECONDS = 5.0  # to commit in and to leave a group
# What librdkafka has fetched stands in one line for all partitions: a record that has just come waits for all of it.
_SHORT_LINE = {"queued.max.messages.kbytes": 1 << 10, "fetch.message.max.bytes": 1 << 20}

_RECEIVERS: weakref.WeakSet[Receiver] = weakref.WeakSet()  # whose thread runs
# Partition, where it stands behind this one, a record; or why it cannot be read; None: only the position.
Entry = tuple[int, int, Message | str | None]


class Inbox:
    """What has come and was not taken, by partition. Whoever calls it holds the condition of the progress."""

    def __init__(self) -> None:
        self._lines: dict[int, deque[Entry]] = {}
        self._turns: deque[int] = deque()  # partitions that have something
        self.size = 0  # bytes

    def put(self, entry: Entry) -> None:
        """Behind all others of its partition."""
        line = self._lines.setdefault(entry[0], deque())
        if not line:
            self._turns.append(entry[0])
        line.append(entry)
        self.size += _bytes(entry)

    def take(
        self, most: int, room: float, weigh: Callable[[Message], int], barred: Collection[int], *, some: bool
    ) -> tuple[list[Entry], bool]:
        """Up to `most`, partitions by turns but for those `barred`; and whether a record is there that has no room.

        Unless there are `some` already, the first record has room whatever its size.
        """
        entries: list[Entry] = []
        for _ in range(len(self._turns)):
            partition = self._turns[0]
            line = self._lines[partition]
            for _ in range(0 if partition in barred else max(SHARE, most // len(self._turns))):
                if not line or len(entries) >= most:
                    break
                message = line[0][2]
                if message is not None:
                    room -= 0 if isinstance(message, str) else weigh(message)
                    if room < 0 and some:
                        return entries, True
                    some = True
                entry = line.popleft()
                self.size -= _bytes(entry)
                entries.append(entry)
            self._turns.popleft()
            if line:
                self._turns.append(partition)
            if len(entries) >= most:
                break
        return entries, False

    def back(self, entries: Iterable[Entry]) -> None:
        """Before all others of their partitions: they were not used."""
        for entry in reversed(list(entries)):
            line = self._lines.setdefault(entry[0], deque())
            if not line:
                self._turns.append(entry[0])
            line.appendleft(entry)
            self.size += _bytes(entry)

    def clear(self) -> None:
        """All of it is void."""
        self._lines.clear()
        self._turns.clear()
        self.size = 0


def _bytes(entry: Entry) -> int:
    return OVERHEAD + (0 if entry[2] is None else len(entry[2]))


class Receiver(TopicReader):
    """The thread that owns the consumer, from `begin` on; see this file's laws.

    inbox  what has come, guarded by the condition of `progress`
    moved  where partitions stand that have come since somebody was told; guarded as well
    error  what ends the reading, behind all that has come; guarded as well
    """

    def __init__(
        self,
        to: Connection,
        identity: Identity,
        progress: Progress,
        at: dict[int, int],
        *,
        rank: int = 0,
        world_size: int = 1,
        stop: sync.Event | None = None,
        membership: Membership | None = None,
    ) -> None:
        super().__init__(to, KafkaParts(), stop, identity)
        self.progress, self.inbox, self.moved = progress, Inbox(), dict[int, int]()
        self.error: BaseException | None = None
        self.membership = membership
        self._rank, self._world_size = rank, world_size
        self._at: dict[int, int] = {}  # the next offset to come of each partition that is ours
        self._seeks: dict[int, int] = {}  # partitions that have to be read again from there
        self._thread: sync.Thread | None = None
        self._ending = False
        self._lookout = Lookout(to, self._ours)
        self._answer: LookoutAnswer | None = None
        self._overdue = Overdue()
        self._heard = self._rested = 0.0  # when the consumer gave something, and was polled while full; sync.monotonic
        self._unknown = 0.0  # when it was last said that there is no such partition
        self._received = 0  # bytes
        self._doubted: dict[int, int] = {}  # partition -> offset that the broker said it does not have
        if membership is not None:
            membership.progress, membership.trouble, membership.ended = progress, self._trouble, self.ended
            membership.take_up, membership.withdraw, membership.give_up = self.take_up, self.withdraw, self.give_up
        else:
            self.take_up(at)

    # Anybody's.

    def begin(self) -> None:
        """Start the threads, where that is not done. Raises what says that the reader must not be used."""
        self._guard.check()
        if self._thread is None:
            if self.membership is not None:
                with Cluster(self._to, self._guard.stop) as cluster:
                    cluster.partitions()  # a topic that is not there would be waited for
            self._lookout.begin()
            _RECEIVERS.add(self)
            self._thread = sync.Thread(target=self._run, name="dali_feed-kafka-receiver", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raise ConfigError in a child of the process that made it, ClosedError where it is closed or stopped."""
        self._guard.check()

    def end(self) -> None:
        """End the thread, soon; takes no lock, as the collector may call it anywhere."""
        self._ending = True

    def close(self) -> None:
        """End it, having left its group. Within seconds, whatever the broker does; safe to call twice."""
        if not self._guard.close():
            return
        self.end()
        self.progress.moved()
        thread = self._thread
        if thread is None:
            self._lookout.close()
        elif thread is not sync.current_thread():
            thread.join(LEAVE_SECONDS)
            if thread.is_alive():
                LOG.warning("%s: the reader did not end in %.1f s; its consumer stays open", self._who, LEAVE_SECONDS)

    @property
    def partitions(self) -> tuple[int, ...]:
        """Those that are ours now."""
        with self.progress.changed:
            return tuple(sorted(self._at))

    @property
    def trouble(self) -> str:
        """What hinders: the last error of librdkafka, or that a member has no partitions; empty while records come."""
        none = f"{self._who}: no partition is assigned to it" if self.membership is not None and not self._at else ""
        return self._trouble.last or self._lookout.trouble or none

    def clients(self) -> tuple[Any, ...]:
        """What must not be destroyed in a child."""
        return *super().clients(), *self._lookout.clients()

    # How partitions come and go: in the receiver's thread, but for the first.

    def take_up(self, at: Positions) -> None:
        """These partitions are ours, and are read from there on."""
        with self.progress.changed:
            self._at |= at
            self.moved |= at
            self.progress.begins(at)

    def withdraw(self) -> dict[int, int]:
        """What has come and the loop was not handed is void, and read again from there; gives how far it was handed."""
        with self.progress.changed:
            handed = self.progress.withdraw()
            self.inbox.clear()
            again = {p: handed[p] for p, offset in self._at.items() if offset != handed.get(p, offset)}
            self._at |= again
            self._seeks |= again
            return handed

    def give_up(self, partitions: Collection[int]) -> None:
        """These partitions are another's, behind a `withdraw`."""
        with self.progress.changed:
            for at in (self._at, self.moved, self._seeks):
                for p in partitions:
                    at.pop(p, None)
            self.progress.forget(partitions)

    # The thread's own.

    def ended(self) -> bool:
        """Whether nobody wants records any more."""
        return self._ending or self._guard.closed or self._guard.stop.is_set()

    @property
    def _who(self) -> str:
        return self._to.topic if self.membership is None else self.membership.who

    @property
    def _needs(self) -> str:
        return READING if self.membership is None else GROUP_RIGHT

    def _ours(self, count: int) -> Iterable[int]:
        return range(self._rank, count, self._world_size) if self.membership is None else self.partitions

    def _run(self) -> None:
        try:
            while not self.ended():
                try:
                    self._turn()
                except BaseException as error:  # noqa: BLE001  whatever it is, who polls must hear of it
                    self._fail(error)
        finally:
            if self.membership is not None and self._consumer is not None:
                self.membership.leave(self._consumer)
            self._lookout.close()
            self._drop()
            self._cluster = None

    def _fail(self, error: BaseException) -> None:
        """Leave the error for who polls; what was received goes on to be, from where it stands, once that has it."""
        if isinstance(error, KafkaException):
            wrong = error
            error = failed(self._to, wrong)
            error.__cause__ = wrong
        if self.membership is None:
            self._drop()
        with self.progress.changed:
            self.error = error
            self.progress.changed.notify_all()
            while not self.ended() and self.error is not None:
                self.progress.changed.wait(SLICE_SECONDS)

    def _turn(self) -> None:
        """What comes next, into the inbox."""
        if self._full():
            return None
        if (answer := self._lookout.answer) is not self._answer and answer is not None:
            self._looked(answer)
        if self.membership is None and not self._at:  # a rank may have no partition
            self._guard.stop.wait(SLICE_SECONDS)
            return self._silence()
        batch = self._received_now()
        if self.ended() or self._doubts(self._where(next(iter(self._at), 0))):
            return None
        if not batch:
            return self._silence()
        self._heard = sync.monotonic()
        self._received += sum(map(len, batch))
        self._statistics.seen(batch)
        if not self._witness.vouches(self._identity.topic_id) and self._at:
            self._identify(self._where(next(iter(self._at))))
        return self._queue(batch)

    def _received_now(self) -> list[Message]:
        """A record or event that has come within a slice of time, and those behind it that are there."""
        client, member = self._connected(), self.membership
        self._seek(client)  # before anything is received: what comes behind is of there
        if member is None:
            message = client.poll(SLICE_SECONDS)
            return [] if message is None else [message, *client.consume(MORE, 0)]
        generation = self.progress.generation
        batch: list[Message] = []
        message = client.poll(MEMBER_SECONDS)
        while message is not None:
            batch.append(message)
            message = client.poll(0) if len(batch) <= MORE else None
        if self.progress.generation != generation:  # it is not known which of them came before partitions went
            with self.progress.changed:
                lost = {message.partition() for message in batch if message.error() is None}
                self._seeks |= {p: self._at[p] for p in lost if p in self._at}
            batch = [message for message in batch if message.error() is not None and message.offset() is None]
        member.serve(client)
        return batch

    def _seek(self, client: Consumer) -> None:
        """Have partitions read again; one that cannot be yet is tried again, and nothing of it counts until then."""
        for p, offset in list(self._seeks.items()):
            try:
                client.seek(TopicPartition(self._to.topic, p, offset))
            except KafkaException as error:
                LOG.debug("%s: seek: %s", self._where(p), error)
            else:
                del self._seeks[p]

    def _full(self) -> bool:
        """Whether there is no room: then wait for some. A member is polled all the same, for no records."""
        full = self.inbox.size > FULL_BYTES
        if self.membership is not None:
            if self._consumer is not None and (full or self.inbox.size < FULL_BYTES // 2):
                self.membership.pause(self._consumer, full)
            return False
        if full:
            with self.progress.changed:
                self.progress.changed.wait_for(lambda: self.inbox.size <= FULL_BYTES or self.ended(), SLICE_SECONDS)
            self._overdue.rested()
            if sync.monotonic() - self._rested >= STATISTICS_SECONDS and self._consumer is not None:
                self._rested = sync.monotonic()
                if (message := self._consumer.poll(0)) is not None:
                    self._queue([message])
        return full

    def _queue(self, batch: list[Message]) -> None:
        """Put records into the inbox, and deal with what is none, in their order."""
        entries: list[Entry] = []
        for message in batch:
            partition, offset = message.partition(), message.offset()
            p = -1 if partition is None or partition not in self._at else partition
            if message.error() is not None or p < 0 or offset is None:
                self._put(entries)
                entries = []
                self._event(message, p)
            elif offset >= self._at[p] and p not in self._seeks:  # else an older assignment's
                entries.append((p, offset + 1, message))
                self._at[p] = offset + 1
        self._put(entries)

    def _put(self, entries: list[Entry]) -> None:
        if not entries:
            return
        if self._trouble.last:
            self._trouble.clear()
        with self.progress.changed:
            for entry in entries:
                self.inbox.put(entry)
            self.progress.changed.notify_all()

    def _looked(self, answer: LookoutAnswer) -> None:
        """An answer has come: take up partitions that are new, and see who is late."""
        self._answer = answer
        if self.membership is not None:
            return
        new = [p for p in self._ours(answer.count) if p not in self._at]
        if new:
            LOG.info("%s: %s are new", self._to.topic, partitions_text(new))
            self.take_up(dict.fromkeys(new, 0))
        if new or 0.0 < self._unknown < answer.begun:  # a consumer that is made now knows them
            self._unknown = 0.0
            self._drop()
        now = sync.monotonic()
        for p, since in answer.headless.items():
            if now - since >= self._to.timeout:
                words = self._trouble.last or "the partition has no leader"
                raise unreachable(self._to, now - since, words, self._where(p))
        self._overdue.looked(answer, self._at, self._received, now)
        self._late(now)

    def _silence(self) -> None:
        """Nothing came: all is well, or there is something to be said."""
        now = sync.monotonic()
        where = "" if self.membership is not None else self._where(next(iter(self._at), self._rank))
        if self._trouble.denied:
            raise denied(self._to, self._trouble.denied, where, self._needs)
        if self._lookout.failed is not None:
            raise self._lookout.failed
        since, seconds = self._lookout.unanswered()
        if seconds >= self._to.timeout and self._heard < since:
            raise unreachable(self._to, seconds, self._trouble.last, where)
        if self.membership is None:
            self._overdue.empty(self._at, now)
            self._late(now)

    def _late(self, now: float) -> None:
        """Connect anew for a partition that gives nothing of what it has, once at half of the timeout; or give up."""
        partition, seconds = self._overdue.longest(now)
        if seconds >= self._to.timeout:
            words = self._trouble.last or "there are records, but none comes"
            raise unreachable(self._to, seconds, words, self._where(partition))
        if seconds >= self._to.timeout / 2 and self._overdue.due(partition):
            where = self._where(partition)
            LOG.warning("%s: nothing came for %.0f s; connecting again (%s)", where, seconds, self._trouble.last)
            self._drop()
            self._connected(small=True)

    def _event(self, message: Message, p: int) -> None:
        """Handle what is no record; `p` is -1 where it is none of our partitions'."""
        error = message.error()
        if error is None:
            return
        kind, end = meaning(error), message.offset()
        where = self._where(p) if p >= 0 else self._to.topic
        if kind is Meaning.END:
            if p >= 0 and end is not None and end > self._at[p] and p not in self._seeks:
                self._at[p] = end
                self._put([(p, end, None)])
        elif kind is Meaning.RESET:
            if p >= 0:
                self._lost(p)
        elif kind is Meaning.SPOILT and end is not None:
            if p >= 0 and p not in self._seeks:  # else it is said again until the seek, or of who had it before
                self._step_over(p, max(self._at[p], end), error)
        elif kind is Meaning.GONE:
            self._unknown = sync.monotonic()
            self._lookout.ask()  # which has the last word
        elif kind is Meaning.REFUSED and self.membership is not None:
            raise self.membership.refused(error)
        else:
            if error.code() == KafkaError._MAX_POLL_EXCEEDED:
                LOG.warning("%s: nothing was polled for too long (%s); it joins again", self._who, error.str())
            self._trouble.judge(error, self._to, where, self._needs)

    def _step_over(self, partition: int, first: int, error: KafkaError) -> None:
        """Go on behind a batch that cannot be unpacked, whose records from `first` on are faults."""
        where = self._to.where(partition, first)
        after = self._behind(partition, first, self._bounds(self._connected(), partition, where)[1])
        if after <= first and self._doubted.get(partition) == first:
            self._trouble.judge(error, self._to, where, self._needs)
        self._doubted[partition] = first  # it can be read after all, once
        self._put([(partition, offset + 1, spoilt_text(error)) for offset in range(first, after)])
        self._at[partition] = self._seeks[partition] = max(first, after)
        self._overdue.rested()  # meanwhile nobody had a turn

    def _lost(self, partition: int) -> None:
        """The broker does not have the next offset: raise, or connect anew where it turns out that it has."""
        where, want, member = self._where(partition), self._at[partition], self.membership
        low, high = self._bounds(self._connected(), partition, where)
        if member is not None:
            raise member.lost(where, want, low, high)
        self._identify(where)
        if 0 <= low <= want <= high and self._doubted.get(partition) != want:
            self._doubted[partition] = want
            LOG.warning(
                "%s: the broker refused this offset, but it holds %d..%d; connecting again", where, low, high - 1
            )
            return self._drop()
        if 0 <= high < want:
            raise SourceChangedError(
                f"{where}: this offset comes next, but the partition ends at {high}: the topic was truncated or "
                "made again; start without the old state"
            )
        raise DataLostError(
            f"{where}: this offset comes next, but the broker {range_text(low, high)}: retention or deletion removed "
            "records that were not read; give the topic a longer retention, and start without the old state to "
            "continue without those records"
        )

    def _doubts(self, where: str) -> bool:
        """See `TopicReader`; a member knows the topic by what it read first, and cannot go on with another."""
        if self.membership is None:
            return super()._doubts(where)
        known = self._identity.topic_id = self._identity.topic_id or self._witness.topic_id
        if self._witness.doubts(known):
            raise SourceChangedError(
                f"{self._to.topic}: the topic must be the one that the worker began with, whose id is {known}; found "
                f"one of id {self._witness.topic_id}: the topic was deleted and made again; start the worker again"
            )
        return False

    def _connected(self, *, small: bool = False) -> Consumer:
        """The consumer: one that has joined, or is assigned at our positions."""
        client = self._consumer
        if client is None and self.membership is not None:
            tuning, settings = self.membership.options()
            client = self._connect(settings, {**_SHORT_LINE, **tuning}, small=small, member=True)
            self.membership.subscribe(client)
        elif client is None:
            client = self._connect(None, _SHORT_LINE, small=small)
            client.assign([TopicPartition(self._to.topic, p, offset) for p, offset in self._at.items()])
        return client

    def _where(self, partition: int) -> str:
        return self._to.where(partition, self._at.get(partition, 0))


class KafkaLiveReader(LiveReader):
    """A stream's reader, or a member's of a group; see `dali_feed.records.live.LiveReader`.

    `poll` raises, behind all records that came before, what `KafkaReader.read` does; SourceNotFoundError where there is
    no such topic; and ConfigError where the group does not take this member.
    """

    def __init__(
        self,
        to: Connection,
        parts: KafkaParts,
        identity: Identity,
        at: dict[int, int],
        *,
        group: str | None = None,
        membership: Membership | None = None,
        progress: Progress | None = None,
        **whose: Any,
    ) -> None:
        self._alone = progress is None
        self._progress = progress or Progress()
        self._to, self._parts, self._group = to, parts, group
        self._receiver = Receiver(to, identity, self._progress, at, membership=membership, **whose)
        weakref.finalize(self, self._receiver.end).atexit = False  # of a reader that nobody closes

    def poll(self, records: int, size: float, seconds: float, lease: Lease) -> LiveBlock:
        """The records that have come; see `dali_feed.records.live.LiveReader.poll`."""
        self._receiver.begin()
        if self._alone and records > 0:
            self._progress.asked()
        deadline, mark = sync.monotonic() + seconds, lease.mark()
        while True:
            block = self._block(records, size, deadline, lease)
            if not self._alone or self._progress.took(block.position, block.generation):
                return block
            lease.rewind(mark)

    def _block(self, records: int, size: float, deadline: float, lease: Lease) -> LiveBlock:
        """Records of one generation."""
        receiver, changed = self._receiver, self._progress.changed
        taken, used = Cells(self._parts, min(records, MOST), lease), list[Entry]()
        position, begun = dict[int, int](), dict[int, int]()
        generation = self._progress.generation
        try:
            while not taken.full and taken.size < size:
                with changed:
                    if self._progress.generation != generation:
                        break
                    barred = () if receiver.membership is None else receiver.membership.starting
                    entries, is_full = receiver.inbox.take(
                        taken.rows - taken.count, size - taken.size, self._parts.weigh, barred, some=taken.count > 0
                    )
                    used += entries
                    if receiver.moved:  # where partitions begin that came up: before their first record, in one block
                        begun |= receiver.moved
                        position, receiver.moved = receiver.moved | position, {}
                    if entries:
                        changed.notify_all()
                    elif receiver.error is not None and not taken.count:
                        self._raise(receiver)
                    elif (left := deadline - sync.monotonic()) <= 0 or is_full or receiver.error is not None:
                        break
                    else:
                        changed.wait(min(left, SLICE_SECONDS))
                for partition, after, message in entries:
                    if message is not None:
                        taken.append(partition, after - 1, message)
                    position[partition] = after
                if not entries:
                    receiver.check()
            return LiveBlock(taken.block(), position, generation)
        except BaseException:
            with changed:
                if self._progress.generation == generation:  # nobody was given them: they come again
                    receiver.inbox.back(used)
                    receiver.moved = begun | receiver.moved
            raise

    def _raise(self, receiver: Receiver) -> None:
        """Raise what ends the reading; a stream can be polled again, from where it stands, and a member cannot."""
        error = receiver.error
        if receiver.membership is None:
            receiver.error = None
            self._progress.changed.notify_all()
        if error is not None:
            raise error

    def commit(self, position: Positions) -> None:
        """Commit how far the loop is; does nothing without a group. Any thread may.

        Raises SourceError where it is not done within five seconds; SourceDeniedError.
        """
        if self._alone:
            self._progress.done()
        if self._receiver.membership is not None:
            self._receiver.membership.commit(position)
        elif self._group is not None:
            with Cluster(self._to, group=self._group) as cluster:
                cluster.commit(position)

    @property
    def partitions(self) -> tuple[int, ...]:
        """Those that it reads now."""
        return self._receiver.partitions

    @property
    def trouble(self) -> str:  # type: ignore[override]  # read only here
        """What hinders; empty while records come."""
        return self._receiver.trouble

    def gauges(self) -> KafkaStats | None:
        """What its consumers have measured."""
        return self._receiver.gauges()

    def close(self) -> None:
        """Commit what the loop has finished, leave the group, close the connections. Safe to call twice."""
        self._receiver.close()


@atexit.register
def _close_all() -> None:
    """Members leave their group; and no thread is inside librdkafka when the interpreter goes."""
    for receiver in list(_RECEIVERS):
        receiver.close()
