"""Records into a Kafka topic: one by one, all of a source, or the dead letters of a run."""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from confluent_kafka import Consumer, TopicPartition

from dali_feed.bad_records import Letter
from dali_feed.checks import number, of_kind, path_of
from dali_feed.errors import ConfigError, ProduceError
from dali_feed.external_sources.kafka.claims import Claim
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.dead_letters import LetterSender, read_letters
from dali_feed.external_sources.kafka.produce import Produced, ProduceRun, Tell, journal_lock, topic_at
from dali_feed.external_sources.kafka.sender import CODECS, OURS, Outcome, Sender, is_packed
from dali_feed.external_sources.kafka.stream import KafkaStream
from dali_feed.external_sources.kafka.writes import Headers, Writing, Written
from dali_feed.formats.format import Format
from dali_feed.records.source import LABEL, Source

Given = bytes | bytearray | memoryview | str | None


class Delivered(NamedTuple):
    """Where a record stands in the topic."""

    partition: int
    offset: int


class Producer:
    """Writes records into a topic. All in-sync replicas have a record that is acknowledged, once and in order.

    A record goes to the partition of its key, as Java's producers have it. One thread uses a producer; a process that
    is forked from it makes its own.

    Args:
        topic: where to. It must exist: `Topics.create`, or `dali-feed topic create`.
        servers: bootstrap addresses, "host:port,host:port" or a list of them.
        compression: "none", "lz4", "zstd", "snappy" or "gzip". "auto": of a run by its first 16 records, none where
            most of them are compressed images, sounds, films or archives, else lz4; of `send` by the first record.
        by: "key", or "turn": records with a key go to the partitions in turn too, so that partitions are equally long.
        transactional_id: records are sent in transactions, under this name, which one process at a time may have.
            "auto": `dali_feed-produce-` and a name that a run keeps in its journal. None: without transactions.
        queue_bytes: of records that wait to be sent or acknowledged. When it is full, `send` and reading wait.
        claim: `Claim(folder, above)`: larger values are stored in that folder, and their records say where.
        config: more options of librdkafka, such as `security.protocol`, `sasl.*`, `ssl.*`, `linger.ms`, `batch.size`;
            secrets as `Secret`.
        timeout: seconds without any acknowledgement after which the cluster counts as unreachable.

    Raises:
        ConfigError: a value that is not allowed, or an option in `config` that has an argument of its own.
    """

    def __init__(  # noqa: PLR0913  an option each
        self,
        topic: str,
        servers: str | Sequence[str],
        *,
        compression: str = "auto",
        by: Literal["key", "turn"] = "key",
        transactional_id: str | None = None,
        queue_bytes: int = 64 << 20,
        claim: Claim | None = None,
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._to = Connection.of(topic, servers, timeout, config, OURS, "make a delivery safe")
        choices: dict[str, tuple[str, tuple[str, ...]]] = {
            "by": (by, ("key", "turn")),
            "compression": (compression, ("auto", *CODECS)),
        }
        for name, (value, among) in choices.items():
            if value not in among:
                msg = f"{topic}: {name} must be one of {', '.join(repr(each) for each in among)}; found {value!r}"
                raise ConfigError(msg)
        if transactional_id is not None and (not isinstance(transactional_id, str) or not transactional_id):
            raise ConfigError(f"{topic}: transactional_id must be a name, 'auto' or None; found {transactional_id!r}")
        of_kind(f"{topic}: claim", claim, Claim)
        number(f"{topic}: queue_bytes", queue_bytes, "1024 or more", lambda size: size >= 1024)
        self._by, self._compression, self._transactional_id = by, compression, transactional_id
        self._queue_bytes, self._claim = queue_bytes, claim
        self._sender: Sender | None = None  # of `send`; a run has its own
        self._partitions, self._sent = 1, 0
        self._refused: BaseException | None = None  # why a record of the transaction was refused before it was sent
        self._hearing: threading.Thread | None = None  # until `_done`

    def __repr__(self) -> str:
        return f"Producer({self._to.topic!r}, {self._to.servers!r})"

    def __str__(self) -> str:
        return f"topic {self._to.topic} at {self._to.servers}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def send(
        self,
        value: Given,
        key: Given = None,
        headers: Headers | Mapping[str, str | bytes | None] = (),
        *,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Future[Delivered]:
        """Send a record; it waits while the queue is full.

        Args:
            value: its bytes, or a text, sent in UTF-8; None: a tombstone, which deletes its key in a compacted topic.
            key: its key.
            headers: names and values, in order; or values by name.
            partition: None: its key's; of a record without a key any, or with by="turn" the next one.
            timestamp: milliseconds since 1970; None: now.

        Returns:
            Where it stands, once it is acknowledged; `asyncio.wrap_future` makes it one to await. Its error is a
            ProduceError where this record is refused, else the one that `flush` raises.

        Raises what `flush` does; SourceNotFoundError where there is no such topic; and ConfigError for no partition of
        it, for what is none of these, and outside of a transaction where there are some.
        """
        try:
            return self._send(_bytes(value), _bytes(key), headers, partition, timestamp or 0)
        except (TypeError, UnicodeError, OverflowError) as error:
            rule = "value, key and headers' values must be bytes or texts, partition and timestamp whole numbers"
            raise ConfigError(f"{self._to.topic}: {rule}; {error}") from error

    def _send(
        self, value: bytes | None, key: bytes | None, headers: Any, partition: int | None, timestamp: int
    ) -> Future[Delivered]:
        sender = self._opened(value)
        if self._transactional_id is not None and not sender.in_transaction:
            msg = f"{self._to.topic}: with transactional_id= send() must be called in `with producer.transaction():`"
            raise ConfigError(msg)
        if partition is None:
            partition = -1 if self._by == "key" else self._sent % self._partitions
        elif not 0 <= partition < self._partitions:
            self._partitions = topic_at(self._to)[0]  # some may have come
            if not 0 <= partition < self._partitions:
                rule = f"partition must lie in 0..{self._partitions - 1}"
                raise ConfigError(f"{self._to.topic}: {rule}; found {partition}")
        self._sent += 1
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        record = Written(value, key, pairs, timestamp)
        if self._claim is not None and (claim := self._claim.stored(value)):
            record = record._replace(value=b"", headers=[*pairs, *claim])
        delivered: Future[Delivered] = Future()
        delivered.set_running_or_notify_cancel()  # what was sent cannot be called back
        sender.send(record, partition, delivered)
        if delivered.done() and self._refused is None:
            self._refused = delivered.exception()
        return delivered

    def flush(self) -> None:
        """Wait until each record is acknowledged, or refused.

        Raises:
            SourceUnreachableError: nothing was acknowledged for `timeout` seconds.
            SourceDeniedError: no rights to write, or credentials that are refused.
            SourceChangedError: the topic is gone.
            ProduceError: the broker refuses for another reason, or another process has taken the id over.
        """
        if self._sender is not None:
            self._sender.flush()

    def close(self) -> None:
        """Drop what has not been acknowledged. Safe to call twice, and in a child; the next `send` connects anew."""
        (sender, self._sender), (hearing, self._hearing) = (self._sender, None), (self._hearing, None)
        if sender is None or sender.guard.maker:
            return
        self._done.set()
        if hearing is not None and hearing is not threading.current_thread():  # what became of a record may end it
            hearing.join()
        sender.close()

    @contextmanager
    def transaction(self, consumer: Consumer | None = None) -> Iterator[list[TopicPartition]]:
        """Records that are sent inside are there at its end, all of them; where an exception leaves it, none.

        Args:
            consumer: the member of a consumer group whose records these are made of. What the list that this gives
                holds then, where each partition goes on, is committed for its group in the same transaction.

        Raises what `flush` does; ProduceError where a record is refused; ConfigError inside of another one.
        """
        sender = self._opened(None)
        if self._transactional_id is None:
            msg = f"{self._to.topic}: a transaction needs transactional_id=, a name that one process at a time has"
            raise ConfigError(msg)
        if sender.in_transaction:
            raise ConfigError(f"{self._to.topic}: a transaction must not be inside of another one; leave this one out")
        offsets: list[TopicPartition] = []
        self._refused = None
        sender.begin()
        try:
            yield offsets
            if self._refused is not None:
                raise ProduceError(f"{self._refused}; none of its transaction is in the topic") from self._refused
            sender.commit(offsets, consumer)
        except BaseException:
            sender.back()
            raise

    def run(  # noqa: PLR0913  an option each
        self,
        source: Source,
        *,
        columns: Mapping[str, str] | Sequence[str] | None = None,
        format: Format | str | None = None,  # noqa: A002  what users call it
        copy: bool = False,
        key: str | None = None,
        headers: Sequence[str] = (),
        label: str | None = LABEL,
        map: Callable[[bytes], bytes] | None = None,  # noqa: A002  what it is
        readers: int = 2,
        journal: str | PathLike[str] | None = None,
        every: float = 2.0,
        tell: Tell | None = None,
    ) -> Produced:
        """Write all records of a source, in its order. A record that fails does not stop the others.

        A value is the source's payload as it is, with the label in a header; or members in a `format`. A record
        without a key goes to the partition that its number in the source has the turn of. A key or a header is a
        member's bytes, its text in UTF-8, or its number in decimal text; a record that lacks the member has no such
        header, and no key.

        Args:
            source: a ShardSet, FileList, Table or KafkaTopic, or any other source that ends.
            columns: with `format`: member of the source by the name that it has in the value; or names that are both.
                Of .npy the one name is `array`. With Avro and Protobuf names are paths of the schema's fields,
                `body.label`; a number may be decimal text, several in a row the bytes of a .npy file. A member that a
                record lacks is a null; in Protobuf its field is not set.
            format: "json", "msgpack" or "npy"; or the format that the values are to be read with: `Json(base64=...)`,
                `Avro(schema)`, `Protobuf(message)`. In JSON bytes are text in UTF-8, but for those that base64 names.
            copy: records of a KafkaTopic without change: value, key, all headers and the time; payloads that are
                stored elsewhere stay there, and a record without a value has none in the new topic either.
            key: the member that is the key, or "$where", the record's coordinates; None: records have none.
            headers: members that become headers of their names.
            label: the header that the source's label becomes, in decimal text, beside a payload; None: no such header.
            map: a function of a payload (bytes) that gives another. It runs in the threads that read; what it raises is
                a failure of that record. A run with a journal goes on with the same code alone, and of an object with
                the same attributes, or the same `facts` if it has an attribute of that name.
            readers: how many of those threads.
            journal: a file that says how far the run is. With it a run that was killed continues where it was; a
                journal of another source or other options is an error. One process at a time may use it. None: a
                killed run cannot continue.
            every: seconds between two entries in the journal, or two transactions. Without transactions, records that
                the broker accepted in the last of them before a kill may be there twice; with transactions each is
                there once, for readers with isolation.level=read_committed.
            tell: hears how far it is, ten times a second.

        Raises:
            ConfigError: a value that is not allowed; another process has the journal, it cannot be written, or `claim`
                does not fit the topic.
            SourceNotFoundError: no such topic; the message names similar ones, and how one is made.
            SourceUnreachableError: nothing was acknowledged for `timeout` seconds.
            SourceDeniedError: no rights to write, or credentials that are refused.
            SourceChangedError: the source, or the topic, is not the one that the journal is of, or is gone.
            StateError: the journal is of a run with other options, or is none.
            DataLostError: the broker has forgotten the position of a transactional run.
            ProduceError: the broker refuses for another reason, another process has taken the run over, or a payload
                cannot be written where `claim` says.
            SourceError: the source cannot be read.
        """
        topic = self._to.topic
        writing = Writing(topic, source, columns, format, copy, key, headers, label, map, self._claim)
        number(f"{topic}: readers", readers, "a whole number, 1 or more", lambda count: count >= 1 and count % 1 == 0)
        number(f"{topic}: every", every, "0 or more", lambda seconds: seconds >= 0)
        path = None if journal is None else Path(path_of(f"{topic}: journal", journal))
        self.flush()
        self.close()  # of an id of transactions there may be one client at a time
        with nullcontext() if path is None else journal_lock(path):
            return ProduceRun(
                self._to,
                writing,
                readers=int(readers),
                every=every,
                by=self._by,
                compression=self._compression,
                queue_bytes=self._queue_bytes,
                transactional=self._transactional_id,
                path=path,
                tell=tell or (lambda _: None),
            ).whole()

    def writer(self) -> LetterSender:
        """What writes dead letters for `BadRecords(dead_letter=producer)`, over a connection of its own.

        A record is written as it was, with headers that say where it stood and why it is bad. The topic must exist
        unless its broker makes topics by itself.

        Raises ConfigError where the producer has `claim`, `by` or `transactional_id`, which letters have not.
        """
        others = {"claim": self._claim, "transactional_id": self._transactional_id, "by": self._by != "key"}
        if odd := [f"{name}=" for name, value in others.items() if value]:
            raise ConfigError(
                f"{self._to.topic}: a producer of dead letters sends each as it is, by its key and alone; found "
                f"{', '.join(odd)}; leave it out"
            )
        compression = "none" if self._compression == "auto" else self._compression
        return LetterSender(self._to, compression, self._queue_bytes)

    def check_source(self, source: object) -> None:
        """Raise ConfigError where letters of that source cannot be kept here: see `writer`, and those of a stream.

        They would be its next records, and bad ones again, without an end.
        """
        self.writer()
        if isinstance(source, KafkaStream) and source.reads(self._to):
            raise ConfigError(
                f"{self._to.topic}: dead letters must go into another topic than the stream reads, which would read "
                "them again, and so for ever; give the producer another topic"
            )

    def read(self) -> Iterator[Letter]:
        """Every dead letter in the topic once: of those with the same `source` and `where` the last.

        A record that is no letter is skipped; of those in batches that cannot be unpacked a warning says how many they
        are. Raises a SourceError where the topic is not there or cannot be read.
        """
        return read_letters(self._to)

    def _opened(self, value: bytes | None) -> Sender:
        """What sends; the first record says how all are compressed."""
        sender = self._sender
        if sender is None:
            packed = "none" if value is not None and is_packed(value) else "lz4"
            name = self._transactional_id
            self._partitions, _, largest = topic_at(self._to)
            sender = self._sender = Sender(
                self._to,
                partial(_settle, self._to.topic),
                compression=packed if self._compression == "auto" else self._compression,
                queue_bytes=self._queue_bytes,
                largest=largest,
                transactional_id=f"dali_feed-produce-{uuid.uuid4().hex}" if name == "auto" else name,
                gives_up=True,
            )
            self._done = threading.Event()
            weakref.finalize(self, self._done.set)
            self._hearing = threading.Thread(
                target=_hear, args=(sender, self._done), name="dali-feed-deliveries", daemon=True
            )
            self._hearing.start()
        if maker := sender.guard.maker:
            raise ConfigError(
                f"{self._to.topic}: a Producer must be used in the process that made it; process {os.getpid()} was "
                f"forked from {maker}; make one after the fork, or spawn"
            )
        return sender


def _bytes(value: Given) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else bytes(memoryview(value))


def _settle(topic: str, delivered: Future[Delivered], _: int, outcome: Outcome) -> None:
    """In the thread that polls: the one that hears, or that sends or flushes."""
    if isinstance(outcome, str):
        delivered.set_exception(
            ProduceError(f"{topic}: the broker refuses a record: {outcome}; check the topic's settings")
        )
    elif isinstance(outcome, Exception):
        delivered.set_exception(outcome)
    else:
        partition, offset = outcome.partition(), outcome.offset()
        delivered.set_result(Delivered(-1 if partition is None else partition, -1 if offset is None else offset))


def _hear(sender: Sender, done: threading.Event) -> None:
    """Ask librdkafka what became of the records, so that futures end by themselves, until it is done."""
    while not done.is_set():
        sender.poll(0.05)
