"""A bounded source into a topic, from the first record that is not known to be there.

The law: the position is the first record that is not settled, and a run goes on there. The journal keeps it: it is
whole or it is the one before, whatever dies when, and one process at a time has it. In a transactional run the broker
keeps it: it is committed in the same transaction as the records before it, as the offset of a consumer group of the
run's own. So whoever goes on reads it there, in one question, and no record is in the topic twice or not at all for
those who read what is committed (isolation.level=read_committed, librdkafka's default and Java's option). The offset is
kept at the topic's partition 0, for it must be that of a partition that there is; its metadata is the tally. Brokers
forget offsets of a group after offsets.retention.minutes, 7 days unless set: that is noticed.

The calling thread sends, hears what became of records, and has the position.
"""

from __future__ import annotations

import contextlib
import copy
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from dali_feed.bad_records import Tally
from dali_feed.errors import (
    ConfigError,
    DaliFeedError,
    DataLostError,
    ProduceError,
    SourceChangedError,
    SourceNotFoundError,
    StateError,
)
from dali_feed.external_sources.kafka.ahead import Numbered, made_ahead
from dali_feed.external_sources.kafka.client import consumer
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.sender import SLICE, AbortedError, Outcome, Sender, is_packed
from dali_feed.external_sources.kafka.writes import Writing, Written
from dali_feed.records.slabs import SlabPool
from dali_feed.storage.durable import locked, sync_folder, write_whole

SAMPLE = 16  # records by which the codec of a run is chosen
VERSION = 1  # of a journal
METADATA = 3500  # letters: brokers take 4,096
TELL_SECONDS = 0.1
PAUSE = "nothing has come"  # in the place of records

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


class Acks:
    """What became of the records of a run, in the order of their numbers. Used by one thread.

    The mark passes a record once it was delivered, refused for good, or found not to be there, and all before it were.
    So a run that goes on at the mark loses none. Counts are of what lies before the mark, so they are those of one run,
    however often it was killed.

    mark   the first record that is not settled
    where  coordinates of a record by its number
    """

    def __init__(self, mark: int, tally: Tally, where: Callable[[int], str]) -> None:
        self.mark, self.tally = mark, tally
        self._where = where
        self._ended: dict[int, int | str | None] = {}

    def end(self, number: int, outcome: int | str | None) -> None:
        """It was delivered (its payload's bytes), refused (the reason), or is not there (None). Each number once."""
        ended, tally = self._ended, self.tally
        ended[number] = outcome
        while self.mark in ended:
            outcome = ended.pop(self.mark)
            if outcome is None:
                tally.absent += 1
            elif isinstance(outcome, str):
                tally.fail(outcome, self._where(self.mark))
            else:
                tally.records += 1
                tally.size += outcome
            self.mark += 1


@dataclass(frozen=True, slots=True)
class Journal:
    """A run.

    source      how the source is called, and the fingerprint of its snapshot
    pin         of the snapshot, where it has one
    topic       name, id ("" where brokers have none) and partitions of where the records go
    options     what decides what is written there
    position    the first record that is not known to be there
    tally       what became of those before it
    run         the run's own name
    codec       how its records are compressed; "" where that is not decided yet
    opened      whether the broker has been asked to keep the position (transactional)
    done        whether all of it is there
    """

    source: str
    fingerprint: str
    pin: Mapping[str, Any] | None
    topic: str
    topic_id: str
    partitions: int
    options: Mapping[str, Any]
    position: int = 0
    tally: Mapping[str, Any] = field(default_factory=lambda: Tally().to_json())
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    codec: str = ""
    opened: bool = False
    done: bool = False

    def resumed(self, wanted: Journal, path: str) -> Journal:
        """This one, where `wanted` would be the same run.

        SourceChangedError where the source has other records, or the topic was made anew; StateError, with every
        difference, of another topic or other options.
        """
        cure = "give the same, or another journal= to start from the beginning"
        if self.fingerprint != wanted.fingerprint:
            raise SourceChangedError(
                f"{path}: a run must continue with the source that it began with; the journal is of "
                f"{self.source}, fingerprint {self.fingerprint}; found {wanted.source}, {wanted.fingerprint}; "
                f"{cure}"
            )
        known = self.topic == wanted.topic and "" not in (self.topic_id, wanted.topic_id)
        if known and self.topic_id != wanted.topic_id:
            raise SourceChangedError(
                f"{path}: a run must continue in the topic that it began with; {self.topic} had the id "
                f"{self.topic_id}, found {wanted.topic_id}: it was deleted and made again; remove the journal to "
                "start from the beginning"
            )
        mine, its = {"topic": self.topic, **self.options}, {"topic": wanted.topic, **wanted.options}
        odd = [f"{name}: {mine.get(name)!r}, found {its.get(name)!r}" for name in its if mine.get(name) != its[name]]
        if odd:
            msg = f"{path}: a run must continue with the options that it began with; {'; '.join(odd)}; {cure}"
            raise StateError(msg)
        return self


_KINDS: dict[str, Any] = {"options": dict, "pin": dict | None, "opened": bool, "done": bool} | dict.fromkeys(
    ("source", "fingerprint", "topic", "topic_id", "run", "codec"), str
)


def load_journal(path: Path) -> Journal | None:
    """The journal in a file; None where there is none. Raises StateError where it is none."""
    with _on_disk(path):
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        fields = json.loads(text)
        version, partitions, position = fields.pop("version"), int(fields["partitions"]), int(fields["position"])
        journal = Journal(**fields | {"partitions": partitions, "position": position})
        Tally.of(journal.tally)
        odd = [name for name, kind in _KINDS.items() if not isinstance(fields[name], kind)]
        fits = version == VERSION and partitions > 0 and position >= 0
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        msg = f"{path}: a journal must be what a run wrote; {type(error).__name__}: {error}; give another journal="
        raise StateError(msg) from error
    if odd or not fits:
        found = f"found another kind of {', '.join(odd)}" if odd else f"found version {version!r}"
        raise StateError(f"{path}: a journal of version {VERSION} is needed; {found}; give another journal=")
    return journal


def save_journal(path: Path, journal: Journal) -> None:
    """Write it; when this returns it outlasts a power cut."""
    with _on_disk(path):
        write_whole(path, json.dumps({"version": VERSION, **asdict(journal)}).encode())
        sync_folder(path.parent)


def journal_lock(path: Path) -> contextlib.ExitStack:
    """What has the journal to ourselves until it is left; the lock is a file beside it, and goes with the process.

    ConfigError where another process has it, or the folder cannot be written.
    """
    stack = contextlib.ExitStack()
    try:
        with _on_disk(path):
            stack.enter_context(locked(path.with_name(f"{path.name}.lock"), 0.0))
    except TimeoutError as error:
        raise ConfigError(
            f"{path}: one process at a time may use a journal; another process uses this one; wait for it, or stop it"
        ) from error
    return stack


@contextlib.contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except TimeoutError:  # which is an OSError, and ours
        raise
    except OSError as error:
        rule = "a journal must be a file that can be read and written, in a folder that can be"
        raise ConfigError(f"{path}: {rule}, or a killed run could not continue; found: {error.strerror}") from error


def _metadata(tally: Tally) -> str:
    """The tally in few letters: places of failures are left out first, then their reasons."""
    full = tally.to_json()
    if len(text := json.dumps(full)) <= METADATA:
        return text
    full["failures"] = {reason[:100]: [count, []] for reason, (count, _) in full["failures"].items()}
    if len(text := json.dumps(full)) <= METADATA:
        return text
    return json.dumps(full | {"failures": {"several reasons": [tally.failed, []]}})


@dataclass
class ProduceRun:
    """One process's part of a run, with its journal, where there is a `path`; `Producer` documents the values."""

    to: Connection
    writing: Writing
    readers: int
    every: float
    by: str
    compression: str
    queue_bytes: int
    transactional: str | None
    path: Path | None
    tell: Tell

    def __post_init__(self) -> None:
        self._begun_at = time.monotonic()
        topic, path, writing = self.to.topic, self.path, self.writing
        partitions, topic_id, self._largest = topic_at(self.to)
        if writing.claim is not None:
            writing.claim.check(topic, self._largest)
        known = None if path is None else load_journal(path)
        snapshot = writing.source.snapshot(None if known is None else known.pin)
        fresh = Journal(
            source=snapshot.source,
            fingerprint=snapshot.fingerprint,
            pin=None if snapshot.pin is None else dict(snapshot.pin),
            topic=topic,
            topic_id=topic_id,
            partitions=partitions,
            options=({} if path is None else writing.to_json())  # without a journal nobody compares them
            | {"by": self.by, "transactional": self.transactional},
        )
        self._journal = fresh if known is None else known.resumed(fresh, str(path))
        if partitions < self._journal.partitions:
            raise SourceChangedError(
                f"{topic}: the run began with {self._journal.partitions} partitions, found {partitions}: the topic "
                "was deleted and made again; remove the journal to start from the beginning"
            )
        self._line = Numbered.of(snapshot)
        self._begun = position = self._journal.position
        if position > len(self._line):
            raise StateError(f"{path}: its position must lie in 0..{len(self._line)}; found {position}")
        self._acks = Acks(position, Tally.of(self._journal.tally), self._where)
        self._committed = position, Tally()  # of a transactional run: where the last transaction ended
        self._left_out: dict[int, str] = {}  # by number, why records that spoilt a transaction are not sent again
        self._group = f"dali_feed-produce-{self._journal.run}"  # it is never joined
        self._consumer: Consumer | None = None  # of the group, whose offset is a transactional run's position
        self._sender: Sender
        self._cluster: Cluster

    def whole(self) -> Produced:
        """All that is left."""
        if self._journal.done:
            return self._so_far()
        self._save(codec=self._codec())
        self._sender = Sender(
            self.to,
            self._settle,
            compression=self._journal.codec,
            queue_bytes=self.queue_bytes,
            largest=self._largest,
            transactional_id=self._group if self.transactional == "auto" else self.transactional,
        )
        with contextlib.ExitStack() as ends:
            ends.callback(self._leave)
            self._cluster = ends.enter_context(Cluster(self.to))
            if self.transactional is not None:
                self._consumer = consumer(self.to, self._sender.trouble, settings={"group.id": self._group})
                ends.callback(self._consumer.close)
                self._take_up(self._consumer)
            self._begun = self._position
            while True:
                try:
                    self._send_all()
                    break
                except AbortedError as aborted:  # those that were refused are not sent again
                    self._left_out |= aborted.refused
                    self._sender.back()
                    self._stand()
            self._save(done=True)
        return self._so_far()

    def _check_topic(self) -> None:
        """Raise SourceChangedError where the topic is another one by now: what was acknowledged may have gone with it.

        Nothing is heard of records meanwhile, so those that are settled were in the topic that there is.
        """
        known, to = self._journal.topic_id, self.to
        if known and known != (now := self._cluster.topic_id()):
            found = "it is gone" if now is None else f"found {now}: it was deleted and made again"
            raise SourceChangedError(
                f"{to.topic}: a run must end in the topic that it began with, whose id is {known}; {found}; "
                f"begin again{'' if self.path is None else ' with another journal='}"
            )

    def _codec(self) -> str:
        """How the records are compressed: as the user says, or as before, or by the first of them.

        None where most of those are packed already, else lz4.
        """
        known = self._journal.codec if self.compression == "auto" else self.compression
        if known or not len(self._line):
            return known or "none"
        lease = SlabPool().lease()
        with contextlib.closing(self.writing.reader(threading.Event())) as reader:
            block = reader.read(self._line.run(0, SAMPLE), lease)
            items = self.writing.items(block, range(len(block.ids)))
            packed = [is_packed(item.value or b"") for item in items if isinstance(item, Written)]
        lease.release()
        return "none" if 2 * sum(packed) > len(packed) else "lz4"

    def _take_up(self, group: Consumer) -> None:
        """Stand where the last transaction of the run ended; the broker keeps that from now on."""
        to, known = self.to, self._stored(group)
        if known is None and self._journal.opened:
            raise DataLostError(
                f"{to.topic}: the position of the run {self._group} must be at {to.servers}; there is "
                "none: brokers forget it after offsets.retention.minutes; look how many of its records are "
                "in the topic, and produce the rest, or all of it into a new topic, with another journal="
            )
        self._committed = known or (0, Tally())
        self._stand()
        if known is None:
            self._begin(group)
        self._save(opened=True)

    def _begin(self, group: Consumer) -> None:
        """Have the broker keep position 0, and see that it does: from then on none is a position forgotten."""
        while True:
            try:
                self._commit(0)
                break
            except AbortedError:
                self._sender.back()
        if self._stored(group) is None:
            to = self.to
            raise ProduceError(
                f"{to.topic}: transactions need a broker that stores their offsets; "
                f"{to.servers} did not (the embedded broker does not); leave transactional_id= out"
            )

    def _stored(self, group: Consumer) -> tuple[int, Tally] | None:
        """The position at the broker, and what became of the records before it; None where it has none."""
        topic, places = self.to.topic, list[TopicPartition]()
        self._sender.until(lambda: places.extend(group.committed([TopicPartition(topic, 0)], SLICE)))
        at = places[-1]
        if at.error is not None:
            raise self._sender.ended(at.error)
        if at.offset < 0:
            return None
        try:
            return at.offset, Tally.of(json.loads(at.metadata or ""))
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{topic}: the group {self._group} must be used by this run only; found metadata {at.metadata!r}"
            raise ConfigError(msg) from error

    def _commit(self, position: int) -> None:
        """End a transaction, and with it set the position."""
        tally = self._acks.tally
        offset = TopicPartition(self.to.topic, 0, position, metadata=_metadata(tally))
        self._sender.commit([offset], self._consumer)
        self._committed = position, copy.deepcopy(tally)

    def _send_all(self) -> None:
        """Send what is left."""
        sender, turns, number, left_out = self._sender, self._journal.partitions, self._position, self._left_out
        due, tell_at = time.monotonic() + self.every, 0.0
        with contextlib.closing(made_ahead(self.writing, self.readers, self._line, number)) as ahead:
            for items in ahead:
                for item in items or [PAUSE]:
                    if isinstance(item, Written) and number not in left_out:
                        if self._consumer is not None:
                            sender.begin()
                        by_key = self.by == "key" and item.key is not None
                        sender.send(item, -1 if by_key else number % turns, number)
                    elif item is not PAUSE:
                        self._acks.end(number, left_out[number] if isinstance(item, Written) else item)
                    number += item is not PAUSE
                    now = time.monotonic()
                    if now >= due:
                        self._keep(number)
                        due = time.monotonic() + self.every
                    if now >= tell_at:
                        self.tell(self._so_far())
                        tell_at = now + TELL_SECONDS
            if self._consumer is None:
                sender.flush()
            self._keep(number)
            self.tell(self._so_far())

    def _keep(self, number: int) -> None:
        """Keep the position; all records before `number` were handed over."""
        if self._consumer is None:
            self._sender.check()
        elif number > self._position:
            self._sender.flush()
            self._commit(number)
        self._check_topic()
        self._save()

    def _stand(self) -> None:
        """Where the last transaction ended."""
        position, tally = self._committed
        self._acks = Acks(position, copy.deepcopy(tally), self._where)

    def _settle(self, number: int, size: int, outcome: Outcome) -> None:
        if not isinstance(outcome, DaliFeedError):  # else it is not known to be there
            self._acks.end(number, outcome if isinstance(outcome, str) else size)

    @property
    def _position(self) -> int:
        """The first record that is not known to be in the topic."""
        return self._acks.mark if self._consumer is None else self._committed[0]

    def _leave(self) -> None:
        """However it ends, the journal says how far it came."""
        self._sender.close()
        if not self._journal.done and self._consumer is None:
            self._save()

    def _save(self, **more: Any) -> None:
        """Keep the journal, with where the run is."""
        where: Any = {"position": self._position, "tally": self._acks.tally.to_json(), **more}
        self._journal = replace(self._journal, **where)
        if self.path is not None:
            save_journal(self.path, self._journal)

    def _where(self, number: int) -> str:
        return self.writing.source.where(*self._line.at(number))

    def _so_far(self) -> Produced:
        seconds = time.monotonic() - self._begun_at
        return Produced(len(self._line), self._begun, self._position, self._acks.tally, seconds)


def topic_at(to: Connection) -> tuple[int, str, int | None]:
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
        return count, cluster.known_id(), int(most) if most.isdecimal() else None
