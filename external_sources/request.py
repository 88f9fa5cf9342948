"""Members inside members: `json:body.label`, what the format of the member `json` finds at `body.label`.

The law: a record's member is parsed once, however many columns are made of it, and what cannot be parsed costs its
record alone. Where a name lists several, "json:caption;txt", a path that a record lacks makes room for the next.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from dali_feed.errors import ClosedError, ConfigError, FormatError, SourceError
from dali_feed.formats.format import Format, Parse, bound
from dali_feed.formats.named import format_of
from dali_feed.quarantine.letters import HasOriginals, Original
from dali_feed.records.live import Drain, LiveBlock, LiveReader, LiveSource, PassingOn, Positions
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import (
    LABEL,
    Block,
    Commits,
    Extents,
    Int64s,
    Lease,
    Member,
    Members,
    Reader,
    Slabs,
    Snapshot,
    Source,
    alternatives,
    lacking,
    unpack_ids,
)
from dali_feed.storage.store import Stamp

__all__ = [
    "BYTES",
    "VALUE",
    "FileMembers",
    "Formatted",
    "LiveFormatted",
    "MemberReader",
    "MemberSource",
    "Renamed",
    "check_read",
    "foremost",
    "forms_of",
    "load_file",
    "with_formats",
]


# A source whose records' members have other names: two sets that call one thing by two names become one.
#
# The law: names alone change. Records, ids, order, fingerprint, coordinates and states are the source's own.


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


# One file read into a slab: what every source that names single files shares.


LARGEST = 1 << 31
_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # the process's trouble, not the file's


def check_read(told: str, extents: Extents, count: int, *, closed: bool) -> None:
    """Of a source of one partition with `count` records: ClosedError, ConfigError for an extent that leaves it."""
    if closed:
        msg = f"{told}: this reader is closed; make another one"
        raise ClosedError(msg)
    extents.check_inside(np.array([count], np.int64), told)


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
    """Records of `source` with the members that were asked for. See `records.members.Members.giving`."""

    def __init__(self, source: Source, image: str | None, members: tuple[str, ...]) -> None:
        self._source, self._image, self._members = source, image, members

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

    def _opened(self, slabs: Slabs, stop: threading.Event) -> Reader:
        raise NotImplementedError


class MemberReader:
    """Reads members of a source of one partition, row by row."""

    def __init__(self, told: str, count: int, slabs: Slabs, stop: threading.Event) -> None:
        self._told, self._count, self._slabs, self._stop = told, count, slabs, stop
        self._closed = False

    def read(self, extents: Extents) -> Block:
        """The members of `extents`' rows; see `records.Reader`. Raises what the source's own reader does."""
        check_read(self._told, extents, self._count, closed=self._closed)
        ids = extents.ids()
        block = Block(ids, [memoryview(b"")] * len(ids), {}, self._slabs.lease())
        try:
            self._fill(block, unpack_ids(ids)[1])
        except BaseException:
            block.lease.release()
            raise
        return block

    def close(self) -> None:
        """Nothing stays open between reads. Safe to call twice."""
        self._closed = True

    def _fill(self, block: Block, rows: Int64s) -> None:
        """Put the members of these rows into the block."""
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

    def live(
        self,
        at: Mapping[str, Any] | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        slabs: Slabs | None = None,
        stop: threading.Event | None = None,
        drain: Drain | None = None,
    ) -> LiveReader:
        """The stream's, and the formats behind it."""
        found = self._source.live(at, rank=rank, world_size=world_size, slabs=slabs, stop=stop, drain=drain)
        return _Reader(self, found)


class _Reader(FormattedReader):
    """Polls members, and opens those that were asked for."""

    def poll(self, records: int, size: float, seconds: float) -> LiveBlock:
        """Of the stream's block, with what the formats found; see `records.live.LiveReader`."""
        found: LiveBlock = self._reader.poll(records, size, seconds)
        try:
            return LiveBlock(self.opened(found.block), found.position)
        except BaseException:
            found.block.lease.release()
            raise

    def commit(self, position: Positions) -> None:
        """The stream's."""
        self._reader.commit(position)


# Members of single files: their bytes, their path, and the label where there is one.


BYTES, PATH = "bytes", "path"


class FileMembers(MemberSource):
    """Files of a list with the members that were asked for. See `records.members.Members.giving`.

    Raises ConfigError for a member that no file has, and for an image made of a path or a label.
    """

    def __init__(
        self, files: Source, paths: list[str], labels: Int64s | None, image: str | None, members: tuple[str, ...]
    ) -> None:
        super().__init__(files, image, members)
        known = (BYTES, PATH) if labels is None else (BYTES, PATH, LABEL)
        told = "a file's members are"
        self.asked = {name: foremost(name, known, told) for name in members}
        if image is not None and foremost(image, known, told) != BYTES:
            msg = f"member {image!r}: an image is made of a file's {BYTES!r}; write Image({BYTES!r})"
            raise ConfigError(msg)
        self.paths, self.labels = paths, labels
        self.opens = image is not None or BYTES in self.asked.values()
        self.with_image = image is not None

    def _opened(self, slabs: Slabs, stop: threading.Event) -> Reader:
        return _FileReader(self, slabs, stop)


class _FileReader(MemberReader):
    """Opens a file only where its bytes are asked for."""

    def __init__(self, of: FileMembers, slabs: Slabs, stop: threading.Event) -> None:
        super().__init__("FileList", len(of.paths), slabs, stop)
        self._of = of

    def _fill(self, block: Block, rows: Int64s) -> None:
        of, paths = self._of, [self._of.paths[row] for row in rows.tolist()]
        members: dict[str, Any] = {PATH: paths, LABEL: None if of.labels is None else of.labels[rows]}
        if of.opens:
            members[BYTES] = [self._loaded(path, block, k) for k, path in enumerate(paths)]
        if of.with_image:
            block.payloads[:] = [view or memoryview(b"") for view in members[BYTES]]
        block.fields.update({name: members[member] for name, member in of.asked.items()})
