"""Dead letters in a Kafka topic: each record as it was, with headers that say where it stood and why.

A letter counts when the broker has acknowledged it, from all in-sync replicas. Key, value and
headers are those of the original; what we add are headers, named as Kafka Connect names them, in text. Waits end.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dali_feed.dead_letters import Letter
from dali_feed.errors import DaliFeedError, DeadLetterError, SourceEmptyError, SourceNotFoundError
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.produce import topic_at
from dali_feed.external_sources.kafka.rows import originals
from dali_feed.external_sources.kafka.sender import OURS, Outcome, Sender
from dali_feed.external_sources.kafka.topic import KafkaTopic
from dali_feed.external_sources.kafka.writes import Written
from dali_feed.records.extents import Extents
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Original, Snapshot

__all__ = ["DeadLetterTopic"]

CONNECT = "__connect.errors."
WHERE = "dali_feed.where"
ADDED = "dali_feed."
SOURCE = ADDED + "source"
_TAKEN = OURS - {"compression.codec", "compression.type", "partitioner"}
KEPT, GONE, NONE = b"kept", b"gone", b"none"  # what became of the original


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """Keeps dead letters (bad records) in a topic, which must exist unless its broker makes topics by itself.

    Args:
        topic: its name.
        servers: bootstrap addresses, "host:port,host:port".
        config: more options of librdkafka, such as `security.protocol`, `sasl.*`, `ssl.*`; secrets as `Secret`.
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
        last: dict[tuple[bytes | None, bytes], tuple[int, int]] = {}
        for found in (True, False):  # first where the last of each stands, so that few letters are held at a time
            for at, record in _records(source, snapshot):
                told = dict(record.headers)
                if (where := told.get(WHERE)) is None:
                    continue
                known = told.get(SOURCE), where
                if found:
                    last[known] = max(at, last.get(known, at))
                elif last.get(known) == at:
                    yield _letter(record)


class _Writer:
    """A child of the process that made it is refused, and leaves its client alone."""

    def __init__(self, to: DeadLetterTopic) -> None:
        self._to, self._maker = to, os.getpid()
        self._sender: Sender | None = None
        self._outcomes: dict[int, Outcome] = {}  # of the letters that are being written, by their place

    def write(self, letters: Sequence[Letter]) -> None:
        """Produce them and wait until each is acknowledged."""
        if self._maker != os.getpid():
            msg = (
                f"{self._to}: dead letters must be written in the process that made their writer; process "
                f"{os.getpid()} was forked from {self._maker}; make a writer after the fork, or spawn"
            )
            raise DeadLetterError(msg)
        begin, outcomes, why = time.monotonic(), self._outcomes, ""
        outcomes.clear()
        try:
            sender = self._sender = self._sender or self._connected()
            for place, letter in enumerate(letters):
                sender.send(_record(letter), -1, place)
            sender.flush()
        except DaliFeedError as error:
            why = str(error)
        lost = [place for place in range(len(letters)) if isinstance(outcomes.get(place, ""), str | Exception)]
        if why or lost:
            self.close()  # the next letters go by a new one
            place = lost[0] if lost else -1
            msg = (
                f"{self._to}: the dead letter of {letters[place].where} must be acknowledged before a state counts its "
                f"batch; the broker did not acknowledge it in {time.monotonic() - begin:.1f} s: "
                f"{why or outcomes.get(place)}"
            )
            raise DeadLetterError(msg)

    def close(self) -> None:
        """Drop the connection and what has not been acknowledged; in a child nothing is done."""
        sender, self._sender = (None, self._sender) if self._maker != os.getpid() else (self._sender, None)
        if sender is not None:
            sender.close()

    def _connected(self) -> Sender:
        to = self._to._connection()
        try:
            largest = topic_at(to)[2]
        except SourceNotFoundError:
            largest = None  # its broker may make it at the first letter
        return Sender(
            to,
            self._settle,
            compression="none",
            queue_bytes=64 << 20,
            largest=largest,
            gives_up=True,
        )

    def _settle(self, place: int, _: int, outcome: Outcome) -> None:
        self._outcomes[place] = outcome


def _record(letter: Letter) -> Written:
    """A letter as it is sent. Where there is no original, the payload is the value."""
    where = _text(letter.where)
    original = letter.original or Original(None, letter.payload)
    topic = letter.where.rpartition("[")[0] if letter.original is not None or letter.gone else letter.source
    about = [
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
        (ADDED + "sample", b"%d" % letter.sample),
        (ADDED + "original", KEPT if letter.original is not None else GONE if letter.gone else NONE),
    ]
    return Written(original.value, where if original.key is None else original.key, [*original.headers, *about])


def _records(source: KafkaTopic, snapshot: Snapshot) -> Iterator[tuple[tuple[int, int], Original]]:
    """All records of a topic with their partition and offset, an extent at a time."""
    reader, slabs = source.whole_reader(), SlabPool()
    with contextlib.closing(reader):
        for partition, (start, stop) in enumerate(zip(snapshot.starts.tolist(), snapshot.stops.tolist(), strict=True)):
            for first in range(start, stop, snapshot.extent):
                lease = slabs.lease()
                block = reader.read(Extents.one(partition, first, min(first + snapshot.extent, stop)), lease)
                records = list(originals(block))
                lease.release()
                yield from (((partition, first + n), whole[0]) for n, whole in enumerate(records) if whole is not None)


def _letter(full: Original) -> Letter:
    told = {name: text or b"" for name, text in full.headers}

    def said(name: str) -> str:
        return told.get(name, b"").decode(errors="surrogateescape")

    def number(name: str) -> int:
        return int(told[name]) if told.get(name, b"").isdigit() else -1

    kept = told.get(ADDED + "original") == KEPT
    own = tuple((name, text) for name, text in full.headers if not name.startswith((CONNECT, ADDED)))
    key = None if full.key == told[WHERE] else full.key
    stage = said(CONNECT + "stage")
    return Letter(
        said(WHERE),
        said(SOURCE),
        number(CONNECT + "partition"),
        number(CONNECT + "offset"),
        number(ADDED + "sample"),
        "source" if stage == "source" else "decode" if stage == "decode" else "screen",
        said(CONNECT + "exception.message"),
        full.value or b"",
        Original(key, full.value, own) if kept else None,
        told.get(ADDED + "original") == GONE,
    )


def _text(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
