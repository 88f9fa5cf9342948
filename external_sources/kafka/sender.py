"""One client of librdkafka's that sends records, alone or in transactions, and what it says in our words.

The laws: every record that was handed over is settled once, as delivered or as refused; whatever else happens ends the
sending with an error that names it. A full queue is waited for: what is in memory is bounded by it.

A record that the broker refuses spoils its transaction: that is taken back, and whoever sent it sends the others again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from dali_feed.errors import DaliFeedError, ProduceError
from dali_feed.external_sources.kafka.client import Guard, StuckError, producer, timely
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import (
    LOG,
    NO_RIGHTS,
    Meaning,
    Patience,
    Trouble,
    codes,
    denied,
    gone,
    meaning,
    unreachable,
)
from dali_feed.external_sources.kafka.writes import Written

CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
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


# What makes a delivery count, or what has an argument of its own.
OURS = frozenset({
    "acks", "bootstrap.servers", "compression.codec", "compression.type", "default.topic.config",
    "delivery.timeout.ms", "dr_cb", "dr_msg_cb",
    "enable.gapless.guarantee", "enable.idempotence", "error_cb", "logger", "message.timeout.ms",
    "metadata.broker.list", "on_delivery", "partitioner", "request.required.acks",
    "transactional.id", "transaction.timeout.ms",
})  # fmt: skip
# A record of its own is refused; the others go on.
_ITS_OWN = codes("MSG_SIZE_TOO_LARGE INVALID_MSG INVALID_MSG_SIZE INVALID_RECORD INVALID_TIMESTAMP")
_FENCED = codes("_FENCED INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE")
_SILENT = codes("_MSG_TIMED_OUT _TIMED_OUT _TRANSPORT")
_PURGED = codes("_PURGE_QUEUE _PURGE_INFLIGHT")
_AGAIN = codes("_TIMED_OUT _TRANSPORT CONCURRENT_TRANSACTIONS")
_RIGHTS = (
    "producing needs the rights Describe and Write on the topic, and with transactions Write on the transactional id "
    "and Read on the group, of a run both named dali_feed-produce-*"
)
LARGER = "larger than"  # a refusal of one record for its size begins so
WAIT_SECONDS = 0.2
TRANSACTION_SECONDS = 60.0
SLICE = 5.0
# It may hang for ever, whatever its own timeout says, when the coordinator of the group has gone (librdkafka to 2.16).
STUCK = 4 * SLICE

Outcome = Message | str | DaliFeedError  # what became of a record: delivered, refused, or the end of the sending


class AbortedError(ProduceError):
    """A transaction was taken back: its records are not in the topic. `refused`: why, by token, some must not come."""

    def __init__(self, message: str, refused: dict[Any, str]) -> None:
        super().__init__(message)
        self.refused = refused


def tuning(compression: str, queue_bytes: int, most: int) -> dict[str, Any]:
    """Options of librdkafka, before which the user's go. `most`: bytes of the largest record."""
    return {
        "batch.num.messages": 100_000,
        "batch.size": min(1_000_000, most),  # a broker judges batches, not records
        "compression.codec": compression,
        "linger.ms": 20,
        "message.max.bytes": most,
        "partitioner": "murmur2_random",  # as Java's producers have it
        "queue.buffering.max.kbytes": max(1, queue_bytes >> 10),
    }


class Sender:
    """Sends records to one topic. Used by one thread, but for `poll`, which another may call meanwhile.

    `settle` hears, in the thread that polls, what became of each record: its token, the bytes of its payload, and the
    message, why it is refused, or the error that ends the sending. `largest` is what the topic takes, in bytes. With a
    `transactional_id` whoever had it before is shut out. One that `gives_up` settles a record too that is not
    acknowledged for the timeout; else only waits end then. One that is not `idempotent` needs no id of the broker, for
    which librdkafka waits half a second where none is connected yet; a record whose answer is lost may come twice.
    """

    def __init__(
        self,
        to: Connection,
        settle: Callable[[Any, int, Outcome], None],
        *,
        compression: str,
        queue_bytes: int,
        largest: int | None = None,
        transactional_id: str | None = None,
        gives_up: bool = False,
        idempotent: bool = True,
    ) -> None:
        self._to, self._settle, self._largest, self._queue_bytes = to, settle, largest, queue_bytes
        self.trouble = Trouble()
        self._moved = time.monotonic()
        self._fatal: KafkaError | None = None
        self.in_transaction = False
        self._stuck_since: float | None = None
        self._refused: dict[Any, str] = {}  # by the broker, in the transaction that is open
        most = min(1_000_000_000, max(1000, 64 << 20 if largest is None else largest))
        self._tuning = tuning(compression, queue_bytes, most)
        self._transactional = transactional_id is not None
        seconds = to.timeout if gives_up and not self._transactional else 0
        self._settings: dict[str, Any] = {
            "acks": "all",
            "enable.idempotence": idempotent,
            "message.timeout.ms": max(10, round(seconds * 1000)) if seconds else 0,
        }
        if transactional_id is not None:
            patience = max(TRANSACTION_SECONDS, 2 * to.timeout)
            self._settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": round(patience * 1000)}
        self._client = self._connected()
        self.guard = Guard(to.topic, self)

    def _connected(self) -> Producer:
        client = producer(self._to, self.trouble, self._tuning, self._settings)
        if self._transactional:
            try:
                self.until(lambda: client.init_transactions(SLICE), client)
            except BaseException:
                _drop(client)
                raise
        return client

    def clients(self) -> tuple[Any, ...]:
        """What must not be destroyed in a child."""
        return (self._client,)

    def send(self, record: Written, partition: int, token: Any) -> None:
        """Hand a record over, once there is room for it; partition -1: by its key."""
        value, key, headers, timestamp, elsewhere = record
        report = partial(self._delivered, token, len(value or b"") + elsewhere)
        since, topic = 0.0, self._to.topic
        while True:
            try:
                self._client.produce(
                    topic, value, key, partition, on_delivery=report, timestamp=timestamp, headers=headers
                )
                break
            except BufferError:
                if not len(self._client):  # nothing is before it
                    self._settle(token, 0, f"{LARGER} queue_bytes, {self._queue_bytes}")
                    break
                since = since or time.monotonic()
                self._client.poll(WAIT_SECONDS)
                self._look(since)
            except KafkaException as error:
                if error.args[0].code() not in _ITS_OWN:
                    raise self._stopped(error.args[0]) from error
                self._settle(token, 0, self._why_refused(error.args[0]))
                break
        self.check()

    def poll(self, seconds: float) -> None:
        """Hear what has become of records."""
        self._client.poll(seconds)

    def check(self) -> None:
        """Raise what has ended the sending."""
        self._client.poll(0)
        if self._fatal is not None:
            raise self.ended(self._fatal)

    def flush(self) -> None:
        """Wait until all that was handed over is settled."""
        since = time.monotonic()
        try:
            while self._client.flush(WAIT_SECONDS):
                self._look(since)
        except KafkaException as error:
            raise self.ended(error.args[0]) from error
        self._look(time.monotonic())

    def close(self) -> None:
        """Drop what has not been delivered, and what is not committed; in a child nothing is done."""
        if not self.guard.close():
            return
        try:
            if self.in_transaction:  # or readers would wait for its end
                self._client.purge()
                self._client.abort_transaction(1.0)
        except KafkaException:
            pass  # the broker ends it by itself when its time is over
        _drop(self._client)

    def begin(self) -> None:
        """A transaction, where there is none."""
        if not self.in_transaction:
            try:
                self._client.begin_transaction()
            except KafkaException as error:
                raise self.ended(error.args[0]) from error
            self.in_transaction = True

    def commit(self, offsets: Sequence[TopicPartition], group: Consumer | None) -> None:
        """End the transaction, and with it set `offsets` of the consumer's group.

        Raises AbortedError where a record was refused, or the end did not come: `back` is to be called.
        """
        self.begin()
        self.flush()
        if offsets and group is not None:
            of, client, many = group.consumer_group_metadata(), self._client, list(offsets)
            try:
                self.until(lambda: timely(lambda: client.send_offsets_to_transaction(many, of, SLICE), STUCK))
            except StuckError:
                raise self._stuck() from None
        self.until(lambda: self._client.commit_transaction(SLICE))
        self.in_transaction, self._stuck_since = False, None

    def back(self) -> None:
        """Take back what is not committed.

        By a new client, whose first question ends the transaction: one that has had to bump its epoch was seen to send
        nothing more, now and then.
        """
        if self.in_transaction:
            _drop(self._client)
            self._fatal, self.in_transaction = None, False
            self._client = self._connected()
        self._refused = {}

    def until(self, what: Callable[[], object], client: Producer | None = None) -> None:
        """Do it, until it is done or the timeout is over: each step may be asked for again."""

        def ask(_: float) -> None:
            try:
                what()
            except KafkaException:
                (client or self._client).poll(WAIT_SECONDS)  # runs the error callback
                raise

        def passes(error: KafkaError) -> bool:
            return self._fatal is None and (error.retriable() or error.code() in _AGAIN)

        try:
            Patience(self._to, self.trouble, needs=_RIGHTS).until(ask, again=passes)
        except KafkaException as error:
            raise self.ended(self._fatal or error.args[0]) from error

    def ended(self, error: KafkaError) -> DaliFeedError:
        """What ends the sending, in our words."""
        to, code, words = self._to, error.code(), error.str()
        if meaning(error) in NO_RIGHTS:
            return denied(to, words, needs=_RIGHTS)
        if meaning(error) is Meaning.GONE:
            return gone(to, words)
        if code in _FENCED:
            return ProduceError(
                f"{to.topic}: one process at a time may do a run; {to.servers} says that another process has taken it "
                f"over, or that this one was silent for too long: {words}; stop the other process, and start "
                "again with the same journal"
            )
        if code in _SILENT:
            return unreachable(to, to.timeout, self.trouble.last or words)
        return ProduceError(
            f"{to.topic}: records could not be written to {to.servers}: {words}; what was delivered before counts, and "
            "a run with a journal= continues after it"
        )

    def _look(self, since: float) -> None:
        """Raise where this cannot go on, or nothing was acknowledged since then for the timeout."""
        if self._refused:  # a spoilt transaction sends nothing more
            raise self._aborted()
        if self._fatal is not None:
            raise self.ended(self._fatal)
        if self.trouble.denied and len(self._client):
            raise denied(self._to, self.trouble.denied, needs=_RIGHTS)
        seconds = time.monotonic() - max(since, self._moved)
        if seconds > self._to.timeout:
            raise unreachable(self._to, seconds, self.trouble.last)

    def _delivered(self, token: Any, size: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.trouble.clear()
            self._moved = time.monotonic()
            self._settle(token, size, message)
        elif error.code() in _ITS_OWN:
            self._moved, why = time.monotonic(), self._why_refused(error)
            if self._transactional:
                self._refused[token] = why
            self._settle(token, size, why)
        else:
            if error.code() not in _PURGED and self._fatal is None:
                self._fatal = error
            self._settle(token, size, self.ended(error))

    def _stopped(self, error: KafkaError) -> DaliFeedError:
        """What to raise where no record is taken any more: by a spoilt transaction, or at all."""
        self._client.poll(WAIT_SECONDS)
        return self._aborted() if self._refused else self.ended(self._fatal or error)

    def _aborted(self) -> AbortedError:
        return AbortedError(
            f"{self._to.topic}: the broker refuses {len(self._refused)} of a transaction's records: "
            f"{next(iter(self._refused.values()))}; none of that transaction is in the topic; send the others again",
            self._refused,
        )

    def _stuck(self) -> DaliFeedError:
        """Take the transaction back, or give up where none could be ended for the timeout."""
        now, to = time.monotonic(), self._to
        self._stuck_since = now if self._stuck_since is None else self._stuck_since
        if now - self._stuck_since > to.timeout:
            return unreachable(to, now - self._stuck_since, self.trouble.last)
        LOG.warning("%s: librdkafka does not finish the end of a transaction; a new producer sends it again", to.topic)
        return AbortedError(f"{to.topic}: the end of a transaction did not come to {to.servers}; send it again", {})

    def _why_refused(self, error: KafkaError) -> str:
        """Why a record was refused. It is a reason that others have too: no numbers of its own."""
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return f"{LARGER} max.message.bytes of the topic{'' if self._largest is None else f', {self._largest}'}"
        return error.str()


def _drop(client: Producer) -> None:
    """Drop what has not been delivered, and hear of what has."""
    with contextlib.suppress(KafkaException):  # one that has failed for good says so once more
        client.purge()
        client.flush(1.0)
