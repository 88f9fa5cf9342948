"""Records of any source into a Kafka topic.

The laws: records are sent in the order of the source; one counts when the broker has acknowledged it; and a run goes on
with the first one that does not count. Nothing is skipped in silence: what was not written is counted by reason, with
its coordinates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from dali_feed.checks import of_kind, path_of
from dali_feed.columns.request import Request
from dali_feed.errors import ConfigError, SourceChangedError, SourceNotFoundError, StateError
from dali_feed.external_sources.kafka.claims import Claim
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.lanes import (
    CODECS,
    OURS,
    SAMPLE,
    AbortedError,
    Acks,
    ProducerLane,
    TransactionLane,
    codec_for,
    name_of,
)
from dali_feed.external_sources.kafka.produce import Journal, Numbered, ReadAhead, Reading, journal_lock, load, save
from dali_feed.external_sources.kafka.writes import WHERE, Payload, Writes, Written
from dali_feed.records.source import Source
from dali_feed.records.tally import Tally

__all__ = ["Produced", "Producer"]

TELL_SECONDS = 0.1
Tell = Callable[["Produced"], None]


@dataclass(frozen=True, slots=True)
class Produced:
    """How far a run is, or what it did; made by `Producer.run`.

    total     records that the source has, or offsets where it does not know which hold one
    begun     the number of the record that this process began with; above 0 where it went on
    position  the first record that is not known to be in the topic; `total` at the end
    tally     of all records before `position`, whichever process sent them: how many the broker has, their payload
              bytes, and the failures by reason. With transactions it runs ahead until they are committed
    seconds   since this process began
    """

    total: int
    begun: int
    position: int
    tally: Tally
    seconds: float


class Producer:
    """Writes all records of a source into a topic, in the source's order. A record that fails does not stop the others.

    A record goes to the partition of its key, as Java's producers have it; one without a key to the partition that its
    number in the source has the turn of.

    Args:
        source: a ShardSet, FileList, ArrowRows or KafkaTopic, or any other source.
        topic: where to. It must exist: `Topics.create`, or `dali-feed topic create`.
        servers: bootstrap addresses, "host:port,host:port" or a list of them.
        writes: how a record is written: `Payload(...)`, `Values(...)` or `Copied()`. None: `Payload()`, the payload
            with its label in the header `label`.
        map: a function of a payload (bytes) that gives another. It runs in the threads that read; what it raises is a
            failure of that record.
        readers: how many of those threads.
        claim: `Claim(folder, above)`: larger values are stored in that folder, and their records say where.
        journal: a file that says how far the run is. With it a run that was killed continues where it was; a journal of
            another source or other options is an error. One process at a time may use it. None: a killed run cannot
            continue.
        transactional: each record is in the topic once, for readers with isolation.level=read_committed, however
            often the run was killed. Without it, records that the broker accepted in the last `every` seconds before a
            kill may be there twice.
        every: seconds between two entries in the journal, or two transactions.
        by: "key", or "turn": records with a key go to the partitions in turn too, so that partitions are equally long.
        compression: "none", "lz4", "zstd", "snappy" or "gzip". "auto": by the first 16 records of the source; none
            where most of them are compressed images, sounds, films or archives, else lz4.
        queue_bytes: of records that wait to be sent or acknowledged. When it is full, reading waits.
        config: more options of librdkafka, such as `security.protocol`, `sasl.*`, `ssl.*`, `linger.ms`, `batch.size`.
        timeout: seconds without any acknowledgement after which the cluster counts as unreachable.

    Raises:
        ConfigError: a value that is not allowed, or an option in `config` that has an argument of its own.
    """

    def __init__(  # noqa: PLR0913  an option each
        self,
        source: Source,
        topic: str,
        servers: str | Sequence[str],
        *,
        writes: Writes | None = None,
        map: Callable[[bytes], bytes] | None = None,  # noqa: A002  what it is
        readers: int = 2,
        claim: Claim | None = None,
        journal: str | PathLike[str] | None = None,
        transactional: bool = False,
        every: float = 2.0,
        by: Literal["key", "turn"] = "key",
        compression: str = "auto",
        queue_bytes: int = 64 << 20,
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._writes: Writes = Payload() if writes is None else writes
        if not callable(getattr(self._writes, "record", None)):
            msg = (
                f"{topic}: writes must say how a record is written, such as Payload() or Values(...); found {writes!r}"
            )
            raise ConfigError(msg)
        if map is not None and not callable(map):
            msg = f"{topic}: map must be a function of bytes, or None; found {map!r}"
            raise ConfigError(msg)
        of_kind(f"{topic}: claim", claim, Claim)
        if not isinstance(source, Source):
            lacks = ", ".join(name for name in ("snapshot", "reader") if not hasattr(source, name))
            msg = (
                f"{topic}: the source must be one that ends, such as a ShardSet or a KafkaTopic; found {source!r}"
                f"{f', without {lacks}' if lacks else ''}; of a stream give what replay() makes of two states"
            )
            raise ConfigError(msg)
        self._main, self._source = self._writes.of(source), source
        self._to = Connection.of(topic, servers, timeout, config, OURS, "make a delivery safe")
        self._topic, self._servers = topic, self._to.servers
        choices: dict[str, tuple[str, tuple[str, ...]]] = {
            "by": (by, ("key", "turn")),
            "compression": (compression, ("auto", *CODECS)),
        }
        for name, (value, among) in choices.items():
            if value not in among:
                msg = f"{topic}: {name} must be one of {', '.join(repr(each) for each in among)}; found {value!r}"
                raise ConfigError(msg)
        for name, number, least in (("readers", readers, 1), ("every", every, 0), ("queue_bytes", queue_bytes, 1024)):
            if not number >= least:
                msg = f"{topic}: {name} must be {least} or more; found {number!r}"
                raise ConfigError(msg)
        if map is not None and not self._writes.payload:
            msg = f"{topic}: map= changes payloads, and {self._writes!r} writes none; leave one of them out"
            raise ConfigError(msg)
        payload, fields = self._writes.reads(self._main)
        members = tuple(name for name in self._writes.members if name != WHERE)
        self._reading = Reading(self._main, payload, fields, members)
        Request.of(self._main, members)  # whether there are such; what a source has by itself is told where it is read
        self._map, self._readers, self._by, self._compression = map, readers, by, compression
        self._claim = claim
        self._journal = None if journal is None else Path(path_of(f"{topic}: journal", journal))
        self._transactional, self._every = transactional, every
        self._queue_bytes = queue_bytes

    def __repr__(self) -> str:
        return f"Producer({self._source!r}, {self._topic!r}, {self._servers!r})"

    def run(self, tell: Tell | None = None) -> Produced:
        """Write the records, from the first one or from the journal's position; `tell` is called with the progress.

        Raises:
            SourceNotFoundError: no such topic; the message names similar ones, and how one is made.
            SourceUnreachableError: nothing was acknowledged for `timeout` seconds.
            SourceDeniedError: no rights to write, or credentials that are refused.
            SourceChangedError: the source, or the topic, is not the one that the journal is of, or is gone.
            StateError: the journal is of a run with other options, or is none.
            DataLostError: the broker has forgotten the position of a transactional run.
            ProduceError: the broker refuses for another reason, another process has taken the run over, or a payload
                cannot be written where `claim` says.
            SourceError: the source cannot be read.
            ConfigError: another process has the journal, it cannot be written, or `claim` does not fit the topic.
        """
        with nullcontext() if self._journal is None else journal_lock(self._journal):
            return ProduceRun(self, tell or (lambda _: None)).whole()

    def _decisive(self) -> dict[str, Any]:
        """What a run must go on with. Of a function its name is known."""
        named = self._map and f"{self._map.__module__}.{getattr(self._map, '__qualname__', repr(self._map))}"
        options = {"map": getattr(self._map, "told", named), "by": self._by, "transactional": self._transactional}
        return {**self._writes.to_json(), **options} | ({} if self._claim is None else {"claim": self._claim.to_json()})


class ProduceRun:
    """One process's part of a run."""

    def __init__(self, of: Producer, tell: Tell) -> None:
        self._of, self._path, self._tell = of, of._journal, tell
        self._begun_at = time.monotonic()
        partitions, topic_id, self._most = _topic_at(of._to)
        if of._claim is not None:
            of._claim.check(of._topic, self._most)
        known = None if self._path is None else load(self._path)
        pin = None if known is None else known.pin
        snapshot = of._main.snapshot(pin)
        fresh = Journal(
            source=snapshot.source,
            fingerprint=snapshot.fingerprint,
            pin=None if snapshot.pin is None else dict(snapshot.pin),
            topic=of._topic,
            topic_id=topic_id,
            partitions=partitions,
            options=of._decisive(),
        )
        self._journal = fresh if known is None else known.resumed(fresh, str(self._path))
        if partitions < self._journal.partitions:
            msg = (
                f"{of._topic}: the run began with {self._journal.partitions} partitions, found {partitions}: the topic "
                "was deleted and made again; remove the journal to start from the beginning"
            )
            raise SourceChangedError(msg)
        self._line = Numbered.of(snapshot)
        if self._journal.position > len(self._line):
            msg = f"{self._path}: its position must lie in 0..{len(self._line)}; found {self._journal.position}"
            raise StateError(msg)
        self._begun = self._journal.position

    def whole(self) -> Produced:
        """All that is left."""
        if self._journal.done:
            return self._so_far(self._journal.position, Tally.of(self._journal.tally))
        self._save(replace(self._journal, codec=self._codec()))
        lane = self._lane()
        with ExitStack() as ends:
            ends.callback(self._leave, lane)
            self._begun = lane.position
            while True:
                try:
                    self._through(lane)
                except AbortedError as aborted:
                    lane.back(aborted.refused)
                else:
                    break
            self._save(self._journal.at(len(self._line), lane.tally(), done=True))
        return self._so_far(len(self._line), lane.tally())

    def _codec(self) -> str:
        """How the records are compressed: as the user says, or as before, or by the first of them."""
        known = self._journal.codec if self._of._compression == "auto" else self._of._compression
        if known or not len(self._line):
            return known or "none"
        ahead = self._ahead(0)
        try:
            return codec_for(ahead.read(self._line.first(SAMPLE)))
        finally:
            ahead.close()

    def _lane(self) -> ProducerLane:
        of, journal = self._of, self._journal
        limits: Any = {"compression": journal.codec, "queue_bytes": of._queue_bytes, "most": self._most}
        if not of._transactional:
            return ProducerLane(of._to, Acks(journal.position, Tally.of(journal.tally), self._where), **limits)
        lane = TransactionLane(of._to, self._where, name_of(journal.run), opened=journal.opened, **limits)
        self._save(replace(journal, opened=True))
        return lane

    def _ahead(self, number: int) -> ReadAhead:
        of = self._of
        how: Any = {"writes": of._writes, "map": of._map, "claim": of._claim, "where": of._main.where}
        return ReadAhead(of._reading, self._line, number, of._readers, **how)

    def _through(self, lane: ProducerLane) -> None:
        """Send what is left."""
        of, turns, ahead = self._of, self._journal.partitions, self._ahead(lane.position)
        number, by_key = lane.position, of._by == "key"
        due = time.monotonic() + of._every
        tell_at = 0.0
        try:
            while (piece := ahead.take(max(0.0, due - time.monotonic()))) is not None:
                for item in piece:
                    keyed = by_key and isinstance(item, Written) and item.key is not None
                    lane.take(number, item, -1 if keyed else number % turns)
                    number += 1
                    now = time.monotonic()
                    if now >= due:
                        self._keep(lane, number)
                        due = time.monotonic() + of._every
                    if now >= tell_at:
                        self._tell(self._so_far(lane.position, lane.tally()))
                        tell_at = now + TELL_SECONDS
                if time.monotonic() >= due:  # the source is slow
                    self._keep(lane, number)
                    due = time.monotonic() + of._every
            lane.finish(number)
            self._tell(self._so_far(lane.position, lane.tally()))
        finally:
            ahead.close()

    def _keep(self, lane: ProducerLane, number: int) -> None:
        lane.keep(number)
        self._save(self._journal.at(lane.position, lane.tally()))

    def _leave(self, lane: ProducerLane) -> None:
        """However it ends, the journal says how far it came."""
        lane.close()
        if not self._journal.done and not self._of._transactional:
            self._save(self._journal.at(lane.position, lane.tally()))

    def _save(self, journal: Journal) -> None:
        self._journal = journal
        if self._path is not None:
            save(self._path, journal)

    def _where(self, number: int) -> str:
        return self._of._main.where(*self._line.at(number))

    def _so_far(self, position: int, tally: Tally) -> Produced:
        return Produced(len(self._line), self._begun, position, tally, time.monotonic() - self._begun_at)


def _topic_at(to: Connection) -> tuple[int, str, int | None]:
    """A topic's partitions, its id ("" where brokers have none) and largest record in bytes (None: not known).

    Raises what `Topics` does; SourceNotFoundError says how a topic is made.
    """
    with Cluster(to) as cluster:
        try:
            count = len(cluster.partitions())
        except SourceNotFoundError as error:
            msg = f"{error}; `dali-feed topic create kafka://{to.servers}/{to.topic}` makes one"
            raise SourceNotFoundError(msg) from None
        most = cluster.settings()[0].get("max.message.bytes", "")
        topic_id = (cluster.topic_id() or "") if cluster.has_controller() else ""
    return count, topic_id, int(most) if most.isdecimal() else None
