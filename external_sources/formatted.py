"""Members inside members: `json:body.label`, what the format of the member `json` finds at `body.label`.

The law: a record's member is parsed once, however many columns are made of it, and what cannot be parsed costs its
record alone. Where a name lists several, "json:caption;txt", a path that a record lacks makes room for the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from dali_feed.errors import ConfigError, FormatError
from dali_feed.external_sources.member_source import MemberSource
from dali_feed.formats.format import Format, Parse, bound
from dali_feed.formats.named import format_of
from dali_feed.records.members import alternatives
from dali_feed.records.passing import PassingOn
from dali_feed.records.source import Block, Extents, Reader, Slabs, Source

__all__ = ["VALUE", "FormOf", "Formatted", "FormattedReader", "forms_of", "split_path", "with_formats"]

VALUE = "value"  # the member of a Kafka record whose name is left out of reasons
FormOf = Callable[[str], Format | None]
Giving = Callable[[str | None, tuple[str, ...]], Source]
_BYTES = (memoryview, bytes, bytearray, str)


def forms_of(given: Any, alone: str | None, told: str) -> dict[str, Format]:
    """The formats of a source's members by name. A format by itself is that of the member `alone`.

    Raises ConfigError, which `told` begins, for what is none.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(name).strip().lstrip("."): format_of(form) for name, form in given.items()}
    if alone is None:
        msg = f'{told}: format must name the format of each member, such as {{"json": "json"}}; found {given!r}'
        raise ConfigError(msg)
    return {alone: format_of(given)}


def split_path(name: str, form_of: FormOf) -> tuple[str, str] | None:
    """Member and path of `member:path`, where the member has a format; else None."""
    member, colon, path = name.partition(":")
    return (member, path) if colon and path and form_of(member) is not None else None


@dataclass(slots=True)
class _Opener:
    """What is read out of one member: `needed` by one parse, `perhaps` one by one, for a record may lack them."""

    form: Format
    needed: dict[str, int] = field(default_factory=dict)  # path -> place in what `parse` gives
    perhaps: dict[str, Parse] = field(default_factory=dict)
    parse: Parse | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A name, and what each of its alternatives is: a member of the source, or member and path."""

    name: str
    parts: tuple[str | tuple[str, str], ...]


def with_formats(
    giving: Giving,
    form_of: FormOf,
    image: str | None,
    members: tuple[str, ...],
    full: Callable[[str], str] = str,
    made: Callable[..., Any] | None = None,
) -> Source:
    """`giving(image, members)` of a source, with paths into members among the names.

    form_of  the format of a member; None where it has none, and a colon is a letter of its name
    full     the full name of a member that may be called by a shorter one
    made     what is made where there are such paths; `Formatted` unless told

    Raises ConfigError for a path that no value of its format can have.
    """
    names = (*(() if image is None else (image,)), *members)
    asked = {name: _parts(name, form_of, full) for name in names}
    if not any(isinstance(part, tuple) for each in asked.values() for part in each.parts):
        return giving(image, members)
    openers: dict[str, _Opener] = {}
    for each in asked.values():
        for part in each.parts:
            if isinstance(part, tuple):
                member, path = part
                opener = openers.setdefault(member, _Opener(cast("Format", form_of(member))))
                if len(each.parts) == 1:
                    opener.needed.setdefault(path, len(opener.needed))
                else:
                    opener.perhaps[path] = bound(opener.form, [path])
    for opener in openers.values():
        if opener.needed:
            opener.parse = bound(opener.form, list(opener.needed))
    inside = None if image is None or asked[image].parts == (image,) else asked[image]
    wanted = asked.values() if inside is not None else [asked[name] for name in members]
    plain = [part for each in wanted for part in each.parts if isinstance(part, str)]
    base = giving(image if inside is None else None, tuple(dict.fromkeys([*plain, *openers])))
    found: Source = (made or Formatted)(base, inside, tuple(asked[name] for name in members), openers)
    return found


def _parts(name: str, form_of: FormOf, full: Callable[[str], str]) -> _Asked:
    """Alternatives, those side by side that are no paths as one."""
    parts: list[str | tuple[str, str]] = []
    for one in map(full, alternatives(name)):
        path = split_path(one, form_of)
        if path is None and parts and isinstance(parts[-1], str):
            parts[-1] = f"{parts[-1]};{one}"
        else:
            parts.append(one if path is None else path)
    if len(parts) == 1 and isinstance(parts[0], str):
        parts[0] = name
    return _Asked(name, tuple(parts))


class Formatted(MemberSource):
    """A source's records with what formats find in their members. `image` is made of those, or the source's payload."""

    def __init__(
        self, base: Source, image: _Asked | None, asked: tuple[_Asked, ...], openers: dict[str, _Opener]
    ) -> None:
        super().__init__(base, None if image is None else image.name, tuple(each.name for each in asked))
        self.image, self.asked, self.openers = image, asked, openers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also in a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self._source, name)  # original, commit: where the source has them

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """The source's, and the formats behind it."""
        return FormattedReader(self, self._source.reader(slabs, stop))


class FormattedReader(PassingOn):
    """Reads members, and opens those that were asked for."""

    def __init__(self, of: Any, reader: Any) -> None:
        super().__init__(reader)
        self._of = of

    def read(self, extents: Extents) -> Block:
        """Of the source's block, with what the formats found; see `records.Reader`."""
        block = self._reader.read(extents)
        try:
            return self.opened(block)
        except BaseException:
            block.lease.release()
            raise

    def opened(self, block: Block) -> Block:
        """The block, with what the formats found."""
        found = {member: _needed(member, opener, block) for member, opener in self._of.openers.items()}

        def values(asked: _Asked) -> Any:
            first = asked.parts[0]
            if len(asked.parts) > 1:
                return self._foremost(asked, block)
            if isinstance(first, str):
                return block.fields[first]
            member, path = first
            place = self._of.openers[member].needed[path]
            return [None if row is None else _view(row[place]) for row in found[member]]

        fields = {asked.name: values(asked) for asked in self._of.asked}
        if self._of.image is not None:
            _as_payloads(self._of.image.name, values(self._of.image), block)
        return Block(block.ids, block.payloads, fields, block.lease, block.faults)

    def _foremost(self, asked: _Asked, block: Block) -> list[Any]:
        """Of each row the foremost that it has. Where it has none, why the last that was tried failed is its fault."""
        out: list[Any] = [None] * len(block.ids)
        reasons: dict[int, str] = {}
        for part in asked.parts:
            for row, value in enumerate(block.fields[part if isinstance(part, str) else part[0]]):
                if out[row] is not None or value is None or row in block.faults:
                    continue
                if isinstance(part, str):
                    out[row] = value
                    continue
                try:
                    (one,) = self._of.openers[part[0]].perhaps[part[1]](_bytes(value, part[0]))
                    out[row] = _view(one)
                except FormatError as error:
                    reasons[row] = _why(part[0], error)
        for row, reason in reasons.items():
            if out[row] is None:
                block.faults.setdefault(row, reason)
        return out


def _needed(member: str, opener: _Opener, block: Block) -> list[tuple[Any, ...] | None]:
    """What one parse of each row's member gives; None, and a fault, where that fails."""
    out: list[tuple[Any, ...] | None] = [None] * len(block.ids)
    if opener.parse is None:
        return out
    for row, value in enumerate(block.fields[member]):
        if row in block.faults or block.payloads[row] is None:  # bad already, or no record
            continue
        if value is None:
            block.faults[row] = f"the record has no {member}{' (a tombstone)' if member == VALUE else ''}"
            continue
        try:
            out[row] = opener.parse(_bytes(value, member))
        except FormatError as error:
            block.faults[row] = _why(member, error)
    return out


def _view(value: Any) -> Any:
    """Bytes as views, which kinds take; other values as they are."""
    return memoryview(value) if value.__class__ is bytes or value.__class__ is bytearray else value


def _bytes(value: Any, member: str) -> Any:
    if value.__class__ is memoryview:
        return value
    if not isinstance(value, _BYTES):
        msg = f"{member}: a format reads bytes or text; found {type(value).__name__}"
        raise FormatError(msg)
    return value.encode() if isinstance(value, str) else value


def _why(member: str, error: FormatError) -> str:
    return str(error) if member == VALUE else f"member {member!r}: {error}"


def _as_payloads(name: str, values: list[Any], block: Block) -> None:
    """Bytes that were found, as the images of the block."""
    for row, value in enumerate(values):
        if block.payloads[row] is None or row in block.faults:
            continue
        if isinstance(value, memoryview):
            block.payloads[row] = value
        else:
            block.faults[row] = f"the record has no member {name} with an image"
