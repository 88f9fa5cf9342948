"""Several sources as one: the partitions of all, one source after another."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dali_feed.checks import whole
from dali_feed.dead_letters import HasOriginals, Original
from dali_feed.errors import ClosedError, ConfigError, StateError
from dali_feed.records.extents import Extents
from dali_feed.records.gauges import KafkaStats, StorageStats, storage_of, summed
from dali_feed.records.metrics import merged
from dali_feed.records.present import Present
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import (
    Block,
    Commits,
    Int64s,
    Lease,
    Member,
    Members,
    Mixture,
    Reader,
    Slabs,
    Snapshot,
    Source,
    Stop,
    lacking,
)

__all__ = ["Concat", "Mix"]


# One reader over the readers of several sources: each opened when it is first asked, all filling the same lease.


def base_of(counts: Sequence[int]) -> Int64s:
    """The first partition of each source here, int64, and the end of the last."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)


@dataclass(slots=True)
class Kinds:
    """What each field's values are in the source that was read first; the others must agree. Shared by readers."""

    title: str
    _known: dict[str, tuple[str, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, name: str, values: Any, source: Source) -> None:
        """ConfigError that names both sources where the field is something else in this one."""
        kind = _told(values)
        with self._lock:
            first, of = self._known.setdefault(name, (kind, repr(source)))
        if kind != first:
            msg = (
                f"{self.title}: the field {name!r} must be of one kind in all sources; {of} has {first}, "
                f"{source!r} has {kind}. Make them the same (for a topic by codec=, for shards by label=), or "
                "give label=None"
            )
            raise ConfigError(msg)


def _told(values: Any) -> str:
    if not isinstance(values, np.ndarray):
        return "a list"
    shape = f" of shape {values.shape[1:]}" if values.ndim > 1 else ""
    return ("int64" if values.dtype.kind in "iu" else str(values.dtype)) + " numbers" + shape


class _Held:
    """The lease that inner readers fill together; who leased it outside gives it back, they do not."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.slab_bytes = lease.slab_bytes

    @property
    def size(self) -> int:
        """Bytes that it holds now."""
        return self._lease.size

    def room(self, size: int) -> memoryview:
        """A writable view of `size` bytes that nobody else has."""
        return self._lease.room(size)

    def ahead(self, size: int) -> list[memoryview]:
        """Writable views of `size` bytes in all, or of fewer."""
        return self._lease.ahead(size)

    def back(self, views: list[memoryview], filled: int) -> None:
        """Those of them that nothing was put into, given back."""
        self._lease.back(views, filled)

    def release(self) -> None:
        """Nothing: the block's lease is given back as a whole."""


class _OneLease:
    """Slabs whose leases are all the one of the read under way."""

    def __init__(self, slabs: Slabs) -> None:
        self._slabs = slabs
        self.now: Lease | None = None

    def lease(self) -> Lease:
        return self._slabs.lease() if self.now is None else _Held(self.now)


class SeveralReader:
    """Records of several sources whose partitions stand one after another from `base` on, with these fields alone."""

    def __init__(
        self,
        sources: Sequence[Source],
        base: Int64s,
        fields: tuple[str, ...],
        kinds: Kinds,
        slabs: Slabs,
        stop: threading.Event | None,
    ) -> None:
        self._sources, self._base, self._fields, self._kinds = sources, base, fields, kinds
        self._slabs, self._one, self._stop = slabs, _OneLease(slabs), stop
        self._readers: dict[int, Reader] = {}
        self._closed = False

    def read(self, extents: Extents) -> Block:
        """All records of `extents`, in their order; see `records.source.Reader`."""
        if self._closed:
            msg = f"{self._kinds.title}: this reader is closed; make another one"
            raise ClosedError(msg)
        which = np.searchsorted(self._base, extents.partition, side="right") - 1
        if ((which < 0) | (which >= len(self._sources))).any():
            msg = f"{self._kinds.title}: extents must lie inside the snapshot; found one that does not"
            raise ConfigError(msg)
        lengths = extents.lengths
        ends = np.cumsum(lengths)
        rows, lease = int(lengths.sum()), self._slabs.lease()
        whole = Block(extents.ids(), [None] * rows, {}, lease)
        self._one.now = lease
        try:
            for k in np.unique(which).tolist():
                mine = which == k
                asked = extents[mine]
                inner = Extents(asked.partition - self._base[k], asked.start, asked.stop)
                block = self._reader(k).read(inner)
                _put(whole, block, _rows(ends[mine], lengths[mine]), self._fields, self._kinds, self._sources[k])
        except BaseException:
            lease.release()
            raise
        finally:
            self._one.now = None
        return whole

    def close(self) -> None:
        """Close all that were opened. Safe to call twice."""
        self._closed = True
        for reader in self._readers.values():
            reader.close()

    @property
    def trouble(self) -> str:
        """The readers', where they have any."""
        return "; ".join(filter(None, (getattr(reader, "trouble", "") for reader in list(self._readers.values()))))

    def gauges(self) -> KafkaStats | None:
        """What readers of topics have measured; partitions have their numbers here."""
        parts = []
        for k, reader in list(self._readers.items()):
            found = summed([reader])
            if found is not None:
                first = int(self._base[k])
                placed = tuple(replace(each, partition=each.partition + first) for each in found.partitions)
                parts.append(replace(found, partitions=placed))
        topics = ", ".join(dict.fromkeys(part.topic for part in parts))
        return replace(merged(parts), topic=topics) if parts else None

    def storage(self) -> tuple[StorageStats, ...]:
        """What readers of files have measured."""
        return storage_of(list(self._readers.values()))

    def rest(self) -> None:
        """Let the readers look after themselves that have to."""
        for reader in self._readers.values():
            if (rest := getattr(reader, "rest", None)) is not None:
                rest()

    def _reader(self, k: int) -> Reader:
        reader = self._readers.get(k)
        if reader is None:
            reader = self._sources[k].reader(self._one, self._stop)
            self._readers[k] = reader
        return reader


def _rows(ends: Int64s, lengths: Int64s) -> Int64s:
    """The rows of the runs that end there, int64."""
    first = np.cumsum(lengths) - lengths
    return np.asarray(np.arange(int(lengths.sum())) + np.repeat(ends - lengths - first, lengths), np.int64)


def _put(whole: Block, block: Block, rows: Int64s, fields: tuple[str, ...], kinds: Kinds, source: Source) -> None:
    """What a source gave becomes those rows of the whole."""
    places = rows.tolist()
    for place, payload in zip(places, block.payloads, strict=True):
        whole.payloads[place] = payload
    for row, reason in block.faults.items():
        whole.faults[places[row]] = reason
    count = len(whole.payloads)
    for name in fields:
        values = block.fields[name]
        kinds.check(name, values, source)
        if isinstance(values, np.ndarray):
            if name not in whole.fields:
                dtype = np.dtype(np.int64) if values.dtype.kind in "iu" else values.dtype
                whole.fields[name] = np.zeros((count, *values.shape[1:]), dtype)
            whole.fields[name][rows] = values
        elif len(places) == count:
            whole.fields[name] = values
        else:
            kept = whole.fields.setdefault(name, [None] * count)
            for place, value in zip(places, values, strict=True):
                kept[place] = value


class Concat:
    """The records of several bounded sources, those of each after those of the one before, as one source.

    sources  two or more: topics, shards, files, tables, in any mixture; one may stand there twice. All must have
             records when the first snapshot is taken

    Each source keeps its names and coordinates; its partitions get the numbers after those of the sources before it, so
    ids stay the same from run to run as long as the sources and their order do. `fields` are those that all have. A
    shuffle mixes the records of all: sample by sample where single records of all are cheap to read, and else by
    extents as each source wants them. A state holds what all sources' snapshots need to be taken again.

    Raises ConfigError for what is no bounded source, or fewer than one.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        given = list(sources) if isinstance(sources, Sequence) and not isinstance(sources, str) else [sources]
        name = type(self).__name__
        if not given:
            msg = f"{name}: sources must be a sequence of sources; found an empty one"
            raise ConfigError(msg)
        for each in given:
            if missing := lacking(each):
                msg = (
                    f"{name}: sources must be bounded sources of dali_feed.external_sources; found {each!r}, which has"
                    f" no {', '.join(missing)}"
                )
                raise ConfigError(msg)
        self._sources: tuple[Any, ...] = tuple(given)
        self._begin()

    def _begin(self) -> None:
        self._base: Int64s | None = None  # of the snapshot that was taken last
        self._kinds = Kinds(repr(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._sources))})"

    def __getstate__(self) -> dict[str, Any]:
        """Without what was looked at: another process, perhaps on another machine, looks for itself."""
        return {name: kept for name, kept in self.__dict__.items() if name not in {"_base", "_kinds"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def sources(self) -> tuple[Source, ...]:
        """As they were given."""
        return self._sources

    @property
    def fields(self) -> tuple[str, ...]:
        """Those that all sources have, in the order of the first."""
        first, *others = (source.fields for source in self._sources)
        return tuple(name for name in first if all(name in other for other in others))

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

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; it opens a source's when that is first asked for a record."""
        pool = SlabPool() if slabs is None else slabs
        return SeveralReader(self._sources, self._bases(), self.fields, self._kinds, pool, stop)

    def where(self, partition: int, position: int) -> str:
        """As the source has it."""
        source, inner = self._of(partition)
        return str(source.where(inner, position))

    def original(self, partition: int, position: int) -> Original | None:
        """The record in full, where its source keeps more than the payload; None elsewhere."""
        source, inner = self._of(partition)
        return source.original(inner, position) if isinstance(source, HasOriginals) else None

    def commit(self, positions: Int64s) -> None:
        """Publish the positions of each source that can."""
        base = self._bases()
        for k, source in enumerate(self._sources):
            if isinstance(source, Commits):
                source.commit(positions[base[k] : base[k + 1]])

    def members(self) -> tuple[Member, ...]:
        """What all sources' records have: the members of the first that the others have too."""
        found = [self._named(source).members() for source in self._sources]
        out = []
        for member in found[0]:
            same = [next((each for each in its if each.name == member.name), None) for its in found]
            there = [each for each in same if each is not None]
            if len(there) == len(found):
                size = round(sum(each.bytes for each in there) / len(there))
                out.append(Member(member.name, min(each.share for each in there), size))
        return tuple(out)

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same records with other members; see `records.members`.

        Raises ConfigError that names the source whose records cannot have one.
        """
        given = []
        for source in self._sources:
            try:
                given.append(self._named(source).giving(image, members))
            except ConfigError as error:
                msg = (
                    f"{type(self).__name__}: all sources must have the members that the columns name; {source!r} "
                    f"does not: {error}"
                )
                raise ConfigError(msg) from error
        return self._over(given)

    def _over(self, sources: Sequence[Source]) -> Concat:
        return Concat(sources)

    def _named(self, source: Any) -> Members:
        if not isinstance(source, Members):
            msg = (
                f"columns: {type(self).__name__} needs sources that list the members of their records; "
                f"{source!r} does not; leave columns out"
            )
            raise ConfigError(msg)
        return source

    def _bases(self) -> Int64s:
        if self._base is None:
            return base_of([len(part.starts) for part in self._looked_at()])
        return self._base

    def _of(self, partition: int) -> tuple[Any, int]:
        base = self._bases()
        k = int(np.searchsorted(base, partition, side="right")) - 1
        return self._sources[k], partition - int(base[k])

    def _pins(self, pin: Mapping[str, Any] | None) -> list[Mapping[str, Any] | None]:
        if pin is None:
            return [None] * len(self._sources)
        pins = pin.get("sources")
        if not isinstance(pins, list) or len(pins) != len(self._sources):
            found = f"a state of {len(pins)}" if isinstance(pins, list) else "none"
            msg = (
                f"{type(self).__name__}: a state must be of {len(self._sources)} sources; found {found}. Give "
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
    told: Callable[[Snapshot], Present] = lambda part: part.present or _all(part)  # noqa: E731
    given = [told(part) for part in parts]
    before, at = [np.zeros(1, np.int64)], 0
    for each in given:
        before.append(each.before[1:] + at)
        at += len(each)
    runs, start = (np.concatenate([getattr(each, name) for each in given]) for name in ("runs", "start"))
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
        self._mix = Mixture(tuple(checked), bool(linear), stop, count)

    def _checked(self, weights: object) -> tuple[float, ...]:
        given = list(weights) if isinstance(weights, Sequence) and not isinstance(weights, str) else [weights]
        numbers = [w for w in given if isinstance(w, int | float) and not isinstance(w, bool)]
        right = len(numbers) == len(given) == len(self._sources)
        if not right or not all(math.isfinite(w) and w >= 0 for w in numbers) or not any(numbers):
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

    def _over(self, sources: Sequence[Source]) -> Mix:
        made = Mix(sources)
        made._mix = self._mix
        return made
