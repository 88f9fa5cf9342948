"""What of a source's records becomes a sample: which members, under which suffixes.

The law: nothing that a record has is left out unless the user says so; and what cannot be written costs its record.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dali_feed.columns.image import Image
from dali_feed.columns.request import Request
from dali_feed.errors import ConfigError, FormatError
from dali_feed.external_sources import FileList, ShardSet, Table
from dali_feed.external_sources.tar import folded
from dali_feed.formats.example import Example
from dali_feed.packing.keys import Keys, is_log, keys_of
from dali_feed.records.source import LABEL, Block, Source, unpack_id

# A member of a record as a file in a tar: its suffix, and its bytes.
#
# The law: bytes stay as they are. A number becomes decimal text, a text UTF-8, a list or an array `.npy`, anything else
# JSON; equal values make equal bytes.


CLASS = "cls"  # where webdataset's users, and ShardSet, look for a label
IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "avif", "ppm", "pgm")
_MAGIC = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"\x93NUMPY", "npy"),
)
_SHORT = (  # two letters, with which a text may begin: so more of the header is asked for
    (re.compile(rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0", re.DOTALL), "bmp"),
    (re.compile(rb"P6\s+[#\d]"), "ppm"),
    (re.compile(rb"P5\s+[#\d]"), "pgm"),
)
_MAIN = frozenset(("image", "img", "picture", "value", "bytes", "payload", LABEL))
_LISTS = (list, tuple, np.ndarray)
_NUMBERS = (bool, int, float, np.generic)
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")


def ending_of(data: bytes | memoryview, *, main: bool = True) -> str | None:
    """The suffix of what bytes begin with; None where they say nothing. BMP and PNM only of a payload (`main`)."""
    head = bytes(data[:18])
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[4:12] in (b"ftypavif", b"ftypavis"):
        return "avif"
    known = next((ending for magic, ending in _MAGIC if head.startswith(magic)), None)
    short = next((ending for begin, ending in _SHORT if begin.match(head)), None) if main else None
    return known or short


def plain_suffix(name: str) -> str:
    """A member's name as a suffix: no slash, no blank, no dot at its ends."""
    return _ODD.sub("_", name).strip(".") or "_"


def as_file(name: str, value: Any, suffix: str | None, main: bool, fallback: str) -> tuple[str, bytes | memoryview]:
    """(suffix, bytes) of a member's value; `suffix` where it is given, else by what it is.

    main      it is the record's payload, whose suffix is its kind alone; another's is `name.kind`
    fallback  suffix of a payload whose first bytes say nothing

    Raises FormatError for a value that no file can hold.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value) if isinstance(value, bytearray) else value
        return suffix or _suffix(name, data, main or name in _MAIN, fallback), data
    if isinstance(value, np.generic):
        value = value.item()
    stem = plain_suffix(name)
    if isinstance(value, bool | int | float):
        text = str(int(value)) if isinstance(value, bool | int) else repr(value)
        return suffix or (CLASS if name == LABEL else f"{stem}.txt"), text.encode()
    if isinstance(value, str):
        return suffix or (stem if stem in ("txt", "text") else f"{stem}.txt"), value.encode("utf-8", "surrogateescape")
    if isinstance(value, list | tuple | np.ndarray):
        if (array := numbers_of(value)) is not None:
            return suffix or f"{stem}.npy", _npy(array)
        types = leaf_types(value)
        if any(issubclass(each, bytes | bytearray | memoryview) for each in types):
            rule = "a list of bytes has no file in a tar; name the members to write by members="
            raise FormatError(f"member {name!r}: {rule}")
        if suffix is not None and suffix.lower().rpartition(".")[2] == "npy":
            of = " and ".join(sorted(each.__name__ for each in types))
            what = f"found a list of {of}, or lists of different lengths; give it a suffix that ends in .json"
            raise FormatError(f"member {name!r}: a file .{suffix} must hold an array of numbers; {what}")
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=_plain)
        return suffix or f"{stem}.json", text.encode()
    except (TypeError, ValueError) as error:
        raise FormatError(f"member {name!r}: {error}") from error


def leaf_types(value: Any) -> set[type]:
    """The types of what lists in lists, or an array, hold. Level by level, without a step of Python per number."""
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return {value.dtype.type} if value.size else set()
    if not isinstance(value, _LISTS):
        return {type(value)}
    level: Any = list(value.flat) if isinstance(value, np.ndarray) else value
    types = set(map(type, level))
    while types and types <= {list, tuple}:
        level = list(chain.from_iterable(level))
        types = set(map(type, level))
    nested = {each for each in types if issubclass(each, _LISTS)}
    if nested:  # lists beside numbers, or arrays in a list
        types = (types - nested).union(*(leaf_types(each) for each in level if isinstance(each, _LISTS)))
    return types


def numbers_of(value: Any) -> np.ndarray[Any, Any] | None:
    """A number, a list or an array as an array of numbers; None where NumPy would make others of what it holds."""
    whole = isinstance(value, np.ndarray | np.generic)
    # before NumPy has it: an array of texts has room for the longest of them everywhere
    if not (whole or _adds_up(value) or all(issubclass(each, _NUMBERS) for each in leaf_types(value))):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    if not whole and array.size and array.dtype.kind == "f" and _whole_numbers(value):
        return None  # 64 bits do not hold them
    return array if array.dtype.kind in "biuf" else None


def _adds_up(value: Any) -> bool:
    """Whether a list that begins with a number is known to hold numbers alone: a sum is faster than all their types."""
    if not isinstance(value, list | tuple) or not value or type(value[0]) not in (int, float):
        return False
    try:
        sum(value)
    except Exception:  # noqa: BLE001  a text or a list has no sum with a number; the types say what there is
        return False
    return True


def _whole_numbers(value: Any) -> bool:
    """Whether all that lists hold are whole numbers; mostly the first says that they are not."""
    first = value
    while isinstance(first, list | tuple) and first:
        first = first[0]
    return type(first) is not float and all(issubclass(each, int) for each in leaf_types(value))


def _plain(value: Any) -> Any:
    """What JSON writes of NumPy's."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _suffix(name: str, data: bytes | memoryview, main: bool, fallback: str) -> str:
    ending = ending_of(data, main=main)
    if main:
        return (CLASS if name == LABEL else fallback) if ending is None else ending
    stem = plain_suffix(name)
    return stem if ending is None or stem.lower().rpartition(".")[2] == ending else f"{stem}.{ending}"


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, np.ascontiguousarray(array), allow_pickle=False)
    return out.getvalue()


File = tuple[str, bytes | memoryview]
Change = Callable[[list[File]], list[File]]
_T = TypeVar("_T")
_CODED = "codec:"  # how a topic's codec calls what it makes
_LONGEST = 20  # digits of a whole number


class Sample(NamedTuple):
    """A key, and its files as (suffix, bytes)."""

    key: str
    files: list[File]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A member, and the suffix that it is to have; None: by what it is.

    main    it is the payload
    member  what the source is asked for; "": the name
    """

    name: str
    suffix: str | None = None
    main: bool = False
    member: str = ""

    @property
    def read(self) -> str:
        """What the source is asked for."""
        return self.member or self.name


@dataclass(frozen=True)
class Samples:
    """A source whose blocks are made into samples. Pure: threads may share it.

    source    whose records they are; blocks of it have `members`
    changes   what is done to a sample's files before they are written, in this order
    fallback  suffix of payloads whose first bytes say nothing
    paths     of a source whose records are files theirs, by position
    named     whether the user has given suffixes
    inside    of a source whose records are Examples, all features of which are written: what reads them
    """

    source: Source
    wanted: tuple[_Wanted, ...]
    keys: Keys
    changes: tuple[Change, ...] = ()
    fallback: str = "bin"
    paths: Sequence[str] = ()
    named: bool = False
    inside: Example | None = None

    @property
    def members(self) -> tuple[str, ...]:
        """What the source is asked for."""
        if self.inside is not None and self.source.inner is not None:
            return (self.source.inner,)
        return tuple(dict.fromkeys(each.read for each in self.wanted))

    def to_json(self) -> dict[str, Any]:
        """All that decides what is written, as plain JSON."""
        members = [[each.name, each.suffix] for each in self.wanted]
        changes = [getattr(change, "facts", repr(change)) for change in self.changes]
        return {"members": members, "keys": self.keys.kind, "changes": changes}

    def samples(self, block: Block, first: int) -> Iterator[Sample | str | None]:
        """Of each row a sample, why there is none, or None where the position holds no record.

        first  number of the block's first record in the source's line
        """
        return each_row(block, lambda row: self._sample(block, row, first + row))

    def kind_of(self, block: Block) -> str | None:
        """The suffix of the first payload of a block that says what it is."""
        for row in range(len(block.ids)):
            with suppress(FormatError):  # it is counted where it is written
                for each, value in self._members(block, row):
                    if each.main and isinstance(value, bytes | memoryview) and (ending := ending_of(value)) in IMAGES:
                        return ending
        return None

    def values(self, block: Block, image: str, label: str) -> Iterator[dict[str, Any] | str | None]:
        """Of each row its members as values with a type, why there are none, or None where there is no record.

        image, label  what those are called, where the user has given no names
        """

        def named(each: _Wanted, member: str) -> str:
            if self.named and each.suffix is not None:
                return each.suffix
            if each.main or member.lower() in IMAGES:
                return image
            return label if member.lower() in (CLASS, LABEL) else member

        def row(k: int) -> dict[str, Any] | str:
            named_values: dict[str, Any] = {}
            try:
                every = list(self._members(block, k))
            except FormatError as error:
                return str(error)
            for each, value in every:
                headers = isinstance(value, dict) and each.name.endswith(".*")
                for member, one in (value if headers else {each.name: value}).items():
                    if headers and one is None:
                        continue
                    name = named(each, member)
                    if name in named_values:
                        return f"two of its members would both be {name!r}; say which by members="
                    try:
                        named_values[name] = _typed(member, one)
                    except FormatError as error:
                        return str(error)
            return named_values or "none of the members that are written"

        return each_row(block, row)

    def _members(self, block: Block, row: int) -> Iterator[tuple[_Wanted, Any]]:
        """What a record has of the members that are wanted."""
        if self.inside is not None:
            features = self.inside.members(block.values[self.members[0]][row])
            more = [_Wanted(name) for name in features.keys() - {each.name for each in self.wanted}]
            for each in (*self.wanted, *sorted(more, key=lambda each: each.name)):
                if (value := features.get(each.name)) is not None:
                    yield each, value
            return
        for each in self.wanted:
            value = block.values[each.read][row]
            if value is not None:
                yield each, value

    def _sample(self, block: Block, row: int, number: int) -> Sample | str:
        partition, position = unpack_id(int(block.ids[row]))
        try:
            files: list[File] = []
            for each, value in self._members(block, row):
                if isinstance(value, dict) and each.suffix is None and each.name.endswith(".*"):
                    files += _headers(value)
                else:
                    suffix = each.suffix or (self._by_path(position) if each.main else None)
                    files.append(as_file(each.name, value, suffix, each.main, self.fallback))
            for change in self.changes:
                files = change(files)
            if not files:
                return "none of the members that are written"
            if len(different := {folded(suffix) for suffix, _ in files}) < len(files):
                suffixes = [folded(suffix) for suffix, _ in files]
                twice = next(suffix for suffix in different if suffixes.count(suffix) > 1)
                return f"two of its members would both be .{twice}; say which by members="
        except (ConfigError, MemoryError):
            raise
        except FormatError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  whatever a change raises is about this record
            return f"{type(error).__name__}: {error}"
        return Sample(self.keys.of(partition, position, number), files)

    def _by_path(self, position: int) -> str | None:
        """A single file keeps its ending."""
        if not self.paths:
            return None
        return os.path.splitext(self.paths[position])[1].lower().lstrip(".") or None  # noqa: PTH122


def contents_of(source: Source, members: Mapping[str, str] | Sequence[str] | None, keys: str) -> Samples:
    """What becomes of a source's records.

    members  of the source, in order; or suffix -> member; None: all of them
    keys     see `keys.keys_of`

    Raises ConfigError for members that no record can have.
    """
    chosen, sample_keys, main = _chosen(members), keys_of(source, keys), _main(source)
    wanted = tuple(
        replace(each, member=source.image_of(each.name)) if each.name == main and not each.member else each
        for each in chosen or _all(source, main)
    )
    paths = source.paths if isinstance(source, FileList) else ()
    form = None if members is not None or source.inner is None else source.format_of(source.inner)
    inside = form if isinstance(form, Example) and not is_log(source) else None  # a few records do not tell of all
    samples = Samples(source, wanted, sample_keys, paths=paths, named=isinstance(members, Mapping), inside=inside)
    Request(source, samples.members)
    return samples


def _main(source: Source) -> str | None:
    """The member that is a record's image, of sources that say so without a look at their files."""
    if source.any_names or isinstance(source, ShardSet | FileList) or is_log(source):
        return None
    if isinstance(source, Table):  # other columns of a table may be what a preset cannot hold
        return source.image
    try:
        images = [column for column in source.preset.values() if isinstance(column, Image)]
    except ConfigError:  # it has none
        return None
    return images[0].member if images else None


def _chosen(members: Mapping[str, str] | Sequence[str] | None) -> tuple[_Wanted, ...]:
    if members is None:
        return ()
    if isinstance(members, str) or not members:
        raise ConfigError(f"members: must be names of members, or a mapping of suffixes to them; found {members!r}")
    if isinstance(members, Mapping):
        return tuple(_Wanted(name, suffix.strip(".")) for suffix, name in members.items())
    return tuple(_Wanted(name, None, main=name in ("bytes", "value", "image")) for name in members)


def _all(source: Source, main: str | None) -> tuple[_Wanted, ...]:
    """All members of a source. Of a topic its records' own and all headers, or what its codec makes of them."""
    if isinstance(source, FileList):
        return (_Wanted("bytes", None, main=True), *(() if source.labels is None else (_Wanted(LABEL),)))
    if is_log(source) and source.can_have(f"{_CODED}image"):
        coded = source.preset.items()
        return tuple(_Wanted(name, None, isinstance(column, Image), column.member) for name, column in coded)
    if is_log(source):
        return _Wanted("value", None, main=True), _Wanted("key"), _Wanted("timestamp"), _Wanted("headers.*")
    names = [member.name for member in source.members()]
    if isinstance(source, ShardSet):
        if source.unnamed:
            raise _left_out(source, f"a file .{source.unnamed[0]}, which no column can name")
        return tuple(_Wanted(name, name) for name in names)
    whole = names
    if isinstance(source, Table):
        if source.others:
            raise _left_out(source, "column {!r} of {}".format(*next(iter(source.others.items()))))
        parents = {name: ".".join(leaf.path[:-1]) for name, leaf in source.leaves.items()}
        whole = [name for name in names if parents[name] not in parents]  # a struct's parts come with it
    texts = _texts(source)
    return tuple(_Wanted(name, texts.get(name) if name != main else None, main=name == main) for name in whole)


def _left_out(source: Source, what: str) -> ConfigError:
    """Of what no member is: it would be left out in silence."""
    rule = "all that a record has is packed unless members= says what is"
    return ConfigError(f"{source!r}: {rule}; found {what}, which cannot be; name the members to pack by members=")


def check_suffixes(contents: Samples) -> None:
    """Raise ConfigError for a suffix with which a file of a tar would be no sample's."""
    for each in contents.wanted:
        if each.suffix and not {"/", "\0"}.isdisjoint(each.suffix):
            rule = "a suffix must be what a file's name in a tar can end with, without a slash"
            raise ConfigError(f"members: {rule}; found {each.suffix!r}; give another one")


def _texts(source: Any) -> dict[str, str]:
    """The suffixes of columns of text of a table in memory, whose values come as bytes."""
    if not isinstance(source, Table) or not source.named:
        return {}
    from pyarrow import types

    kinds = {name: leaf.kind for name, leaf in source.leaves.items()}
    return {
        name: f"{plain_suffix(name)}.txt"
        for name, kind in kinds.items()
        if types.is_string(kind) or types.is_large_string(kind)
    }


def _headers(headers: Mapping[str, bytes]) -> Iterator[File]:
    """A record's headers; one whose name is taken keeps it behind `headers.`."""
    for name, value in headers.items():
        if value is not None:
            taken = name in ("key", "timestamp", "value", *IMAGES)
            yield as_file(f"headers.{name}" if taken else name, value, None, False, "bin")


def each_row(block: Block, make: Callable[[int], _T | str]) -> Iterator[_T | str | None]:
    """Of each row what is made of it, or why there is none; None where the position holds no record."""
    absent = set(block.absent_rows())
    for row in range(len(block.ids)):
        if row in block.faults:
            yield block.faults[row].reason
        elif row in absent:
            yield None
        else:
            yield make(row)


def _typed(member: str, value: Any) -> Any:
    """A value, for formats whose fields have a type. Of bytes it is what the member's name says: a number, a text."""
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, bytes | bytearray | memoryview):
        return value
    kind = member.lower().rpartition(".")[2]
    if kind in (CLASS, LABEL):
        text = bytes(value[: 4 * _LONGEST]).strip()
        if len(text) > _LONGEST or not text.removeprefix(b"-").isdigit():
            raise FormatError(f"member {member!r}: must be a whole number; found {text[:40]!r}")
        return int(text)
    if kind in ("txt", "text"):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"member {member!r}: must be UTF-8; {error}") from error
    return value
