"""Dead letters in a topic, as a `Producer` keeps them: each record as it was, and headers that say where and why.

A letter counts when the broker has acknowledged it, from all in-sync replicas. Key, value and
headers are those of the original; what we add are headers, named as Kafka Connect names them, in text. Waits end.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from dali_feed.bad_records import Letter
from dali_feed.errors import DaliFeedError, DeadLetterError, SourceEmptyError, SourceNotFoundError
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import LOG
from dali_feed.external_sources.kafka.produce import topic_at
from dali_feed.external_sources.kafka.rows import WHOLE, WholeRecord
from dali_feed.external_sources.kafka.sender import LARGER, Outcome, Sender
from dali_feed.external_sources.kafka.topic import KafkaTopic
from dali_feed.external_sources.kafka.writes import Written
from dali_feed.records.extents import Extents
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Original, Snapshot

CONNECT = "__connect.errors."
WHERE = "dali_feed.where"
ADDED = "dali_feed."
SOURCE = ADDED + "source"
DIGITS = 18  # of a number that fits
KEPT, GONE, NONE = b"kept", b"gone", b"none"  # what became of the original


def read_letters(to: Connection) -> Iterator[Letter]:
    """Every letter of a topic once: of those with the same `source` and `where` the last.

    A record that is no letter is skipped; of those in batches that cannot be unpacked a warning says how many they are.
    Raises a SourceError where the topic is not there or cannot be read.
    """
    try:
        source = KafkaTopic(to.topic, to.servers, config=to.config, timeout=to.timeout, holes="replace")
        snapshot = source.snapshot()
    except SourceEmptyError:
        return
    last: dict[tuple[bytes | None, bytes], tuple[int, int]] = {}
    for looking in (True, False):  # first where the last of each stands, so that few letters are in memory at a time
        for at, record in _records(source, snapshot, aloud=looking):
            headers = dict(record.headers)
            if (where := headers.get(WHERE)) is None:
                continue
            known = headers.get(SOURCE), where
            if looking:
                last[known] = max(at, last.get(known, at))
            elif last.get(known) == at:
                yield _letter(record)


class LetterSender:
    """Sends dead letters to a topic. A child of the process that connected is refused, and leaves its client alone."""

    def __init__(self, to: Connection, compression: str, queue_bytes: int) -> None:
        self._to = to
        self._options: dict[str, Any] = {"compression": compression, "queue_bytes": queue_bytes}
        self._sender: Sender | None = None
        self._outcomes: dict[int, Outcome] = {}  # of the letters that are being written, by their place

    def write(self, letters: Sequence[Letter]) -> None:
        """Send them and wait until each is acknowledged. Raises DeadLetterError where one is not."""
        name = f"topic {self._to.topic} at {self._to.servers}"
        if self._sender is not None and (maker := self._sender.guard.maker):
            raise DeadLetterError(
                f"{name}: dead letters must be written in the process that made their writer; process "
                f"{os.getpid()} was forked from {maker}; make a writer after the fork, or spawn"
            )
        begin, outcomes, why = time.monotonic(), self._outcomes, ""
        outcomes.clear()
        try:
            sender = self._sender = self._sender or self._connected()
            for place, letter in enumerate(letters):
                sender.send(_record(letter), -1, place)
            sender.flush()
            refused = [(place, outcome) for place, outcome in outcomes.items() if isinstance(outcome, str)]
            large = [(place, refusal) for place, refusal in refused if refusal.startswith(LARGER)]
            for place, refusal in large:
                sender.send(_record(_without_value(letters[place], refusal)), -1, place)
            if large:
                sender.flush()
        except DaliFeedError as error:
            why = str(error)
        lost = [place for place in range(len(letters)) if isinstance(outcomes.get(place, ""), str | Exception)]
        if why or lost:
            self.close()  # the next letters go by a new one
            place = lost[0] if lost else -1
            raise DeadLetterError(
                f"{name}: the dead letter of {letters[place].where} must be acknowledged before a state counts its "
                f"batch; the broker did not acknowledge it in {time.monotonic() - begin:.1f} s: "
                f"{why or outcomes.get(place)}"
            )

    def close(self) -> None:
        """Drop the connection and what has not been acknowledged; in a child nothing is done."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def _connected(self) -> Sender:
        try:
            largest = topic_at(self._to)[2]
        except SourceNotFoundError:
            largest = None  # its broker may make it at the first letter
        return Sender(self._to, self._settle, largest=largest, gives_up=True, **self._options)

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


def _without_value(letter: Letter, why: str) -> Letter:
    """What still fits of a letter that is too large for the topic."""
    reason = f"{letter.reason}; without the record, which is {why}"
    gone = letter.gone or letter.original is not None
    return replace(letter, reason=reason, payload=b"", original=None, gone=gone)


def _records(source: KafkaTopic, snapshot: Snapshot, *, aloud: bool) -> Iterator[tuple[tuple[int, int], WholeRecord]]:
    """All records of a topic with their partition and offset, an extent at a time; `aloud`, what cannot be read."""
    reader, slabs, unread = source.whole_reader(), SlabPool(), list[str]()
    with contextlib.closing(reader):
        for partition, (start, stop) in enumerate(zip(snapshot.starts.tolist(), snapshot.stops.tolist(), strict=True)):
            for first in range(start, stop, snapshot.extent):
                lease = slabs.lease()
                block = reader.read(Extents.one(partition, first, min(first + snapshot.extent, stop)), lease)
                records: list[WholeRecord | None] = list(cast("Any", block.values[WHOLE]))
                unread += (f"{source.where(partition, first + n)}: {each.reason}" for n, each in block.faults.items())
                lease.release()
                yield from (((partition, first + n), record) for n, record in enumerate(records) if record is not None)
    if aloud and unread:
        LOG.warning("%d offsets of the dead letters could not be read, the first %s", len(unread), unread[0])


def _letter(full: WholeRecord) -> Letter:
    headers = {name: text or b"" for name, text in full.headers}

    def text(name: str) -> str:
        return headers.get(name, b"").decode(errors="surrogateescape")

    def number(name: str) -> int:
        digits = headers.get(name, b"")
        return int(digits) if digits.isdigit() and len(digits) <= DIGITS else -1

    kept = headers.get(ADDED + "original") == KEPT
    own = tuple((name, text) for name, text in full.headers if not name.startswith((CONNECT, ADDED)))
    key = None if full.key == headers[WHERE] else full.key
    stage = text(CONNECT + "stage")
    return Letter(
        text(WHERE),
        text(SOURCE),
        number(CONNECT + "partition"),
        number(CONNECT + "offset"),
        number(ADDED + "sample"),
        "source" if stage == "source" else "decode" if stage == "decode" else "screen",
        text(CONNECT + "exception.message"),
        full.value or b"",
        Original(key, full.value, own) if kept else None,
        headers.get(ADDED + "original") == GONE,
    )


def _text(text: str) -> bytes:
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # half of a pair, which somebody's own error has quoted
        return text.encode(errors="backslashreplace")
