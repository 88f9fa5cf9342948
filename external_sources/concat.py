"""Several sources as one: the partitions of all, one source after another."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dali_feed.checks import flag, whole
from dali_feed.columns.column import Number
from dali_feed.columns.request import Request, lacks, open_reader
from dali_feed.errors import ClosedError, ConfigError, StateError
from dali_feed.records.extents import Extents, Present
from dali_feed.records.gauges import KafkaStats, StorageStats, storage_of, summed
from dali_feed.records.metrics import merged
from dali_feed.records.pieces import join, take
from dali_feed.records.source import (
    Block,
    Fault,
    Int64s,
    Lease,
    Member,
    Mixture,
    Original,
    Reader,
    Snapshot,
    Source,
    Stop,
)

# Names that each source has its own member for: of a column of the presets, and of what holds a member's image.
_PRESET, _IMAGE = "preset:", "image:"


# One reader over the readers of several sources: each opened when it is first asked, all filling the same lease.


def base_of(counts: Sequence[int]) -> Int64s:
    """The first partition of each source here, int64, and the end of the last."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """What is read of one source: for each name here the one that it has there."""

    source: Source
    names: Mapping[str, str]
    optional: frozenset[str]
    kind: str  # of the source made of it, for messages

    def check(self) -> None:
        """Raise ConfigError that names the source where its records cannot have a name."""
        with self._blamed():
            Request(self.source, self.names.values(), self.optional)

    def reader(self, stop: threading.Event | None) -> Reader:
        """One of it. Raises as `check` does."""
        with self._blamed():
            return open_reader(self.source, self.names.values(), stop, self.optional)

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            rule = "all sources must have the members that the columns name"
            msg = f"{self.kind}: {rule}; {self.source!r} does not: {error}"
            raise ConfigError(msg) from error


class SeveralReader(Reader):
    """Records of several sources whose partitions stand one after another from `base` on."""

    def __init__(self, title: str, parts: Sequence[_Part], base: Int64s, stop: threading.Event | None) -> None:
        self._title, self._parts, self._base, self._stop = title, parts, base, stop
        self._readers: dict[int, Reader] = {}
        self._closed = False

    def read(self, extents: Extents, lease: Lease) -> Block:
        """All records of `extents`, in their order; see `dali_feed.records.source.Reader`."""
        if self._closed:
            msg = f"{self._title}: this reader is closed; make another one"
            raise ClosedError(msg)
        which = np.searchsorted(self._base, extents.partition, side="right") - 1
        if ((which < 0) | (which >= len(self._parts))).any():
            msg = f"{self._title}: extents must lie inside the snapshot; found one that does not"
            raise ConfigError(msg)
        lengths = extents.lengths
        ends = np.cumsum(lengths)
        blocks, places = list[tuple[_Part, Block]](), list[Int64s]()
        for k in np.unique(which).tolist():
            mine = which == k
            its = extents[mine]
            inner = Extents(its.partition - self._base[k], its.start, its.stop)
            blocks.append((self._parts[k], self._reader(k).read(inner, lease)))
            places.append(_rows(ends[mine], lengths[mine]))
        return _joined(extents.ids(), blocks, places, lease)

    def close(self) -> None:
        """Close all that were opened. Safe to call twice."""
        self._closed = True
        for reader in self._readers.values():
            reader.close()

    @property
    def trouble(self) -> str:  # type: ignore[override]  # read only here
        """The readers', where they have any."""
        return "; ".join(filter(None, (reader.trouble for reader in list(self._readers.values()))))

    def gauges(self) -> KafkaStats | None:
        """What readers of topics have measured; partitions have their numbers here."""
        parts = []
        for k, reader in list(self._readers.items()):
            stats = summed([reader])
            if stats is not None:
                first = int(self._base[k])
                placed = tuple(replace(each, partition=each.partition + first) for each in stats.partitions)
                parts.append(replace(stats, partitions=placed))
        topics = ", ".join(dict.fromkeys(part.topic for part in parts))
        return replace(merged(parts), topic=topics) if parts else None

    def storage(self) -> tuple[StorageStats, ...]:
        """What readers of files have measured."""
        return storage_of(list(self._readers.values()))

    def rest(self) -> None:
        """Let the readers look after themselves that have to."""
        for reader in self._readers.values():
            reader.rest()

    def _reader(self, k: int) -> Reader:
        reader = self._readers.get(k)
        if reader is None:
            reader = self._readers[k] = self._parts[k].reader(self._stop)
        return reader


def _rows(ends: Int64s, lengths: Int64s) -> Int64s:
    """The rows of the runs that end there, int64."""
    first = np.cumsum(lengths) - lengths
    return np.asarray(np.arange(int(lengths.sum())) + np.repeat(ends - lengths - first, lengths), np.int64)


def _joined(ids: Int64s, blocks: list[tuple[_Part, Block]], places: list[Int64s], lease: Lease) -> Block:
    """One block of those of several sources, whose rows go to these places of it."""
    if not blocks:
        return Block(ids, {}, lease)
    order = np.argsort(np.concatenate(places))
    ordered = np.array_equal(order, np.arange(len(order)))
    columns = {}
    for name in blocks[0][0].names:
        column = join([block.values[part.names[name]] for part, block in blocks])
        columns[name] = column if ordered else take(column, order)
    faults: dict[int, Fault] = {}
    absent = np.zeros(len(ids), bool)
    for (_, block), rows in zip(blocks, places, strict=True):
        faults |= {int(rows[row]): fault for row, fault in block.faults.items()}
        if block.absent is not None:
            absent[rows] = block.absent
    return Block(ids, columns, lease, faults, absent if absent.any() else None)


class Concat(Source):
    """The records of several bounded sources, those of each after those of the one before, as one source.

    sources  two or more: topics, shards, files, tables, in any mixture; one may stand there twice. All must have
             records when the first snapshot is taken

    Each source keeps its names and coordinates; its partitions get the numbers after those of the sources before it, so
    ids stay the same from run to run as long as the sources and their order do. Without `columns=` a batch holds what
    all of them have in the same place: images, then labels. A shuffle mixes the records of all: sample by sample where
    single records of all are cheap to read, and else by extents as each source wants them. A state holds what all
    sources' snapshots need to be taken again.

    Raises ConfigError for what is no bounded source, or fewer than one.
    """

    any_names = True

    def __init__(self, sources: Sequence[Source]) -> None:
        parts = list(sources) if isinstance(sources, Sequence) and not isinstance(sources, str) else [sources]
        name = type(self).__name__
        if not parts:
            msg = f"{name}: sources must be a sequence of sources; found an empty one"
            raise ConfigError(msg)
        for each in parts:
            if not isinstance(each, Source):
                msg = f"{name}: sources must be bounded sources of dali_feed.external_sources; found {each!r}"
                raise ConfigError(msg)
        self._sources: tuple[Source, ...] = tuple(parts)
        units = {source.unit for source in self._sources}
        self.unit = units.pop() if len(units) == 1 else Source.unit
        self._base: Int64s | None = None  # of the snapshot that was taken last

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._sources))})"

    def __getstate__(self) -> dict[str, Any]:
        """Without what was looked at: another process, perhaps on another machine, looks for itself."""
        return self.__dict__ | {"_base": None}

    @property
    def sources(self) -> tuple[Source, ...]:
        """As they were given."""
        return self._sources

    @property
    def preset(self) -> Mapping[str, Any]:
        """What all sources have in the same place, by the names of the first: up to the shortest.

        Raises ConfigError that names two sources which have another kind of column there.
        """
        first, *others = (list(source.preset.items()) for source in self._sources)
        return {
            name: self._common(name, [column, *(its[1] for its in same)])
            for (name, column), *same in zip(first, *others, strict=False)
        }

    def _common(self, name: str, columns: Sequence[Any]) -> Any:
        """A column of the member that each source has for it: one of each where they differ."""
        members = {column.member for column in columns}
        kinds = [replace(column, member=name) for column in columns]
        if all(type(kind) is Number and np.dtype(kind.dtype).kind in "iu" for kind in kinds) and len(set(kinds)) > 1:
            kinds = [Number(name)] * len(kinds)
        for kind, column, source in zip(kinds, columns, self._sources, strict=True):
            if kind != kinds[0]:
                msg = (
                    f"{self!r}: the column {name!r} must be of one kind in all sources; {self._sources[0]!r} has"
                    f" {columns[0]!r}, {source!r} has {column!r}. Make them the same, or give columns="
                )
                raise ConfigError(msg)
        return replace(kinds[0], member=members.pop() if len(members) == 1 else _PRESET + name)

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """What all sources hold now, or, given the pin of an earlier snapshot, that again.

        Raises what the sources raise, and StateError for a pin of other sources.
        """
        return self._joined(self._looked_at(pin))

    def _looked_at(self, pin: Mapping[str, Any] | None = None) -> tuple[Snapshot, ...]:
        pins = self._pins(pin)
        parts = tuple(source.snapshot(its) for source, its in zip(self._sources, pins, strict=True))
        for part, source in zip(parts, self._sources, strict=True):
            self._check(part, source)
        self._base = base_of([len(part.starts) for part in parts])
        return parts

    def _check(self, part: Snapshot, source: Source) -> None:
        """Raise ConfigError where that cannot be a part."""
        if part.mix is not None:
            msg = f"Concat: a mixture has an order of its own and cannot be part of a Concat; found {source!r}"
            raise ConfigError(msg)

    def _joined(self, parts: tuple[Snapshot, ...]) -> Snapshot:
        starts, stops = (np.concatenate([getattr(part, name) for part in parts]) for name in ("starts", "stops"))
        records = [len(part) for part in parts]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part.fingerprint.encode() + b"\0")
        holes = sum(part.absent * part.positions for part in parts)
        return Snapshot(
            source=repr(self),
            names=tuple(name for part in parts for name in part.names),
            starts=starts,
            stops=stops,
            extent=max(part.extent for part in parts),
            record_bytes=self._record_bytes(parts),
            random_access=all(part.random_access for part in parts),
            interleaved=False,
            fingerprint=digest.hexdigest(),
            pin=_pinned(parts),
            present=_present(parts),
            absent=holes / max(1, int((stops - starts).sum())) if sum(records) else 0.0,
            parts=tuple(flat for part in parts for flat in self._flat(part)),
        )

    def _flat(self, part: Snapshot) -> tuple[Snapshot, ...]:
        """A Concat in a Concat is the sources that it is made of."""
        return part.parts or (part,)

    def _record_bytes(self, parts: tuple[Snapshot, ...]) -> int:
        records = [len(part) for part in parts]
        return max(1, round(sum(n * part.record_bytes for n, part in zip(records, parts, strict=True)) / sum(records)))

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        """As `named_reader`, of names none of which a record may lack."""
        return self.named_reader(members, (), stop)

    def named_reader(
        self, names: Sequence[str], optional: Collection[str], stop: threading.Event | None = None
    ) -> Reader:
        """A reader for one thread; it opens a source's when that is first asked for a record.

        Raises ConfigError that names the source whose records cannot have one.
        """
        parts = [self._part(source, names, optional) for source in self._sources]
        return SeveralReader(repr(self), parts, self._bases(), stop)

    def can_have(self, member: str) -> bool:
        """Whether records of all sources may have it, a name as columns have it.

        Raises ConfigError that names the source whose records cannot.
        """
        for source in self._sources:
            if source.known:  # others say so when they are read
                self._part(source, [member], ()).check()
        return True

    def image_of(self, member: str) -> str:
        """See `dali_feed.records.source.Records.image_of`: the member itself, where it is that of all sources."""
        names = [(source, self._member(source, member)) for source in self._sources]
        same = all(name == member == source.image_of(name) for source, name in names)
        return member if same else _IMAGE + member

    def lacks(self, member: str) -> str:
        """See `dali_feed.records.source.Records.lacks`: what all sources say, where it is the same."""
        said = {lacks(source, self._member(source, member)) for source in self._sources}
        return said.pop() if len(said) == 1 else ""

    def _part(self, source: Source, names: Sequence[str], optional: Collection[str]) -> _Part:
        """The names that a source has for these."""
        there = {name: self._member(source, name) for name in names}
        return _Part(source, there, frozenset(there[name] for name in optional), type(self).__name__)

    def _member(self, source: Source, name: str) -> str:
        """What a source calls that."""
        if name.startswith(_IMAGE):
            return source.image_of(self._member(source, name.removeprefix(_IMAGE)))
        if name.startswith(_PRESET) and (column := name.removeprefix(_PRESET)) in self.preset:
            its = list(source.preset.values())[list(self.preset).index(column)]
            return str(its.member)
        return name

    def where(self, partition: int, position: int) -> str:
        """As the source has it."""
        source, inner = self._of(partition)
        return source.where(inner, position)

    def original(self, partition: int, position: int) -> Original | None:
        """The record in full, where its source keeps more than its members; None elsewhere."""
        source, inner = self._of(partition)
        return source.original(inner, position)

    @property
    def originals(self) -> bool:
        """Whether any source gives records in full."""
        return any(source.originals for source in self._sources)

    def commit(self, positions: Int64s) -> None:
        """Publish the positions of each source that can."""
        base = self._bases()
        for k, source in enumerate(self._sources):
            source.commit(positions[base[k] : base[k + 1]])

    @property
    def commits(self) -> bool:
        """Whether any source publishes positions."""
        return any(source.commits for source in self._sources)

    def members(self) -> tuple[Member, ...]:
        """What all sources' records have: the members of the first that the others have too."""
        every = [source.members() for source in self._sources]
        out = []
        for member in every[0]:
            same = [next((each for each in its if each.name == member.name), None) for its in every]
            there = [each for each in same if each is not None]
            if len(there) == len(every):
                size = round(sum(each.bytes for each in there) / len(there))
                out.append(Member(member.name, min(each.share for each in there), size))
        return tuple(out)

    def _bases(self) -> Int64s:
        if self._base is None:
            return base_of([len(part.starts) for part in self._looked_at()])
        return self._base

    def _of(self, partition: int) -> tuple[Source, int]:
        base = self._bases()
        k = int(np.searchsorted(base, partition, side="right")) - 1
        return self._sources[k], partition - int(base[k])

    def _pins(self, pin: Mapping[str, Any] | None) -> list[Mapping[str, Any] | None]:
        if pin is None:
            return [None] * len(self._sources)
        pins = pin.get("sources")
        if not isinstance(pins, list) or len(pins) != len(self._sources):
            what = f"a state of {len(pins)}" if isinstance(pins, list) else "none"
            msg = (
                f"{type(self).__name__}: a state must be of {len(self._sources)} sources; found {what}. Give "
                "the sources that the state was made with, in the same order"
            )
            raise StateError(msg)
        return pins


def _pinned(parts: tuple[Snapshot, ...]) -> Mapping[str, Any] | None:
    pins = [None if part.pin is None else dict(part.pin) for part in parts]
    return {"sources": pins} if any(pin is not None for pin in pins) else None


def _present(parts: tuple[Snapshot, ...]) -> Present | None:
    """Which positions hold a record, where a part knows that of its own: of the other parts all do."""
    if all(part.present is None for part in parts):
        return None
    every = [part.present or _all(part) for part in parts]
    before, at = [np.zeros(1, np.int64)], 0
    for each in every:
        before.append(each.before[1:] + at)
        at += len(each)
    runs, start = (np.concatenate([getattr(each, name) for each in every]) for name in ("runs", "start"))
    return Present(runs, start, np.concatenate(before))


def _all(part: Snapshot) -> Present:
    there = np.flatnonzero(part.stops > part.starts)
    return Present.of(Extents(there, part.starts[there], part.stops[there]), len(part.starts))


# Several sources mixed in exact shares, slot by slot.


Weights = Sequence[float]


class Mix(Concat):
    """The records of several bounded sources, each batch in the proportion of the weights.

    sources  as of `Concat`
    weights  a number per source, of 0 or more; None: equal. A dict {epoch: weights} is a schedule: they hold from that
             epoch on
    linear   of a schedule: between two of its epochs weights go from one to the other in equal steps
    stop     where an epoch ends: "first", before the first source would give a record again, so that nothing comes
             twice; "all", when each source of a weight above 0 has given all its records, smaller ones beginning again
             in another order
    samples  of an epoch, in the place of `stop`; sources begin again as often as it takes

    Of the first n samples of an epoch each source has its share to within one, for any n: so has every global batch to
    within two, and of two sources to within one; a batch whose shares are whole numbers has exactly those, as 7 and 3
    of 10 for weights 0.7 and 0.3. A bad record is replaced by one of its own source. Order and position are pure, as of
    any source; the random numbers of a sample that comes again within an epoch are others. Each epoch begins every
    source again, in another order if there is a shuffle. A source with weight 0 gives nothing.

    Weights count in parts of 10,000 where no smaller whole numbers are in their proportion.

    Raises ConfigError for values that are not allowed.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        weights: Weights | Mapping[int, Weights] | None = None,
        *,
        linear: bool = False,
        stop: Stop = "first",
        samples: int | None = None,
    ) -> None:
        super().__init__(sources)
        if stop not in ("first", "all"):
            msg = f"Mix: stop must be 'first' or 'all'; found {stop!r}"
            raise ConfigError(msg)
        scheduled = isinstance(weights, Mapping)
        flag("Mix: linear", linear)
        if linear and not scheduled:
            msg = "Mix: linear needs a schedule; give weights={epoch: weights, ...}, or leave linear out"
            raise ConfigError(msg)
        if weights is None:
            weights = [1.0] * len(self._sources)
        table = dict(weights) if isinstance(weights, Mapping) else {0: weights}
        if not table:
            msg = "Mix: a schedule of weights must have at least one epoch; found an empty one"
            raise ConfigError(msg)
        checked = sorted((whole("weights: epoch", at, 0), self._checked(its)) for at, its in table.items())
        count = None if samples is None else whole("samples", samples, 1)
        self._mix = Mixture(tuple(checked), linear, stop, count)

    def _checked(self, weights: object) -> tuple[float, ...]:
        several = list(weights) if isinstance(weights, Sequence) and not isinstance(weights, str) else [weights]
        numbers = [w for w in several if isinstance(w, int | float) and not isinstance(w, bool)]
        right = len(numbers) == len(several) == len(self._sources)
        if not right or not all(0 <= w <= sys.float_info.max for w in numbers) or not any(numbers):
            msg = (
                f"Mix: weights must be a number of 0 or more for each of the {len(self._sources)} sources, and "
                f"at least one above 0; found {weights!r}"
            )
            raise ConfigError(msg)
        return tuple(float(w) for w in numbers)

    def _check(self, part: Snapshot, source: Source) -> None:
        if part.mix is not None:
            msg = (
                f"Mix: a mixture cannot be part of another; give its sources, with weights multiplied; found {source!r}"
            )
            raise ConfigError(msg)
        if not len(part):
            msg = f"Mix: each source must have records; found none in {source!r}"
            raise ConfigError(msg)

    def _joined(self, parts: tuple[Snapshot, ...]) -> Snapshot:
        return dataclasses.replace(super()._joined(parts), parts=parts, present=None, mix=self._mix)

    def _record_bytes(self, parts: tuple[Snapshot, ...]) -> int:
        return max(part.record_bytes for part in parts)
