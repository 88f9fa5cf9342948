"""Members inside members: `json:body.label`, what the format of the member `json` finds at `body.label`.

The law: a record's member is parsed once, however many columns are made of it, and what cannot be parsed costs its
record alone. Where a name lists several, "json:caption;txt", a path that a record lacks makes room for the next.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from dali_feed.errors import ClosedError, ConfigError, FormatError, SourceError
from dali_feed.formats.format import Format, Parse, bound
from dali_feed.formats.named import format_of
from dali_feed.records.live import LiveBlock, LiveReader, LiveSource, PassingOn, Positions
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import (
    Block,
    Extents,
    Int64s,
    Lease,
    Reader,
    Slabs,
    Snapshot,
    Source,
    alternatives,
    unpack_ids,
)
from dali_feed.storage.store import Stamp

__all__ = [
    "VALUE",
    "Formatted",
    "LiveFormatted",
    "MemberReader",
    "MemberSource",
    "foremost",
    "forms_of",
    "load_file",
    "with_formats",
]


# One file read into a slab: what every source that names single files shares.


LARGEST = 1 << 31
_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # the process's trouble, not the file's


def load_file(path: str, lease: Lease) -> memoryview | str:
    """The bytes of a file, or why there are none."""
    try:
        # Without O_NONBLOCK a pipe with an image's name would hold the reader up for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        return _fault(path, "the file cannot be opened", error)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return "a folder, not a file" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        size = status.st_size
        if size > LARGEST:
            return f"a file of {size} bytes; at most {LARGEST} are allowed"
        view = lease.room(size)
        got = more = os.preadv(fd, (view,), 0)
        while more and got < size:
            got += (more := os.preadv(fd, (view[got:],), got))
        if got < size:
            return f"the file ended at byte {got} of {size} while it was read"
        changed = Stamp.of(status).change(Stamp.of(os.fstat(fd)))  # half of one picture and half of another is none
        return f"the file changed while it was read: {changed}" if changed else view
    except OSError as error:
        return _fault(path, "the file cannot be read", error)
    finally:
        os.close(fd)


def _fault(path: str, what: str, error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno in _OURS:
        msg = f"{path}: {what}: {error.strerror}; raise the limit (ulimit -n) or use fewer readers"
        raise SourceError(msg) from error
    return f"{what}: {error.strerror if isinstance(error, OSError) else error}"


# What sources of asked-for members share: the shell around another source, and a reader of records by their row.
#
# A source's own `giving` makes one of these. Order, snapshot and coordinates stay those of the source.


class MemberSource:
    """Records of `source` with the `members` that were asked for, which readers that `opened` makes give.

    See `records.members.Members.giving`.
    """

    def __init__(
        self, source: Source, members: tuple[str, ...], opened: Callable[[Slabs, threading.Event], Reader]
    ) -> None:
        self._source, self._members, self._opened = source, members, opened

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def fields(self) -> tuple[str, ...]:
        """The members as they were asked for."""
        return self._members

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The source's."""
        return self._source.snapshot(pin)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `records.Source`."""
        return self._opened(SlabPool() if slabs is None else slabs, stop or threading.Event())

    def where(self, partition: int, position: int) -> str:
        """As the source has it."""
        return self._source.where(partition, position)


class MemberReader:
    """Reads records of a source of `counts` records in each partition, for one thread; a subclass has `_fill`."""

    def __init__(self, told: str, counts: Int64s | int, slabs: Slabs, stop: threading.Event | None) -> None:
        self._told, self._counts, self._slabs = told, np.atleast_1d(np.asarray(counts, np.int64)), slabs
        self._stop, self._closed = stop or threading.Event(), False

    def read(self, extents: Extents) -> Block:
        """All records of `extents` in order; see `dali_feed.records.source.Reader`.

        Raises:
            ConfigError: an extent that leaves the snapshot.
            SourceChangedError: a file is not what it was when the source looked at it.
            DataLostError: it is gone, or ends before a record does.
            ClosedError: the reader is closed or the stop event is set.
            SourceError: the process has no descriptors or memory left, or the disk fails.
        """
        if self._closed or self._stop.is_set():
            msg = f"{self._told}: this reader is closed, or its read was stopped; make another one"
            raise ClosedError(msg)
        extents.check_inside(self._counts, self._told)
        ids = extents.ids()
        block = Block(ids, [memoryview(b"")] * len(ids), {}, self._slabs.lease())
        try:
            self._fill(block, *unpack_ids(ids))
        except BaseException:
            block.lease.release()
            raise
        return block

    def close(self) -> None:
        """Nothing stays open between reads. Safe to call twice."""
        self._closed = True

    def _fill(self, block: Block, partition: Int64s, position: Int64s) -> None:
        """Put these records into the block."""
        raise NotImplementedError

    def _loaded(self, path: str, block: Block, k: int) -> memoryview | None:
        """The bytes of a file; None, and a fault of row k, where there are none."""
        if self._stop.is_set():
            msg = f"{self._told}: the read was stopped"
            raise ClosedError(msg)
        found = load_file(path, block.lease)
        if isinstance(found, str):
            block.faults[k] = found
            return None
        return found


def foremost(name: str, known: Collection[str], told: str) -> str:
    """The foremost of the members that a name lists which is known; ConfigError, which `told` explains, for none."""
    found = next((part for part in alternatives(name) if part in known), None)
    if found is None:
        member, colon, path = name.partition(":")
        opens = (
            f'. To read a path inside {member!r}, give the source format={{{member!r}: "json"}}'
            if colon and path
            else ""
        )
        msg = f"member {name!r}: {told} {', '.join(known)}; found none of {'that name' if ';' not in name else 'them'}"
        raise ConfigError(msg + opens)
    return found


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

    def among(self, known: Collection[str]) -> _Asked:
        """Without the paths into members that no record has, where another alternative is left."""
        parts = tuple(part for part in self.parts if isinstance(part, str) or part[0] in known)
        return _Asked(self.name, parts or self.parts)


def with_formats(
    giving: Giving,
    form_of: FormOf,
    image: str | None,
    members: tuple[str, ...],
    full: Callable[[str], str] = str,
    made: Callable[..., Any] | None = None,
    *,
    known: Callable[[], Iterable[str]] | None = None,
) -> Source:
    """`giving(image, members)` of a source, with paths into members among the names.

    form_of  the format of a member; None where it has none, and a colon is a letter of its name
    full     the full name of a member that may be called by a shorter one
    made     what is made where there are such paths; `Formatted` unless told
    known    the members that there are: of several alternatives, those inside of others are left out

    Raises ConfigError for a path that no value of its format can have.
    """
    names = (*(() if image is None else (image,)), *members)
    asked = {name: _parts(name, form_of, full) for name in names}
    if not any(isinstance(part, tuple) for each in asked.values() for part in each.parts):
        return giving(image, members)
    if known is not None and any(len(each.parts) > 1 for each in asked.values()):
        there = set(known())
        asked = {name: each.among(there) for name, each in asked.items()}
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
        super().__init__(base, tuple(each.name for each in asked), base.reader)
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


# A stream's records with what formats find in their members: as `formatted.Formatted` is for a bounded source.


class LiveFormatted:
    """The stream `base`, whose members `asked` are opened by `openers`; what it says beside that is the stream's."""

    def __init__(self, base: LiveSource, image: Any, asked: tuple[Any, ...], openers: Mapping[str, Any]) -> None:
        self._source, self.image, self.asked, self.openers = base, image, asked, openers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also in a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self._source, name)  # pace, mark, where, replay ...

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def fields(self) -> tuple[str, ...]:
        """The members as they were asked for."""
        return tuple(each.name for each in self.asked)

    def live(self, at: Mapping[str, Any] | None = None, **how: Any) -> LiveReader:
        """The stream's, and the formats behind it; see `records.live.LiveSource`."""
        return _Reader(self, self._source.live(at, **how))


class _Reader(FormattedReader):
    """Polls members, and opens those that were asked for."""

    def poll(self, records: int, size: float, seconds: float) -> LiveBlock:
        """Of the stream's block, with what the formats found; see `records.live.LiveReader`."""
        found: LiveBlock = self._reader.poll(records, size, seconds)
        try:
            return LiveBlock(self.opened(found.block), found.position, found.generation)
        except BaseException:
            found.block.lease.release()
            raise

    def commit(self, position: Positions) -> None:
        """The stream's."""
        self._reader.commit(position)
