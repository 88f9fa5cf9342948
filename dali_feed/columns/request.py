"""What is asked of a source: names as columns have them, resolved to the plain members that are read.

The law: a record's member is parsed once, however many columns are made of it, and what cannot be parsed costs its
record alone. Where a name lists several, "json:caption;txt", what a record lacks makes room for the next.

A name is a member, `jpg`, or a path inside of one that has a format, `json:body.label`, or several of both, the first
choice first. Of a source with an `inner` member its paths stand alone: `body.label`.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from dali_feed.errors import ConfigError, FormatError, SourceError
from dali_feed.formats import format_of
from dali_feed.formats.format import Format, Parse, bound
from dali_feed.formats.paths import MissingPathError
from dali_feed.records.gauges import KafkaStats, StorageStats
from dali_feed.records.live import LiveBlock, LiveReader, Positions
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block, Extents, Fault, Lease, Reader, Records, Source, alternatives

_SHOWN = 8  # members that an error lists
_BYTES = (memoryview, bytes, bytearray, str)


def formats_of(formats: Any, alone: str | None, title: str) -> dict[str, Format]:
    """The formats of a source's members by name. A format by itself is that of the member `alone`.

    Raises ConfigError, which `title` begins, for what is none.
    """
    if formats is None:
        return {}
    if isinstance(formats, Mapping):
        return {str(name).strip().lstrip("."): format_of(form) for name, form in formats.items()}
    if alone is None:
        msg = f'{title}: format must name the format of each member, such as {{"json": "json"}}; found {formats!r}'
        raise ConfigError(msg)
    return {alone: format_of(formats)}


@dataclass(frozen=True, slots=True)
class _Part:
    """One choice of a name: a member, or a path in one."""

    member: str
    path: str | None = None


@dataclass(slots=True)
class _Opener:
    """What is read out of one member, by one parse of all its paths, or by one of each where a value lacks some."""

    form: Format
    places: dict[str, int] = field(default_factory=dict)  # path -> place in what `parse` gives
    single: dict[str, Parse] = field(default_factory=dict)
    parse: Parse = field(init=False)

    def bind(self) -> None:
        """Once all paths are known. ConfigError for one that no value of the format can have."""
        self.parse = bound(self.form, list(self.places))
        if len(self.places) > 1:
            self.single = {path: bound(self.form, [path]) for path in self.places}


class Request:
    """The plain members that names need, and the stage that makes the names' values of them. Pure; threads share it.

    Attributes:
        members: what a source's reader is asked for, each once.
        names: as they were asked for.
    """

    def __init__(self, source: Records, names: Iterable[str], optional: Collection[str] = ()) -> None:
        """Resolve these names of that source.

        Args:
            source: whose members they are.
            names: as columns have them.
            optional: those of them that a record may lack without being a bad one.

        Raises:
            ConfigError: a name that no record can have; a path that no value of its format can have.
        """
        self.names, self._optional, self._inner = tuple(dict.fromkeys(names)), frozenset(optional), source.inner
        self._openers: dict[str, _Opener] = {}
        self._parts: dict[str, tuple[_Part, ...]]
        if source.any_names:
            if unknown := [name for name in self.names if not source.can_have(name)]:
                raise _unknown(source, unknown[0])
            self._parts = {name: (_Part(name),) for name in self.names}
        else:
            self._parts = {name: _parts_of(source, name) for name in self.names}
        every = [part for name in self.names for part in self._parts[name]]
        for part in every:
            if part.path is not None and (form := source.format_of(part.member)) is not None:
                places = self._openers.setdefault(part.member, _Opener(form)).places
                places.setdefault(part.path, len(places))
        for opener in self._openers.values():
            opener.bind()
        self.members = tuple(dict.fromkeys(part.member for part in every))
        self._plain = all(self._parts[name] == (_Part(name),) for name in self.names)

    def __call__(self, block: Block) -> Block:
        """A block of the plain members becomes one of the names; what cannot be parsed is a fault of its row."""
        if self._plain:
            return block
        opened = {member: self._opened(member, opener, block) for member, opener in self._openers.items()}
        block.values = {name: self._valued(name, block, opened) for name in self.names}
        return block

    def _opened(self, member: str, opener: _Opener, block: Block) -> list[Any]:
        """Of each row what its paths are: a tuple in their order; None without a value, or the error of the whole."""
        out: list[Any] = [None] * len(block.ids)
        values = block.values[member]
        values = values.views() if isinstance(values, Pieces) else values
        for row in np.flatnonzero(block.usable()).tolist():
            value = values[row]
            if value is None:
                continue
            try:
                data = _bytes(value, member)
                out[row] = opener.parse(data)
            except MissingPathError as error:
                out[row] = error if len(opener.places) == 1 else self._one_by_one(opener, data)
            except FormatError as error:
                out[row] = error
        return out

    @staticmethod
    def _one_by_one(opener: _Opener, data: Any) -> tuple[Any, ...]:
        """As far as a value has them; the error in the place of what it lacks."""
        whole: list[Any] = []
        for path in opener.places:
            try:
                whole.append(opener.single[path](data)[0])
            except FormatError as error:
                whole.append(error)
        return tuple(whole)

    def _valued(self, name: str, block: Block, opened: Mapping[str, list[Any]]) -> Any:
        parts = self._parts[name]
        if all(part.path is None for part in parts):
            return _first_of([block.values[part.member] for part in parts])
        if len(parts) == 1 and (quick := self._whole(parts[0], opened)) is not None:
            return quick
        out: list[Any] = [None] * len(block.ids)
        reasons: dict[int, Fault] = {}
        for part in parts:
            self._fill(out, reasons, name, part, block, opened)
        absent = set(block.absent_rows()) if reasons else set()
        for row, fault in reasons.items():
            if out[row] is None and row not in absent:
                block.faults.setdefault(row, fault)
        return out

    def _whole(self, part: _Part, opened: Mapping[str, list[Any]]) -> list[Any] | None:
        """The values of a path where each row was parsed, the common case; None where one was not, or lacks a path."""
        rows, place = opened[part.member], self._openers[part.member].places[part.path or ""]
        if set(map(type, rows)) != {tuple}:
            return None
        values = [row[place] for row in rows]
        kinds = set(map(type, values))
        if any(issubclass(kind, FormatError) for kind in kinds):
            return None
        return values if kinds.isdisjoint((bytes, bytearray)) else list(map(_view, values))

    def _fill(
        self,
        out: list[Any],
        reasons: dict[int, Fault],
        name: str,
        part: _Part,
        block: Block,
        opened: Mapping[str, list[Any]],
    ) -> None:
        """Rows that have nothing yet get what this part of the name gives them, or a reason why it gives nothing."""
        place = None if part.path is None else self._openers[part.member].places[part.path]
        optional, alone = name in self._optional, len(self._parts[name]) == 1
        for row, whole in enumerate(block.values[part.member] if place is None else opened[part.member]):
            if out[row] is not None:
                continue
            value = whole[place] if place is not None and whole.__class__ is tuple else whole
            if isinstance(value, FormatError):
                if not (optional and isinstance(value, MissingPathError)):
                    reasons[row] = Fault("source", self._why(part.member, value), name)
            elif place is not None and whole is None and alone and not optional:
                reasons[row] = Fault("source", self._lacks(part.member), name)
            else:
                out[row] = _view(value)

    def _why(self, member: str, error: FormatError) -> str:
        return str(error) if member == self._inner else f"member {member!r}: {error}"

    def _lacks(self, member: str) -> str:
        return f"the record has no {member}{' (a tombstone)' if member == self._inner == 'value' else ''}"


def _parts_of(source: Records, name: str) -> tuple[_Part, ...]:
    """The choices of a name that a record can have, the first choice first."""
    choices = [_part_of(source, one) for one in alternatives(name)]
    there = [
        part
        for part in choices
        if source.can_have(part.member) and (part.path is None or source.has_path(part.member, part.path))
    ]
    if len(there) > 1 and source.first_of and all(part.path is None for part in there):
        return (_Part(";".join(dict.fromkeys(part.member for part in there))),)
    if there:
        return tuple(dict.fromkeys(there))
    raise _unknown(source, name, choices)


def _unknown(source: Records, name: str, choices: Sequence[_Part] = ()) -> ConfigError:
    try:
        known = [member.name for member in source.members()]
    except SourceError:  # it is not there, which is another error
        known = []
    shown = ", ".join(known[:_SHOWN])
    near = difflib.get_close_matches(choices[0].path or choices[0].member if choices else name, known, n=1)
    member, colon, path = name.partition(":")
    if colon and path and member in known:
        hint = f'none of that name. To read a path inside {member!r}, give the source format={{{member!r}: "json"}}'
    elif near:
        hint = f"{shown}. Did you mean {near[0]!r}?"
    else:
        hint = f"none of that name{f', but {shown}' if shown else ''}. `dali-feed inspect` lists them"
    return ConfigError(f"member {name!r}: no {source.unit} has it; found {hint}")


def _part_of(source: Records, one: str) -> _Part:
    member, colon, path = one.partition(":")
    if colon and path and source.format_of(member) is not None:
        return _Part(member, path)
    inner = source.inner
    if inner is not None and source.format_of(inner) is not None and one != inner and not source.can_have(one):
        return _Part(inner, one)
    return _Part(one)


def lacks(source: Records, name: str) -> str:
    """What is said, behind "the record", of one that gives nothing for a name of columns; "": what is said of any.

    What a format finds nowhere is an error that says so: where it gives nothing, there is a null.
    """
    said = source.lacks(name)
    inside = not said and not source.any_names and all(_part_of(source, one).path for one in alternatives(name))
    return "has a null there" if inside else said


def _first_of(choices: Sequence[Any]) -> Any:
    """Of each row the first that it has; of `Pieces` without a look at each."""
    if len(choices) == 1:
        return choices[0]
    if all(isinstance(each, Pieces) for each in choices):
        whole = Pieces.joined(choices)
        rows = len(choices[0])
        has = np.stack([each.of >= 0 for each in choices])
        return whole[has.argmax(axis=0) * rows + np.arange(rows)]
    out = list(choices[0])
    for each in choices[1:]:
        for row, value in enumerate(each):
            if out[row] is None:
                out[row] = value
    return out


def _view(value: Any) -> Any:
    """Bytes as views, which columns take; other values as they are."""
    return memoryview(value) if value.__class__ is bytes or value.__class__ is bytearray else value


def _bytes(value: Any, member: str) -> Any:
    if value.__class__ is memoryview:
        return value
    if not isinstance(value, _BYTES):
        raise FormatError(f"{member}: a format reads bytes or text; found {type(value).__name__}")
    return value.encode() if isinstance(value, str) else value


class RequestReader(LiveReader):
    """A reader, of a stream or not, with stages behind it: `Block -> Block`, in its thread."""

    def __init__(self, reader: Reader, *stages: Callable[[Block], Block]) -> None:
        self._reader, self._stages = reader, stages

    def read(self, extents: Extents, lease: Lease) -> Block:
        """Of the reader's block; see `dali_feed.records.source.Reader`."""
        block = self._reader.read(extents, lease)
        for stage in self._stages:
            block = stage(block)
        return block

    def poll(self, records: int, size: float, seconds: float, lease: Lease) -> LiveBlock:
        """Of the reader's block; see `dali_feed.records.live.LiveReader`."""
        polled = cast("LiveReader", self._reader).poll(records, size, seconds, lease)
        for stage in self._stages:
            polled.block = stage(polled.block)
        return polled

    def commit(self, position: Positions) -> None:
        """The reader's."""
        cast("LiveReader", self._reader).commit(position)

    @property
    def trouble(self) -> str:  # type: ignore[override]  # read only here
        """The reader's."""
        return self._reader.trouble

    def gauges(self) -> KafkaStats | None:
        """The reader's."""
        return self._reader.gauges()

    def storage(self) -> tuple[StorageStats, ...]:
        """The reader's."""
        return self._reader.storage()

    def rest(self) -> None:
        """The reader's."""
        self._reader.rest()

    @property
    def rests(self) -> bool:
        """The reader's."""
        return self._reader.rests

    def close(self) -> None:
        """Safe to call twice."""
        self._reader.close()


def open_reader(
    source: Source,
    names: Iterable[str],
    stop: threading.Event | None = None,
    optional: Collection[str] = (),
    *stages: Callable[[Block], Block],
) -> Reader:
    """A reader of a source that gives these names, as columns have them, with stages behind it; see `Request`."""
    request = Request(source, names, optional)
    if source.any_names:
        return RequestReader(source.named_reader(request.names, optional, stop), *stages)
    return RequestReader(source.reader(request.members, stop), request, *stages)
