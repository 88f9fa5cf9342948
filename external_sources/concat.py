"""Several sources as one: the partitions of all, one source after another."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, StateError
from dali_feed.external_sources.several import Kinds, SeveralReader, base_of, once, part_of
from dali_feed.quarantine.letters import HasOriginals, Original
from dali_feed.records.extents import Extents
from dali_feed.records.members import Member, Members
from dali_feed.records.present import Present
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Coming, Commits, Foresees, Int64s, Reader, Slabs, Snapshot, Source, lacking

__all__ = ["Concat"]


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

    @property
    def most_fetch_times(self) -> int:
        """How many times the usual amount its readers may fetch at once."""
        return max(getattr(source, "most_fetch_times", 1) for source in self._sources)

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

    def foresee(self, coming: Coming) -> None:
        """Each source that has `foresee` is told of its own part, when it asks. See `records.source.Foresees`."""
        base = self._bases()
        told = once(coming)
        for source in {id(each): each for each in self._sources}.values():  # one may stand there twice
            if isinstance(source, Foresees):
                places = [k for k, each in enumerate(self._sources) if each is source]
                source.foresee(partial(part_of, told, base, places))

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
