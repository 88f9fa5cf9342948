"""The producer of a run, and what it says of each record.

The laws: every record that was handed over is settled once, as delivered or as refused for good; whatever else happens
ends the run with an error that names it. A full queue is waited for, in librdkafka's own poll: what is in memory is
bounded by the queue.

In transactions the position, the first record that is not in the topic, is committed in the same transaction as the
records before it, as the offset of a consumer group of the run's own. So whoever goes on reads it there, in one
question, and no record is in the topic twice or not at all for those who read what is committed
(isolation.level=read_committed, librdkafka's default and Java's option). The offset is kept at the topic's partition 0,
for it must be that of a partition that there is; its metadata is the tally. Brokers forget offsets of a group after
offsets.retention.minutes, 7 days unless set: that is noticed.
"""

from __future__ import annotations

import contextlib
import copy
import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from dali_feed.errors import ConfigError, DaliFeedError, DataLostError, ProduceError
from dali_feed.external_sources.kafka.client import StuckError, consumer, producer, timely
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import (
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
from dali_feed.external_sources.kafka.produce import Item
from dali_feed.external_sources.kafka.writes import Written
from dali_feed.records.tally import Tally

__all__ = [
    "CODECS",
    "OURS",
    "SAMPLE",
    "AbortedError",
    "Acks",
    "ProducerLane",
    "TransactionLane",
    "codec_for",
    "name_of",
]

CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
SAMPLE = 16  # records by which the codec of a run is chosen

_BEGINNINGS = (
    b"\xff\xd8\xff",  # JPEG
    b"\x89PNG\r\n\x1a\n",
    b"GIF8",
    b"\x00\x00\x00\x0cjP  ",  # JPEG 2000
    b"\xff\x4f\xff\x51",
    b"\xff\x0a",  # JPEG XL
    b"\x00\x00\x00\x0cJXL ",
    b"OggS",
    b"fLaC",
    b"ID3",  # MP3
    b"\x1aE\xdf\xa3",  # Matroska, WebM
    b"\x1f\x8b",  # gzip
    b"\x28\xb5\x2f\xfd",  # zstd
    b"\x04\x22\x4d\x18",  # lz4
    b"BZh",
    b"\xfd7zXZ\x00",
    b"PK\x03\x04",  # zip, npz
)
_LONGEST = max(map(len, _BEGINNINGS))


def is_packed(value: bytes) -> bool:
    """Whether it begins as a compressed image, sound, film or archive does."""
    head = value[:_LONGEST]
    return head.startswith(_BEGINNINGS) or head[4:8] == b"ftyp" or (head[:4] == b"RIFF" and value[8:12] == b"WEBP")


def codec_for(items: Iterable[Item]) -> str:
    """The compression of a run whose first records are these: none where most values are packed already."""
    values = [item.value or b"" for item in items if isinstance(item, Written)]
    return "none" if 2 * sum(map(is_packed, values)) > len(values) else "lz4"


WAIT_SECONDS = 0.2
# What makes a delivery count, or what has an argument of its own.
OURS = frozenset(
    {
        "acks",
        "bootstrap.servers",
        "compression.codec",
        "compression.type",
        "delivery.timeout.ms",
        "dr_cb",
        "dr_msg_cb",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "error_cb",
        "logger",
        "message.timeout.ms",
        "metadata.broker.list",
        "on_delivery",
        "partitioner",
        "request.required.acks",
        "transactional.id",
        "transaction.timeout.ms",
    }
)
# A record of its own is refused; the others go on.
_ITS_OWN = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
    }
)
_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_TXN_STATE}
)
_SILENT = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT})
_RIGHTS = (
    "producing needs the rights Describe and Write on the topic, and with transactions Write on the transactional id "
    "and Read on the group, both named dali_feed-produce-*"
)
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


class Acks:
    """Records on their way, in the order of their numbers, and the mark. Used by one thread.

    The mark passes a record once it was delivered, refused for good, or found not to be there, and all before it were.
    So a run that goes on at the mark loses none. Counts are of what lies before the mark, so they are those of one run,
    however often it was killed.

    where  coordinates of a record by its number
    """

    def __init__(self, mark: int, tally: Tally, where: Callable[[int], str]) -> None:
        self.tally = tally
        self.moved = time.monotonic()
        self._where = where
        self._next = mark
        self._waiting: deque[int] = deque()
        self._ended: dict[int, int | str | None] = {}

    @property
    def mark(self) -> int:
        """The first record that is not settled."""
        return self._waiting[0] if self._waiting else self._next

    def begin(self, number: int) -> None:
        """A record is on its way. Numbers grow; one that is left out is none of ours."""
        if not self._waiting:
            self.moved = time.monotonic()  # nobody was waited for before
        self._waiting.append(number)
        self._next = number + 1

    def end(self, number: int, outcome: int | str | None) -> None:
        """It was delivered (its payload's bytes), refused (the reason), or is not there (None)."""
        self.moved = time.monotonic()
        self._ended[number] = outcome
        while self._waiting and self._waiting[0] in self._ended:
            first = self._waiting.popleft()
            found = self._ended.pop(first)
            if found is None:
                self.tally.absent += 1
            elif isinstance(found, str):
                self.tally.fail(found, self._where(first))
            else:
                self.tally.records += 1
                self.tally.size += found

    def passed(self, number: int) -> None:
        """All before this number is somebody else's, or settled."""
        self._next = max(self._next, number)


class ProducerLane:
    """Sends the records of a run in their order; `settled` knows what became of them. Used by one thread.

    Args:
        to: where to.
        settled: where the run stands.
        compression: of all records.
        queue_bytes: of records that wait.
        most: bytes of the largest record that the topic takes; None: not known.
        settings: further ones, that go before all others.
    """

    def __init__(
        self,
        to: Connection,
        settled: Acks,
        *,
        compression: str = "none",
        queue_bytes: int = 64 << 20,
        most: int | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.settled, self._to, self._most = settled, to, most
        self._trouble = Trouble()
        self._fatal: KafkaError | None = None
        largest = min(1_000_000_000, max(1000, 64 << 20 if most is None else most))
        self._tuning = {  # the user's go before these
            "batch.num.messages": 100_000,
            "batch.size": min(1_000_000, largest),  # a broker judges batches, not records
            "linger.ms": 20,
            "message.max.bytes": largest,
            "queue.buffering.max.kbytes": max(1, queue_bytes >> 10),
        }
        self._settings = {
            "acks": "all",
            "enable.idempotence": True,
            "compression.codec": compression,
            "message.timeout.ms": 0,  # we watch whether anything moves
            "partitioner": "murmur2_random",  # as Java's producers have it
            **(settings or {}),
        }
        self._producer = self._connected()

    def _connected(self) -> Producer:
        return producer(self._to, self._trouble, self._tuning, self._settings)

    @property
    def position(self) -> int:
        """The first record that is not known to be in the topic."""
        return self.settled.mark

    def take(self, number: int, item: Item, partition: int) -> None:
        """Send a record, or count why there is none. Numbers grow."""
        if isinstance(item, Written):
            self.send(number, item, partition)
        else:
            self._settle(number, item)

    def keep(self, number: int) -> None:
        """See how far the run is; all records before this number were handed over."""
        self.poll()

    def finish(self, number: int) -> None:
        """Wait until all are settled."""
        self.flush()

    def tally(self) -> Tally:
        """What became of the records before `position`."""
        return self.settled.tally

    def back(self, refused: dict[int, str]) -> None:
        """Stand where the last transaction ended; those that were refused are not sent again."""

    def send(self, number: int, written: Written, partition: int) -> None:
        """Hand a record over, once there is room for it; partition -1: by its key."""
        self.settled.begin(number)
        headers: Any = written.headers
        report = partial(self._delivered, number, len(written.value or b"") + written.elsewhere)
        while True:
            try:
                self._producer.produce(
                    self._to.topic, written.value, written.key, partition, on_delivery=report, headers=headers
                )
                break
            except BufferError:
                self._producer.poll(WAIT_SECONDS)
                self._look(self.settled.moved)
            except KafkaException as error:
                if error.args[0].code() not in _ITS_OWN:
                    raise self._stopped(error.args[0]) from error
                self.settled.end(number, self._refused(error.args[0]))
                break
        self.poll()

    def poll(self) -> None:
        """Hear what has become of records, without waiting."""
        self._producer.poll(0)
        if self._fatal is not None:
            raise self.ended(self._fatal)

    def flush(self) -> None:
        """Wait until all that was handed over is settled."""
        while self._left():
            self._look(self.settled.moved)
        self._look(time.monotonic())

    def close(self) -> None:
        """Drop what has not been delivered, and hear of what has."""
        with contextlib.suppress(KafkaException):  # one that has failed for good says so once more
            self._producer.purge()
            self._producer.flush(1.0)

    def ended(self, error: KafkaError) -> DaliFeedError:
        """What ends the run, in our words."""
        to, code, said = self._to, error.code(), error.str()
        if meaning(error) in NO_RIGHTS:
            return denied(to, said, needs=_RIGHTS)
        if meaning(error) is Meaning.GONE:
            return gone(to, said)
        if code in _FENCED:
            return ProduceError(
                f"{to.topic}: one process at a time may do a run; {to.servers} says that another process has taken it "
                f"over, or that this one was silent for too long: {said}; stop the other process, and start "
                "again with the same journal"
            )
        if code in _SILENT:
            return unreachable(to, to.timeout, self._trouble.last or said)
        return ProduceError(
            f"{to.topic}: records could not be written to {to.servers}: {said}; what was delivered before counts, and "
            "a run with a journal= continues after it"
        )

    def _settle(self, number: int, outcome: str | None) -> None:
        """Of a record that is not sent."""
        self.settled.begin(number)
        self.settled.end(number, outcome)

    def _left(self) -> int:
        """Records that are not settled, after a little while."""
        try:
            return self._producer.flush(WAIT_SECONDS)
        except KafkaException as error:
            raise self.ended(error.args[0]) from error

    def _look(self, since: float) -> None:
        """Raise where this cannot go on."""
        if self._fatal is not None:
            raise self.ended(self._fatal)
        if self._trouble.denied and len(self._producer):
            raise denied(self._to, self._trouble.denied, needs=_RIGHTS)
        seconds = time.monotonic() - since
        if seconds > self._to.timeout:
            raise unreachable(self._to, seconds, self._trouble.last)

    def _delivered(self, number: int, size: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._trouble.clear()
            self.settled.end(number, size)
        elif error.code() in _ITS_OWN:
            self._refuse(number, self._refused(error))
        elif error.code() not in _PURGED and self._fatal is None:
            self._fatal = error

    def _stopped(self, error: KafkaError) -> Exception:
        """What to raise where no record is taken any more."""
        return self.ended(error)

    def _refuse(self, number: int, reason: str) -> None:
        """The broker refuses a record."""
        self.settled.end(number, reason)

    def _refused(self, error: KafkaError) -> str:
        """Why a record was refused. It is a reason that others have too: no numbers of its own."""
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            most = "" if self._most is None else f", {self._most}"
            return f"larger than max.message.bytes of the topic{most}"
        return error.str()


TRANSACTION_SECONDS = 60.0
SLICE = 5.0
# It may hang for ever, whatever its own timeout says, when the coordinator of the group has gone (librdkafka to 2.16).
STUCK = 4 * SLICE
METADATA = 3500  # letters: brokers take 4,096
_AGAIN = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.CONCURRENT_TRANSACTIONS})


class AbortedError(Exception):
    """A transaction was taken back: its records are not in the topic. `refused` are those that must not come again."""

    def __init__(self, refused: dict[int, str]) -> None:
        super().__init__()
        self.refused = refused


def name_of(run: str) -> str:
    """The transactional id, and the group's name."""
    return f"dali_feed-produce-{run}"


class TransactionLane(ProducerLane):
    """Made, it has ended what a process before left behind, and stands at the position that was committed.

    Args:
        to: where to.
        where: coordinates of a record by its number.
        name: the transactional id, and the group's.
        opened: whether a position must be there: one that is not has been forgotten.
        limits: `compression`, `queue_bytes` and `most` of `ProducerLane`.
    """

    def __init__(self, to: Connection, where: Callable[[int], str], name: str, *, opened: bool, **limits: Any) -> None:
        self._at = TopicPartition(to.topic, 0)
        self._name, self._in_transaction, self._where = name, False, where
        self._group: Consumer | None = None
        self._refusals: dict[int, str] = {}  # by the broker, in the transaction that is open
        self._left_out: dict[int, str] = {}  # those that were refused before
        self._stuck_since: float | None = None
        patience = max(TRANSACTION_SECONDS, 2 * to.timeout)
        more = {"transactional.id": name, "transaction.timeout.ms": round(patience * 1000)}
        super().__init__(to, Acks(0, Tally(), where), settings=more, **limits)
        try:
            self._group = consumer(self._to, self._trouble, settings={"group.id": name})
            self._repeated(lambda: self._producer.init_transactions(SLICE))
            position, tally = self._committed()
            if position is None and opened:
                msg = (
                    f"{self._to.topic}: the position of the run {name} must be at {self._to.servers}; there is "
                    "none: brokers forget it after offsets.retention.minutes; look how many of its records are "
                    "in the topic, and produce the rest, or all of it into a new topic, with another journal="
                )
                raise DataLostError(msg)
            self._kept = position or 0, copy.deepcopy(tally)
            self.settled = Acks(position or 0, tally, where)
            if position is None:
                self._keep_beginning()
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> int:
        """The first record that is not known to be in the topic: where the last transaction ended."""
        return self._kept[0]

    def take(self, number: int, item: Item, partition: int) -> None:
        """See `ProducerLane.take`; a record that spoilt a transaction is counted, and not sent again."""
        if isinstance(item, Written) and number not in self._left_out:
            self.begin()
            self.send(number, item, partition)
        else:
            self._settle(number, self._left_out.get(number) if isinstance(item, Written) else item)

    def keep(self, number: int) -> None:
        """Commit."""
        if number > self.position:
            self.commit(number)

    def finish(self, number: int) -> None:
        """Commit."""
        self.keep(number)

    def begin(self) -> None:
        """A transaction, where there is none."""
        if not self._in_transaction:
            try:
                self._producer.begin_transaction()
            except KafkaException as error:
                raise self.ended(error.args[0]) from error
            self._in_transaction = True

    def commit(self, position: int) -> None:
        """End the transaction, with all records before `position`. Raises AbortedError where one was refused."""
        self.begin()
        self.flush()
        self.settled.passed(position)
        at = TopicPartition(self._at.topic, 0, position, metadata=_metadata(self.settled.tally))
        group, sender = self._reader().consumer_group_metadata(), self._producer
        try:
            self._repeated(lambda: timely(lambda: sender.send_offsets_to_transaction([at], group, SLICE), STUCK))
        except StuckError:
            raise self._stuck() from None
        self._repeated(lambda: self._producer.commit_transaction(SLICE))
        self._in_transaction, self._stuck_since = False, None
        self._kept = position, copy.deepcopy(self.settled.tally)

    def back(self, refused: dict[int, str]) -> None:
        """Take back what is not committed, and stand where the last transaction ended.

        By a new producer, whose first question ends the transaction: one that has had to bump its epoch was seen to
        send nothing more, now and then.
        """
        self._left_out |= refused
        if self._in_transaction:
            super().close()
            self._fatal, self._in_transaction = None, False
            self._producer = self._connected()
            self._repeated(lambda: self._producer.init_transactions(SLICE))
        self._refusals = {}
        position, tally = self._kept
        self.settled = Acks(position, copy.deepcopy(tally), self._where)

    def close(self) -> None:
        """Drop what is not committed, and say so to the broker, or readers would wait for its end."""
        try:
            if self._in_transaction:
                self._producer.purge()
                self._producer.abort_transaction(1.0)
        except KafkaException:
            pass  # the broker ends it by itself when its time is over
        super().close()
        if self._group is not None:
            self._group.close()

    def _reader(self) -> Consumer:
        """The consumer of the run's group, which reads nothing but the position."""
        if self._group is None:  # never: it is made with the lane
            raise ProduceError(self._name)
        return self._group

    def _stuck(self) -> Exception:
        """Take the transaction back, or give up where none could be ended for the timeout."""
        now, to = time.monotonic(), self._to
        self._stuck_since = now if self._stuck_since is None else self._stuck_since
        if now - self._stuck_since > to.timeout:
            return unreachable(to, now - self._stuck_since, self._trouble.last)
        LOG.warning("%s: librdkafka does not finish the end of a transaction; a new producer sends it again", to.topic)
        return AbortedError({})

    def _refuse(self, number: int, reason: str) -> None:
        """The transaction is spoilt by it."""
        self._refusals[number] = reason
        super()._refuse(number, reason)

    def _look(self, since: float) -> None:
        """A spoilt transaction sends nothing more."""
        if self._refusals:
            raise AbortedError(self._refusals)
        super()._look(since)

    def _stopped(self, error: KafkaError) -> Exception:
        """Nothing is taken once the transaction is spoilt."""
        self._producer.poll(WAIT_SECONDS)
        return AbortedError(self._refusals) if self._refusals else super()._stopped(error)

    def _keep_beginning(self) -> None:
        """Have the broker keep position 0, and see that it does: from then on none is a position forgotten."""
        while True:
            try:
                self.commit(0)
                break
            except AbortedError:
                self.back({})
        if self._committed()[0] is None:
            msg = (
                f"{self._at.topic}: transactions need a broker that stores their offsets; "
                f"{self._to.servers} did not (the embedded broker does not); leave transactional=True out"
            )
            raise ProduceError(msg)

    def _committed(self) -> tuple[int | None, Tally]:
        places: list[TopicPartition] = []
        self._repeated(lambda: places.extend(self._reader().committed([self._at], SLICE)))
        at = places[-1]
        if at.error is not None:
            raise self.ended(at.error)
        if at.offset < 0:
            return None, Tally()
        try:
            return at.offset, Tally.of(json.loads(at.metadata or ""))
        except (KeyError, TypeError, ValueError) as error:
            msg = (
                f"{self._at.topic}: the group {self._name} must be used by this run only; found metadata "
                f"{at.metadata!r}"
            )
            raise ConfigError(msg) from error

    def _repeated(self, what: Callable[[], object]) -> None:
        """Do it, until it is done or the timeout is over: each step may be asked for again."""

        def ask(_: float) -> None:
            try:
                what()
            except KafkaException:
                self._producer.poll(WAIT_SECONDS)  # runs the error callback
                raise

        def passes(error: KafkaError) -> bool:
            return self._fatal is None and (error.retriable() or error.code() in _AGAIN)

        try:
            Patience(self._to, self._trouble, needs=_RIGHTS).until(ask, again=passes)
        except KafkaException as error:
            raise self.ended(self._fatal or error.args[0]) from error


def _metadata(tally: Tally) -> str:
    """The tally in few letters: places of failures are left out first, then their reasons."""
    full = tally.told()
    if len(text := json.dumps(full)) <= METADATA:
        return text
    full["failures"] = {reason[:100]: [count, []] for reason, (count, _) in full["failures"].items()}
    if len(text := json.dumps(full)) <= METADATA:
        return text
    return json.dumps(full | {"failures": {"several reasons": [tally.failed, []]}})
