"""A source whose records' members have other names: two sets that call one thing by two names become one.

The law: names alone change. Records, ids, order, fingerprint, coordinates and states are the source's own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from dali_feed.errors import ConfigError
from dali_feed.formats.format import Format
from dali_feed.quarantine.letters import HasOriginals, Original
from dali_feed.records.members import Member, Members, alternatives
from dali_feed.records.passing import PassingOn
from dali_feed.records.source import (
    Block,
    Coming,
    Commits,
    Extents,
    Foresees,
    Int64s,
    Reader,
    Slabs,
    Snapshot,
    Source,
    lacking,
)

__all__ = ["Renamed"]


class _Over:
    """What is passed on of `source`, whatever its fields are called."""

    def __init__(self, source: Any, title: str) -> None:
        self._source, self._title = source, title

    def __repr__(self) -> str:
        return self._title

    @property
    def most_fetch_times(self) -> int:
        """How many times the usual amount its readers may fetch at once."""
        return int(getattr(self._source, "most_fetch_times", 1))

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The source's."""
        found: Snapshot = self._source.snapshot(pin)
        return found

    def where(self, partition: int, position: int) -> str:
        """As the source has it."""
        return str(self._source.where(partition, position))

    def original(self, partition: int, position: int) -> Original | None:
        """The record in full, where the source keeps more than the payload."""
        return self._source.original(partition, position) if isinstance(self._source, HasOriginals) else None

    def foresee(self, coming: Coming) -> None:
        """Told to the source, where it wants to know. See `records.source.Foresees`."""
        if isinstance(self._source, Foresees):
            self._source.foresee(coming)

    def commit(self, positions: Int64s) -> None:
        """Publish the positions, where the source can."""
        if isinstance(self._source, Commits):
            self._source.commit(positions)


class Renamed(_Over):
    """The records of a bounded source, whose members and fields have other names.

    source  topics, shards, files, tables, a `Concat` of them
    names   what each member is called by the source, and what it is called here: {"jpeg": "jpg"}. Where it is called
            differently from record to record, {"jpeg;JPEG": "jpg"}: the first that a record has counts, as among
            columns. "meta.json:caption", what a format finds in a member, can have a name of its own too

    Names that are not given stay; a member that had such a new name before cannot be asked for. So sources whose names
    differ can stand side by side: `Concat([a, Renamed(b, {"jpeg": "jpg", "class": "cls"})])`. A state of the source is
    one of this, and the other way round.

    Raises ConfigError for what is no bounded source, no names, or two members of one name.
    """

    def __init__(self, source: Source, names: Mapping[str, str]) -> None:
        if missing := lacking(source):
            msg = (
                f"Renamed: source must be a bounded source of dali_feed.external_sources; found {source!r}, which has"
                f" no {', '.join(missing)}"
            )
            raise ConfigError(msg)
        given = dict(names) if isinstance(names, Mapping) else {}
        if not given or not all(_is_name(old) and _is_name(new, ";:") for old, new in given.items()):
            msg = f'Renamed: names must map members to new names: {{"jpeg": "jpg"}}; found {names!r}'
            raise ConfigError(msg)
        self._old = {_bare(new): ";".join(alternatives(old)) for old, new in given.items()}
        if len(self._old) < len(given):
            twice = next(new for new in given.values() if list(map(_bare, given.values())).count(_bare(new)) > 1)
            msg = f'Renamed: two members must not become one; found {twice!r} twice; give {{"one;other": {twice!r}}}'
            raise ConfigError(msg)
        gone = (part for old in self._old.values() for part in alternatives(old))
        self._gone = tuple(dict.fromkeys(part for part in gone if part not in self._old))
        told = ", ".join(f"{old} as {new}" for new, old in self._old.items())
        super().__init__(source, f"Renamed({source!r}, {told})")

    @property
    def source(self) -> Source:
        """As it was given."""
        found: Source = self._source
        return found

    @property
    def fields(self) -> tuple[str, ...]:
        """The source's, by their names here. ConfigError where two would have one name."""
        return tuple(self._fields().values())

    def members(self) -> tuple[Member, ...]:
        """The source's, by their names here."""
        found = {each.name: each for each in self._named().members()}
        out: dict[str, Member] = {}
        for name, member in found.items():
            new = next((new for new, old in self._old.items() if name in alternatives(old)), None)
            if new is None and name not in self._old:
                out[name] = member
            elif new is not None and new not in out:
                parts = [found[part] for part in alternatives(self._old[new]) if part in found]
                share = sum(part.share for part in parts)
                size = round(sum(part.share * part.bytes for part in parts) / share) if share else 0
                out[new] = Member(new, min(1.0, share), size)
        return tuple(out.values())

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same records with other members; see `records.members`."""
        asked = {name: self._inner(name) for name in members}
        inner = None if image is None else self._inner(image)
        try:
            given = self._named().giving(inner, tuple(dict.fromkeys(asked.values())))
        except ConfigError as error:
            msg = f"{self!r}: with the source's own names: {error}"
            raise ConfigError(msg) from error
        return _Given(given, self._title, asked)

    def form_of(self, member: str) -> Format | None:
        """The format that the source knows of a member."""
        known = getattr(self._source, "form_of", None)
        return None if known is None else known(alternatives(self._inner(member))[0])

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """The source's, with other names."""
        return _RenamedReader(self._source.reader(slabs, stop), {new: old for old, new in self._fields().items()})

    def _fields(self) -> dict[str, str]:
        """The source's fields, and their names here."""
        found = {name: name for name in self._source.fields}
        for new, old in self._old.items():
            if (first := next((part for part in alternatives(old) if part in found), None)) is not None:
                found[first] = new
        if len(set(found.values())) < len(found):
            msg = f"{self!r}: fields must have different names; found {', '.join(found.values())}; rename the other too"
            raise ConfigError(msg)
        return found

    def _inner(self, name: str) -> str:
        """What the source calls a member, or the members that a name lists."""
        parts: list[str] = []
        for one in alternatives(name):
            member, colon, path = one.partition(":")
            if one in self._old:
                parts.append(self._old[one])
            elif colon and member in self._old:
                parts += [f"{part}:{path}" for part in alternatives(self._old[member])]
            elif member not in self._gone and one not in self._gone:
                parts.append(one)
        if not parts and alternatives(name):
            told = ", ".join(f"{old!r} is {new!r} here" for new, old in self._old.items())
            msg = f"member {name!r}: must have the name that Renamed gives it; {told}; use that name"
            raise ConfigError(msg)
        return ";".join(parts)

    def _named(self) -> Members:
        if not isinstance(self._source, Members):
            rule = "a source must list the members of its records"
            msg = f"columns: {rule}; {self._source!r} does not; leave columns out"
            raise ConfigError(msg)
        return self._source


class _Given(_Over):
    """The members that were asked for: `names`, outer to inner."""

    def __init__(self, source: Source, title: str, names: Mapping[str, str]) -> None:
        super().__init__(source, title)
        self._names = dict(names)

    @property
    def fields(self) -> tuple[str, ...]:
        """The members as they were asked for."""
        return tuple(self._names)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """The source's, with other names."""
        return _RenamedReader(self._source.reader(slabs, stop), self._names)


class _RenamedReader(PassingOn):
    """Gives fields by other names: `names`, outer to inner."""

    def __init__(self, reader: Reader, names: Mapping[str, str]) -> None:
        super().__init__(reader)
        self._names = names

    def read(self, extents: Extents) -> Block:
        """The source's block, with fields by their names here."""
        block: Block = self._reader.read(extents)
        block.fields = {name: block.fields[inner] for name, inner in self._names.items()}
        return block


def _bare(name: str) -> str:
    return name.strip().lstrip(".")


def _is_name(name: object, without: str = "") -> bool:
    return isinstance(name, str) and bool(alternatives(name)) and not any(letter in name for letter in without)
