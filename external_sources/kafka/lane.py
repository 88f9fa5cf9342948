"""One librdkafka producer, and what it says of each record.

The law of this file: every record that was handed over is settled once, as delivered or as refused for good; whatever
else happens ends the run with an error that names it. A full queue is waited for, in librdkafka's own poll: what is in
memory is bounded by the queue.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from dali_feed.errors import ConfigError, DaliFeedError, ProduceError, SourceDeniedError
from dali_feed.external_sources.kafka.errors import DENIED, GONE, QUIET, Trouble, denied, gone, unreachable
from dali_feed.external_sources.kafka.options import opened
from dali_feed.external_sources.kafka.tally import Settled
from dali_feed.external_sources.kafka.writes import Written
from dali_feed.secrets import hidden

__all__ = ["OURS", "WAIT_SECONDS", "Lane", "LaneOptions"]

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
