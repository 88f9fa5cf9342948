"""Dead letters in a Kafka topic: each record as it was, with headers that say where it stood and why.

A letter counts when the broker has acknowledged it, from all in-sync replicas. Key, value and
headers are those of the original; what we add are headers, named as Kafka Connect names them, in text. Waits end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from dali_feed.dead_letters import Letter
from dali_feed.errors import ConfigError, DeadLetterError, SourceDeniedError, SourceEmptyError
from dali_feed.external_sources.kafka.client import Guard, producer
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import Trouble
from dali_feed.external_sources.kafka.topic import KafkaTopic, as_original, messages
from dali_feed.records.source import Original

__all__ = ["DeadLetterTopic"]

CONNECT = "__connect.errors."
WHERE = "dali_feed.where"
OURS = "dali_feed."
SOURCE = OURS + "source"
KEPT, GONE, NONE = b"kept", b"gone", b"none"  # what became of the original
_LAWS: dict[str, Any] = {"acks": "all", "enable.idempotence": True}
_TAKEN = frozenset(_LAWS) | {
    "bootstrap.servers",
    "delivery.timeout.ms",
    "error_cb",
    "logger",
    "message.timeout.ms",
    "metadata.broker.list",
    "request.required.acks",
    "transactional.id",
}


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """Keeps dead letters (bad records) in a topic, which must exist unless its broker makes topics by itself.

    Args:
        topic: its name.
        servers: bootstrap addresses, "host:port,host:port".
        config: more options of librdkafka, such as `security.protocol`, `sasl.*`, `ssl.*`; secrets as `FromEnv` or
            `FromFile`.
        timeout: seconds after which a letter that the broker has not acknowledged is an error.
    """

    topic: str
    servers: str
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)  # may hold passwords
    timeout: float = 30.0

    def __post_init__(self) -> None:
        self._connection()

    def _connection(self) -> Connection:
        """How the topic is reached. Raises ConfigError for what cannot be."""
        return Connection.of(self.topic, self.servers, self.timeout, self.config, _TAKEN, "make dead letters durable")

    def __str__(self) -> str:
        return f"topic {self.topic} at {self.servers}"

    def writer(self) -> _Writer:
        """A new writer; it connects when it first writes."""
        return _Writer(self)

    def read(self) -> Iterator[Letter]:
        """Every letter once: of those with the same `source` and `where` the last.

        A record that is no letter is skipped. Raises a SourceError where the topic is not there or cannot be read.
        """
        try:
            source = KafkaTopic(self.topic, self.servers, config=self.config, timeout=self.timeout, holes="replace")
            snapshot = source.snapshot()
        except SourceEmptyError:
            return
        to = self._connection()
        ends = list(zip(snapshot.starts.tolist(), snapshot.stops.tolist(), strict=True))
        last: dict[tuple[bytes | None, bytes], tuple[int, int]] = {}
        for found in (True, False):  # first where the last of each stands, so that one letter is held at a time
            for partition, (start, stop) in enumerate(ends):
                if start == stop:
                    continue
                for message in messages(to, partition, start, stop):
                    told = dict(as_original(message).headers)
                    where, at = told.get(WHERE), (partition, message.offset() or 0)
                    if where is None:
                        continue
                    known = told.get(SOURCE), where
                    if found:
                        last[known] = max(at, last.get(known, at))
                    elif last.get(known) == at:
                        yield _letter(message)


class _Writer:
    """A child of the process that made it is refused, and leaves its producer alone."""

    def __init__(self, to: DeadLetterTopic) -> None:
        self._to, self._guard = to, Guard(to.topic, self)
        self._trouble = Trouble()
        self._producer: Producer | None = None

    def write(self, letters: Sequence[Letter]) -> None:
        """Produce them and wait until each is acknowledged."""
        if self._guard.maker:
            msg = (
                f"{self._to}: dead letters must be written in the process that made their writer; process "
                f"{os.getpid()} was forked from {self._guard.maker}; make a writer after the fork, or spawn"
            )
            raise DeadLetterError(msg)
        begin = time.monotonic()
        failed: list[tuple[Letter, str]] = []
        self._trouble.clear()
        client = self._producer = self._producer or self._connected()
        left = len(letters)
        try:
            for letter in letters:
                self._send(client, letter, begin, failed)
            left = client.flush(max(1.0, begin + self._to.timeout + 1.0 - time.monotonic()))
        except KafkaException as error:
            failed.append((letters[0], error.args[0].str()))
        if failed or left:
            self.close()  # an idempotent producer that has lost a record goes no further
            letter, said = failed[0] if failed else (letters[-1], "")
            said = self._trouble.denied or self._trouble.last or said
            msg = (
                f"{self._to}: the dead letter of {letter.where} must be acknowledged before a state counts its "
                f"batch; the broker did not acknowledge it in {time.monotonic() - begin:.1f} "
                f"s{': ' + said if said else ''}; check the address, the topic and the right to write to it, or "
                "raise timeout="
            )
            raise DeadLetterError(msg)

    def _send(self, client: Producer, letter: Letter, begin: float, failed: list[tuple[Letter, str]]) -> None:
        key, value, headers = _record(letter)
        while True:
            try:
                client.produce(self._to.topic, value, key, headers=headers, on_delivery=_report(letter, failed))
                break
            except BufferError:
                if time.monotonic() - begin > self._to.timeout:
                    failed.append((letter, "its queue is full"))
                    return
                client.poll(0.1)
        client.poll(0)

    def close(self) -> None:
        """Drop the connection and what has not been acknowledged; in a child nothing is done."""
        client, self._producer = (None, self._producer) if self._guard.maker else (self._producer, None)
        if client is not None:
            client.purge()
            client.flush(0.5)

    def clients(self) -> tuple[Any, ...]:
        """What must not be destroyed in a child."""
        return (self._producer,)

    def _connected(self) -> Producer:
        to = self._to
        tuning = {"linger.ms": 5}
        settings = {**_LAWS, "delivery.timeout.ms": max(10, int(to.timeout * 1000))}
        try:
            return producer(to._connection(), self._trouble, tuning, settings)
        except (ConfigError, SourceDeniedError) as error:
            msg = f"{to}: {error}"
            raise DeadLetterError(msg) from None  # which may show a value as it was given


def _report(letter: Letter, failed: list[tuple[Letter, str]]) -> Callable[[KafkaError | None, Message], None]:
    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append((letter, error.str()))

    return delivered


def _record(letter: Letter) -> tuple[bytes, bytes | None, list[tuple[str, str | bytes | None]]]:
    """Key, value and headers of a letter. Where there is no original, the payload is the value."""
    where = _text(letter.where)
    original = letter.original or Original(None, letter.payload)
    topic = letter.where.rpartition("[")[0] if letter.original is not None or letter.gone else letter.source
    told = [
        (CONNECT + "topic", _text(topic)),
        (CONNECT + "partition", b"%d" % letter.partition),
        (CONNECT + "offset", b"%d" % letter.position),
        (CONNECT + "connector.name", b"dali_feed"),
        (CONNECT + "stage", letter.stage.encode()),
        (CONNECT + "class.name", b"dali_feed.BadRecords"),
        (CONNECT + "exception.class.name", b"dali_feed.errors.BadRecordError"),
        (CONNECT + "exception.message", _text(letter.reason)),
        (WHERE, where),
        (SOURCE, _text(letter.source)),
        (OURS + "sample", b"%d" % letter.sample),
        (OURS + "original", KEPT if letter.original is not None else GONE if letter.gone else NONE),
    ]
    return where if original.key is None else original.key, original.value, [*original.headers, *told]


def _letter(message: Message) -> Letter:
    full = as_original(message)
    told = {name: text or b"" for name, text in full.headers}

    def said(name: str) -> str:
        return told.get(name, b"").decode(errors="surrogateescape")

    def number(name: str) -> int:
        return int(told[name]) if told.get(name, b"").isdigit() else -1

    kept = told.get(OURS + "original") == KEPT
    own = tuple((name, text) for name, text in full.headers if not name.startswith((CONNECT, OURS)))
    key = None if full.key == told[WHERE] else full.key
    stage = said(CONNECT + "stage")
    return Letter(
        said(WHERE),
        said(SOURCE),
        number(CONNECT + "partition"),
        number(CONNECT + "offset"),
        number(OURS + "sample"),
        "source" if stage == "source" else "decode" if stage == "decode" else "screen",
        said(CONNECT + "exception.message"),
        full.value or b"",
        Original(key, full.value, own) if kept else None,
        told.get(OURS + "original") == GONE,
    )


def _text(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
