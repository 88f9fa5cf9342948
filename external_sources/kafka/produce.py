"""A run that produces: its records in one line, what each becomes, and the journal that says how far it is.

The laws: a record's number depends on the snapshot alone, so that a run which goes on at a number goes on with the
record that it would have come to; whoever reads, and how many of them, shows nowhere. The journal is whole or it is the
one before, whatever dies when; and one process at a time has it. In a transactional run the broker knows how far, and
the journal knows under which name it does.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dali_feed.bad_records import place_of
from dali_feed.columns import Number
from dali_feed.columns.request import open_reader
from dali_feed.errors import (
    ConfigError,
    DaliFeedError,
    FormatError,
    MissingPackageError,
    SourceChangedError,
    StateError,
)
from dali_feed.external_sources.kafka.claims import Claim
from dali_feed.external_sources.kafka.writes import TOMBSTONE, WHERE, Writes, Written
from dali_feed.locks import locked
from dali_feed.records.extents import Extents, Int64s, unpack_ids
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import LABEL, Block, Reader, Snapshot, Source, unpack_id
from dali_feed.records.tally import Tally
from dali_feed.storage.durable import sync_folder, write_whole

__all__ = ["Item", "Journal", "Numbered", "ReadAhead", "Reading", "journal_lock", "load", "save"]

VERSION = 1


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
    tally: Mapping[str, Any] = field(default_factory=lambda: Tally().told())
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    codec: str = ""
    opened: bool = False
    done: bool = False

    def resumed(self, wanted: Journal, path: str) -> Journal:
        """This one, where `wanted` would be the same run.

        Raises:
            SourceChangedError: the source has other records, or the topic was made anew.
            StateError: another topic, or other options; every difference is told.
        """
        cure = "give the same, or another journal= to start from the beginning"
        if self.fingerprint != wanted.fingerprint:
            msg = (
                f"{path}: a run must continue with the source that it began with; the journal is of "
                f"{self.source}, fingerprint {self.fingerprint}; found {wanted.source}, {wanted.fingerprint}; "
                f"{cure}"
            )
            raise SourceChangedError(msg)
        known = self.topic == wanted.topic and "" not in (self.topic_id, wanted.topic_id)
        if known and self.topic_id != wanted.topic_id:
            msg = (
                f"{path}: a run must continue in the topic that it began with; {self.topic} had the id "
                f"{self.topic_id}, found {wanted.topic_id}: it was deleted and made again; remove the journal to "
                "start from the beginning"
            )
            raise SourceChangedError(msg)
        mine, its = {"topic": self.topic, **self.options}, {"topic": wanted.topic, **wanted.options}
        odd = [f"{name}: {mine.get(name)!r}, found {its.get(name)!r}" for name in its if mine.get(name) != its[name]]
        if odd:
            msg = f"{path}: a run must continue with the options that it began with; {'; '.join(odd)}; {cure}"
            raise StateError(msg)
        return self

    def at(self, position: int, tally: Tally, *, done: bool = False) -> Journal:
        """The run, so far."""
        return replace(self, position=position, tally=tally.told(), done=done)


def load(path: Path) -> Journal | None:
    """The journal in a file; None where there is none. Raises StateError where it is none."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        msg = f"{path}: a journal must be a file that can be read and written; found: {error.strerror}"
        raise ConfigError(msg) from error
    try:
        fields = json.loads(text)
        version = fields.pop("version")
        found = Journal(**fields)
        Tally.of(found.tally)
        fits = version == VERSION and isinstance(found.position, int) and found.position >= 0
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"{path}: a journal must be what a run wrote; {type(error).__name__}: {error}; give another journal="
        raise StateError(msg) from error
    if not fits:
        msg = f"{path}: a journal of version {VERSION} is needed; found version {version!r}; give another journal="
        raise StateError(msg)
    return found


def save(path: Path, journal: Journal) -> None:
    """Write it; when this returns it outlasts a power cut."""
    try:
        write_whole(path, json.dumps({"version": VERSION, **asdict(journal)}).encode())
        sync_folder(path.parent)
    except OSError as error:
        msg = f"{path}: the journal must be written, or a killed run could not continue; found: {error.strerror}"
        raise ConfigError(msg) from error


@contextlib.contextmanager
def journal_lock(path: Path) -> Iterator[None]:
    """Have the journal to ourselves; the lock is a file beside it, and goes with the process, however that ends.

    Raises:
        ConfigError: another process has it, or the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(path.with_name(f"{path.name}.lock"), 0.0))
        except TimeoutError as error:
            msg = (
                f"{path}: one process at a time may use a journal; another process uses this one; wait for it, or "
                "stop it"
            )
            raise ConfigError(msg) from error
        except OSError as error:
            msg = f"{path}: a journal must lie in a folder that can be written; found: {error.strerror}"
            raise ConfigError(msg) from error
        yield


PIECE_BYTES = 8 << 20
MOST = 8192  # records of a piece


@dataclass(frozen=True, slots=True)
class Numbered:
    """The line, as pieces that are read in one go each.

    pieces  runs of the snapshot's numbers, in order
    before  records in front of each piece, and at the end all of them, int64 (pieces + 1,)
    """

    snapshot: Snapshot
    pieces: Extents
    before: Int64s

    @classmethod
    def of(cls, snapshot: Snapshot) -> Numbered:
        """One partition after the other; of a topic the partitions in turn, an extent of each."""
        if snapshot.interleaved:
            size = snapshot.extent
        else:
            size = min(MOST, max(1, PIECE_BYTES // snapshot.record_bytes))
        runs: list[Int64s] = []
        for partition, (start, stop) in enumerate(zip(*(each.tolist() for each in snapshot.numbers), strict=True)):
            first = np.arange(start, stop, size, dtype=np.int64)
            turn = np.arange(len(first)) if snapshot.interleaved else np.full(len(first), partition)
            runs.append(np.stack([turn, np.full(len(first), partition), first, np.minimum(first + size, stop)]))
        whole = np.concatenate(runs, axis=1)
        turn, partition_of, start_of, stop_of = whole[:, np.lexsort((whole[2], whole[1], whole[0]))]
        before = np.concatenate([[0], np.cumsum(stop_of - start_of)]).astype(np.int64)
        return cls(snapshot, Extents(partition_of, start_of, stop_of), before)

    def __len__(self) -> int:
        return int(self.before[-1])

    def after(self, number: int) -> Iterator[tuple[int, Extents]]:
        """(first number, positions) of each piece, from a record's number on."""
        piece = int(np.searchsorted(self.before, number, side="right")) - 1
        for k in range(piece, len(self.pieces)):
            first = max(number, int(self.before[k]))
            start = int(self.pieces.start[k]) + first - int(self.before[k])
            numbers = Extents.one(int(self.pieces.partition[k]), start, int(self.pieces.stop[k]))
            yield first, self.snapshot.located(numbers)

    def first(self, count: int) -> Extents:
        """The first records, as many as lie in the first piece and at most `count`."""
        start, stop = int(self.pieces.start[0]), int(self.pieces.stop[0])
        numbers = Extents.one(int(self.pieces.partition[0]), start, min(stop, start + count))
        return self.snapshot.located(numbers)

    def at(self, number: int) -> tuple[int, int]:
        """(partition, position) of a record."""
        _, extents = next(self.after(number))
        partition, position = unpack_ids(extents[:1].ids()[:1])
        return int(partition[0]), int(position[0])


Item = Written | str | None  # a record, why there is none, or that there is none to be had


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read of a source.

    payload  the member that is the payload; None: none is wanted
    fields   what each field is made from
    members  what is read beside
    """

    source: Source
    payload: str | None
    fields: Mapping[str, str]
    members: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All of it, each once."""
        own = () if self.payload is None else (self.payload,)
        return tuple(dict.fromkeys((*own, *self.fields.values(), *self.members)))

    @property
    def optional(self) -> set[str]:
        """What a record may lack without being a bad one."""
        return set(self.members) - {self.payload, self.fields.get(LABEL)}


class ReadAhead:
    """Reads a line from a number on, some pieces ahead, in threads; an item is made of each record there too.

    Args:
        reading: what is read.
        line: all records, of which `number` is the first that is wanted.
        readers: how many threads.
        writes, map, claim: of the run.
        where: a record's coordinates.
    """

    def __init__(
        self,
        reading: Reading,
        line: Numbered,
        number: int,
        readers: int,
        *,
        writes: Writes,
        map: Callable[[bytes], bytes] | None,  # noqa: A002  what users call it
        claim: Claim | None,
        where: Callable[[int, int], str],
    ) -> None:
        self._reading, self._writes, self._map, self._claim = reading, writes, map, claim
        self._where = where if WHERE in writes.members else None
        self._pool = SlabPool()
        self._todo = line.after(number) if number < len(line) else iter(())
        self._stop = threading.Event()
        self._own = threading.local()
        self._lock = threading.Lock()
        self._opened: list[Reader] = []
        self._threads = ThreadPoolExecutor(readers, "dali-feed-produce")
        self._under_way: deque[Future[list[Item]]] = deque()
        self._most = readers + 1

    def take(self, timeout: float) -> list[Item] | None:
        """The items of the next piece; none of them where it does not come in time, and None at the end.

        Raises what a reader raises.
        """
        while len(self._under_way) < self._most and (found := next(self._todo, None)) is not None:
            self._under_way.append(self._threads.submit(self.read, found[1]))
        if not self._under_way:
            return None
        if not wait([self._under_way[0]], timeout).done:
            return []
        return self._under_way.popleft().result()

    def close(self) -> None:
        """End the threads; readers see the stop event."""
        self._stop.set()
        for future in self._under_way:
            future.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for reader in self._opened:
            reader.close()

    def _reader(self) -> Reader:
        """This thread's."""
        mine: Reader | None = getattr(self._own, "reader", None)
        if mine is None:
            of = self._reading
            mine = self._own.reader = open_reader(of.source, of.names, self._stop, of.optional)
            with self._lock:
                self._opened.append(mine)
        return mine

    def read(self, extents: Extents) -> list[Item]:
        """The items of these records, read by this thread."""
        lease = self._pool.lease()
        try:
            block = self._reader().read(extents, lease)
            absent = set(block.absent_rows())
            return [None if row in absent else self._elsewhere(self._row(block, row)) for row in range(len(block.ids))]
        finally:
            lease.release()

    def _elsewhere(self, item: Item) -> Item:
        """The record as it is sent: without a value that is stored elsewhere."""
        if self._claim is None or not isinstance(item, Written) or not (claim := self._claim.stored(item.value)):
            return item
        return Written(b"", item.key, [*item.headers, *claim], len(item.value or b""))

    def _row(self, block: Block, row: int) -> Item:
        if row in block.faults:
            return block.faults[row].reason
        of = self._reading
        fields = {name: _value(block, member, row) for name, member in of.fields.items()}
        payload = b"" if of.payload is None else _value(block, of.payload, row)
        gone = payload is None and TOMBSTONE in fields
        if payload is None and not gone:
            return f"the record has no member {of.payload!r}" + (" (a tombstone)" if of.payload == "value" else "")
        stage: Any = self._map
        try:
            if LABEL in fields:
                fields[LABEL] = _label(fields[LABEL])
            value = b"" if gone else bytes(payload)
            if self._map is not None and not gone:
                value = self._map(value)
            stage = self._writes.record
            members = {name: _value(block, name, row) for name in of.members}
            if self._where is not None:
                members[WHERE] = self._where(*unpack_id(int(block.ids[row])))
            made = self._writes.record(value, fields, members)
            if not isinstance(made.value, bytes) and not (gone and made.value is None):
                msg = f"a value must be bytes; found {type(made.value).__name__}"
                raise TypeError(msg)
        except (ConfigError, MissingPackageError, MemoryError):
            raise
        except (DaliFeedError, FormatError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  whatever a user's function raises is about this record
            place = place_of(error, stage)
            name = "map" if stage is self._map else "writes"
            return f"{name}: {type(error).__name__}: {error}{f', at {place}' if place else ''}"
        return made


def _value(block: Block, name: str, row: int) -> Any:
    value = block.values[name][row]
    return value.item() if isinstance(value, np.generic) else value


def _label(value: Any) -> int:
    """The number of a class. FormatError where it is none."""
    faults: dict[int, str] = {}
    number = Number("label").read([value], faults)
    if value is None or faults:
        msg = f"label: {faults[0] if value is not None else 'a decimal number is needed; the record has none'}"
        raise FormatError(msg)
    return int(number[0])
