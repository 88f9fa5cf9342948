"""The producers of a run: one librdkafka producer each, and what it says of each record.

The laws: every record that was handed over is settled once, as delivered or as refused for good; whatever else happens
ends the run with an error that names it. A full queue is waited for, in librdkafka's own poll: what is in memory is
bounded by the queue.

In transactions the position, the first record that is not in the topic, is committed in the same transaction as the
records before it, as the offset of a consumer group of the run's own. So whoever goes on reads it there, in one
question, and no record is in the topic twice or not at all for those who read what is committed
(isolation.level=read_committed, librdkafka's default and Java's option). The offset is kept at the topic's partition 0,
for it must be that of a partition that there is; its metadata is the tally. Brokers forget offsets of a group after
offsets.retention.minutes, 7 days unless set: that is noticed.

Compression is a producer's, so there is one for values that are packed already and one for the others (`auto`).
Each keeps the order of its own records in a partition; records of the two kinds may change places there.
"""

from __future__ import annotations

import contextlib
import copy
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from dali_feed.errors import ConfigError, DaliFeedError, DataLostError, ProduceError, SourceDeniedError
from dali_feed.external_sources.kafka.client import Connection, StuckError, admin_options, opened, timely
from dali_feed.external_sources.kafka.errors import DENIED, GONE, LOG, QUIET, Trouble, denied, gone, unreachable
from dali_feed.external_sources.kafka.produce import Item
from dali_feed.external_sources.kafka.tally import Settled, Tally
from dali_feed.external_sources.kafka.writes import Written
from dali_feed.secrets import hidden

__all__ = [
    "AUTO",
    "CODECS",
    "OURS",
    "WAIT_SECONDS",
    "AbortedError",
    "Lane",
    "LaneOptions",
    "Lanes",
    "SharedLanes",
    "TransactionLane",
    "TransactionLanes",
    "is_packed",
    "name_of",
]

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
_RIGHTS = (
    "producing needs the rights Describe and Write on the topic, and with transactions Write on the transactional id "
    "and Read on the group, both named dali_feed-produce-*"
)
_NO_RIGHT = DENIED | {KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """What a producer needs to know; `Producer` documents the values.

    most  bytes of the largest record that the topic takes; None: not known
    """

    topic: str
    servers: str
    acks: str
    linger: float
    batch_bytes: int
    queue_bytes: int
    timeout: float
    most: int | None
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold passwords

    def librdkafka(self, compression: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """As librdkafka's own options, with `config` as `options.opened` gives it."""
        most = min(1_000_000_000, max(1000, 64 << 20 if self.most is None else self.most))
        tuning: dict[str, Any] = {
            "batch.num.messages": 100_000,
            "batch.size": min(self.batch_bytes, most),  # a broker judges batches, not records
            "client.id": "dali_feed",
            "linger.ms": self.linger * 1000,
            "message.max.bytes": most,
            "queue.buffering.max.kbytes": max(1, self.queue_bytes >> 10),
            "reconnect.backoff.max.ms": 1000,
            "socket.keepalive.enable": True,
            "topic.metadata.propagation.max.ms": 2000,
        }
        return {
            **tuning,
            **config,
            "acks": self.acks,
            "enable.idempotence": self.acks == "all",
            "compression.codec": compression,
            "bootstrap.servers": self.servers,
            "logger": QUIET,
            "message.timeout.ms": 0,  # we watch whether anything moves
            "partitioner": "murmur2_random",  # as Java's producers have it
        }


class Lane:
    """Sends records; `settled` knows what became of them. Used by one thread."""

    def __init__(self, options: LaneOptions, compression: str, settled: Settled, more: Mapping[str, Any]) -> None:
        self.settled = settled
        self._options = options
        self._trouble = Trouble()
        self._fatal: KafkaError | None = None
        config = opened(options.topic, options.config, self._trouble)
        self._librdkafka = {**options.librdkafka(compression, config), "error_cb": self._trouble, **more}
        self._producer = self._made()

    def _made(self) -> Producer:
        try:
            return Producer(self._librdkafka)
        except (KafkaException, TypeError, ValueError) as error:
            said = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            msg = f"{self._options.topic}: config= must hold options of librdkafka; {hidden(said)}"
            raise ConfigError(msg) from None  # which may show a value as it was given

    def send(self, number: int, written: Written, partition: int) -> None:
        """Hand a record over, once there is room for it; partition -1: by its key."""
        self.settled.begin(number)
        headers: Any = written.headers
        report = partial(self._delivered, number, len(written.value or b"") + written.elsewhere)
        while True:
            try:
                self._producer.produce(
                    self._options.topic, written.value, written.key, partition, on_delivery=report, headers=headers
                )
                break
            except BufferError:
                self.wait()
            except KafkaException as error:
                if error.args[0].code() not in _ITS_OWN:
                    raise self._stopped(error.args[0]) from error
                self.settled.end(number, self._refused(error.args[0]))
                break
        self.poll()

    def wait(self) -> None:
        """Wait a little for an answer. Raises where none came for the timeout."""
        self._producer.poll(WAIT_SECONDS)
        self._look(self.settled.moved)

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
        topic, servers = self._options.topic, self._options.servers
        code, said = error.code(), error.str()
        if code in _NO_RIGHT:
            return self._denied(said)
        if code in GONE:
            return gone(topic, servers, said)
        if code in _FENCED:
            return ProduceError(
                f"{topic}: one process at a time may do a run; {servers} says that another process has taken it "
                f"over, or that this one was silent for too long: {said}; stop the other process, and start "
                "again with the same journal"
            )
        if code in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
            return unreachable(topic, servers, self._options.timeout, self._trouble.last or said)
        return ProduceError(
            f"{topic}: records could not be written to {servers}: {said}; what was delivered before counts, and "
            "a run with a journal= continues after it"
        )

    def _denied(self, said: str) -> SourceDeniedError:
        options = self._options
        return denied(options.topic, options.servers, said, options.config, _RIGHTS)

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
            raise self._denied(self._trouble.denied)
        seconds = time.monotonic() - since
        if seconds > self._options.timeout:
            raise unreachable(self._options.topic, self._options.servers, seconds, self._trouble.last)

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
            most = "" if self._options.most is None else f", {self._options.most}"
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


def name_of(run: str, lane: str) -> str:
    """The transactional id, and the group's name."""
    return f"dali_feed-produce-{run}-{lane}"


class TransactionLane(Lane):
    """See `Lane`. Made, it has ended what a process before left behind, and stands at the position that was committed.

    opened  whether a position must be there: one that is not has been forgotten
    """

    def __init__(
        self,
        options: LaneOptions,
        compression: str,
        where: Callable[[int], str],
        name: str,
        *,
        opened: bool,
    ) -> None:
        self._at = TopicPartition(options.topic, 0)
        self._name, self._in_transaction = name, False
        patience = max(TRANSACTION_SECONDS, 2 * options.timeout)
        more: Mapping[str, Any] = {"transactional.id": name, "transaction.timeout.ms": round(patience * 1000)}
        super().__init__(options, compression, Settled(0, Tally(), where), more)
        self._refusals: dict[int, str] = {}
        self._stuck_since: float | None = None
        known = Connection(options.topic, options.servers, options.timeout, options.config)
        told = {**admin_options(known, self._trouble), "group.id": name, "enable.auto.commit": False}
        kept = {k: v for k, v in told.items() if not k.startswith(_PRODUCER_ONLY)}
        self._group = Consumer({**kept, "logger": QUIET})
        try:
            self._repeated(lambda: self._producer.init_transactions(SLICE))
            position, tally = self._committed()
            if position is None and opened:
                msg = (
                    f"{options.topic}: the position of the run {name} must be at {options.servers}; there is "
                    "none: brokers forget it after offsets.retention.minutes; look how many of its records are "
                    "in the topic, and produce the rest, or all of it into a new topic, with another journal="
                )
                raise DataLostError(msg)
            self.settled = Settled(position or 0, tally, where)
            self._where, self.position, self._before = where, position or 0, copy.deepcopy(tally)
            if position is None:
                self._kept()
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """A transaction, where there is none."""
        if not self._in_transaction:
            self._do(self._producer.begin_transaction)
            self._in_transaction = True

    def commit(self, position: int) -> None:
        """End the transaction, with all records before `position`. Raises AbortedError where one was refused."""
        self.begin()
        self.flush()
        self.settled.passed(position)
        at = TopicPartition(self._at.topic, 0, position, metadata=_told(self.settled.tally))
        group = self._group.consumer_group_metadata()
        producer = self._producer
        try:
            self._repeated(lambda: timely(lambda: producer.send_offsets_to_transaction([at], group, SLICE), STUCK))
        except StuckError:
            raise self._stuck() from None
        self._repeated(lambda: self._producer.commit_transaction(SLICE))
        self._in_transaction, self._stuck_since = False, None
        self.position, self._before = position, copy.deepcopy(self.settled.tally)

    def refused(self, number: int, reason: str | None) -> None:
        """A record that is not sent is settled: a transaction was taken back for it, or there is none."""
        self.settled.begin(number)
        self.settled.end(number, reason)

    def back(self) -> None:
        """Take back what is not committed, and stand where the last transaction ended.

        By a new producer, whose first question ends the transaction: one that has had to bump its epoch was seen to
        send nothing more, now and then.
        """
        if self._in_transaction:
            super().close()
            self._fatal, self._in_transaction = None, False
            self._producer = self._made()
            self._repeated(lambda: self._producer.init_transactions(SLICE))
        self._refusals = {}
        self.settled = Settled(self.position, copy.deepcopy(self._before), self._where)

    def close(self) -> None:
        """Drop what is not committed, and say so to the broker, or readers would wait for its end."""
        try:
            if self._in_transaction:
                self._producer.purge()
                self._producer.abort_transaction(1.0)
        except KafkaException:
            pass  # the broker ends it by itself when its time is over
        super().close()
        self._group.close()

    def _stuck(self) -> Exception:
        """Take the transaction back, or give up where none could be ended for the timeout."""
        now, options = time.monotonic(), self._options
        self._stuck_since = now if self._stuck_since is None else self._stuck_since
        if now - self._stuck_since > options.timeout:
            return unreachable(options.topic, options.servers, now - self._stuck_since, self._trouble.last)
        LOG.warning(
            "%s: librdkafka does not finish the end of a transaction; a new producer sends it again", options.topic
        )
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

    def _kept(self) -> None:
        """Have the broker keep position 0, and see that it does: from then on none is a position forgotten."""
        while True:
            try:
                self.commit(0)
                break
            except AbortedError:
                self.back()
        if self._committed()[0] is None:
            msg = (
                f"{self._at.topic}: transactions need a broker that stores their offsets; "
                f"{self._options.servers} did not (the embedded broker does not); leave transactional=True out"
            )
            raise ProduceError(msg)

    def _committed(self) -> tuple[int | None, Tally]:
        found: list[TopicPartition] = []
        self._repeated(lambda: found.extend(self._group.committed([self._at], SLICE)))
        at = found[-1]
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

    def _do(self, what: Callable[[], object]) -> None:
        try:
            what()
        except KafkaException as error:
            raise self.ended(error.args[0]) from error

    def _repeated(self, what: Callable[[], object]) -> None:
        """Do it, until it is done or the timeout is over: each step may be asked for again."""
        begun = time.monotonic()
        while True:
            try:
                what()
            except KafkaException as error:
                found = error.args[0]
                if self._fatal is None and (found.retriable() or found.code() in _AGAIN):
                    self._producer.poll(WAIT_SECONDS)
                    if not self._trouble.denied and time.monotonic() - begun <= self._options.timeout:
                        continue
                    if self._trouble.denied:
                        raise self._denied(self._trouble.denied) from error
                raise self.ended(self._fatal or found) from error
            else:
                return


_PRODUCER_ONLY = ("batch.", "compression.", "linger.", "message.send.", "queue.buffering.", "retr", "sticky.")


def _told(tally: Tally) -> str:
    """The tally in few letters: places of failures are left out first, then their reasons."""
    told = tally.told()
    if len(text := json.dumps(told)) <= METADATA:
        return text
    told["failures"] = {reason[:100]: [count, []] for reason, (count, _) in told["failures"].items()}
    if len(text := json.dumps(told)) <= METADATA:
        return text
    return json.dumps(told | {"failures": {"several reasons": [tally.failed, []]}})


CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
AUTO = {True: "none", False: "lz4"}  # by whether the value is packed

Where = Callable[[int], str]


class Lanes(Protocol):
    """What a run needs of its producers."""

    @property
    def position(self) -> int:
        """The first record that is not known to be in the topic."""
        ...

    def take(self, number: int, item: Item, partition: int) -> None:
        """Send a record, or count why there is none. Numbers grow."""
        ...

    def keep(self, number: int) -> None:
        """See how far the run is; all records before this number were handed over."""
        ...

    def finish(self, number: int) -> None:
        """Wait until all are settled."""
        ...

    def tally(self) -> Tally:
        """What became of the records before `position`."""
        ...

    def back(self, refused: dict[int, str]) -> None:
        """Stand where the last transaction ended; those that were refused are not sent again."""
        ...

    def close(self) -> None:
        """Drop what is not delivered."""
        ...


class SharedLanes:
    """Producers without transactions; what becomes of their records is settled in one line."""

    def __init__(self, options: LaneOptions, compression: str, position: int, tally: Tally, where: Where) -> None:
        self._options, self._compression = options, compression
        self._settled = Settled(position, tally, where)
        self._lanes: dict[str, Lane] = {}

    @property
    def position(self) -> int:
        """See `Lanes`."""
        return self._settled.mark

    def take(self, number: int, item: Item, partition: int) -> None:
        """See `Lanes`."""
        if isinstance(item, Written):
            self._lane(_codec(self._compression, item)).send(number, item, partition)
        else:
            self._settled.begin(number)
            self._settled.end(number, item)

    def keep(self, number: int) -> None:
        """See `Lanes`."""
        for lane in self._lanes.values():
            lane.poll()

    def finish(self, number: int) -> None:
        """See `Lanes`."""
        for lane in self._lanes.values():
            lane.flush()

    def tally(self) -> Tally:
        """See `Lanes`."""
        return self._settled.tally

    def back(self, refused: dict[int, str]) -> None:
        """There is no way back."""

    def close(self) -> None:
        """See `Lanes`."""
        for lane in self._lanes.values():
            lane.close()

    def _lane(self, codec: str) -> Lane:
        if codec not in self._lanes:
            self._lanes[codec] = Lane(self._options, codec, self._settled, {})
        return self._lanes[codec]


class TransactionLanes:
    """Producers with transactions, each with a position of its own: a record's value says whose it is."""

    def __init__(self, options: LaneOptions, compression: str, run: str, where: Where, *, opened: bool) -> None:
        self._compression, self._refused = compression, dict[int, str]()
        self._lanes: dict[str, TransactionLane] = {}
        try:
            for codec in AUTO.values() if compression == "auto" else (compression,):
                name = name_of(run, codec)
                self._lanes[codec] = TransactionLane(options, codec, where, name, opened=opened)
        except BaseException:
            self.close()
            raise
        self._first = next(iter(self._lanes.values()))

    @property
    def position(self) -> int:
        """See `Lanes`."""
        return min(lane.position for lane in self._lanes.values())

    def take(self, number: int, item: Item, partition: int) -> None:
        """See `Lanes`."""
        lane = self._lanes[_codec(self._compression, item)] if isinstance(item, Written) else self._first
        if number < lane.position:
            return
        if not isinstance(item, Written):
            lane.refused(number, item)
        elif number in self._refused:
            lane.refused(number, self._refused[number])
        else:
            lane.begin()
            lane.send(number, item, partition)

    def keep(self, number: int) -> None:
        """Commit."""
        for lane in self._lanes.values():
            if number > lane.position:
                lane.commit(number)

    def finish(self, number: int) -> None:
        """Commit."""
        self.keep(number)

    def tally(self) -> Tally:
        """See `Lanes`; of what is not committed too."""
        found = Tally()
        for lane in self._lanes.values():
            found.add(lane.settled.tally)
        return found

    def back(self, refused: dict[int, str]) -> None:
        """See `Lanes`."""
        self._refused |= refused
        for lane in self._lanes.values():
            lane.back()

    def close(self) -> None:
        """See `Lanes`."""
        for lane in self._lanes.values():
            lane.close()


def _codec(compression: str, item: Written) -> str:
    return AUTO[is_packed(item.value or b"")] if compression == "auto" else compression
