"""What of a source's records becomes a sample: which members, under which suffixes.

The law: nothing that a record has is left out unless the user says so; and what cannot be written costs its record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from dali_feed.errors import ConfigError, FormatError
from dali_feed.external_sources import ArrowRows, FileList, ShardSet
from dali_feed.packing.chosen import Chosen
from dali_feed.packing.keys import Keys, keys_of
from dali_feed.packing.values import IMAGES, as_file, ending_of, plain_suffix
from dali_feed.records.members import Members
from dali_feed.records.source import LABEL, Block, Source, unpack_id

__all__ = ["Contents", "Sample", "contents_of", "each_row"]

File = tuple[str, bytes | memoryview]
Change = Callable[[list[File]], list[File]]
_T = TypeVar("_T")
_PAYLOAD = "image"  # of a source that can give no members


class Sample(NamedTuple):
    """A key, and its files as (suffix, bytes)."""

    key: str
    files: list[File]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A member, and the suffix that it is to have; None: by what it is. `main`: it is the payload."""

    name: str
    suffix: str | None = None
    main: bool = False


@dataclass(frozen=True)
class Contents:
    """A source whose blocks are made into samples. Pure: threads may share it.

    source    gives the members that are wanted
    changes   what is done to a sample's files before they are written, in this order
    fallback  suffix of payloads whose first bytes say nothing
    """

    source: Source
    asked: tuple[_Asked, ...]
    keys: Keys
    changes: tuple[Change, ...] = ()
    fallback: str = "bin"
    files: FileList | None = None
    _paths: list[str] = field(default_factory=list, compare=False, repr=False)

    def told(self) -> dict[str, Any]:
        """All that decides what is written, as plain JSON."""
        members = [[each.name, each.suffix] for each in self.asked]
        changes = [getattr(change, "told", getattr(change, "__qualname__", repr(change))) for change in self.changes]
        return {"members": members, "keys": self.keys.told, "changes": changes}

    def samples(self, block: Block, first: int) -> Iterator[Sample | str | None]:
        """Of each row a sample, why there is none, or None where the position holds no record.

        first  number of the block's first record in the source's line
        """
        return each_row(block, lambda row, payload: self._sample(block, row, payload, first + row))

    def kind_of(self, block: Block) -> str | None:
        """The suffix of the first payload of a block that says what it is."""
        for each in self.asked:
            for value in self._column(block, each.name) if each.main else ():
                if isinstance(value, bytes | memoryview) and (ending := ending_of(value)) in IMAGES:
                    return ending
        return None

    def _column(self, block: Block, name: str) -> Any:
        return block.fields.get(name, block.payloads)

    def _sample(self, block: Block, row: int, payload: memoryview, number: int) -> Sample | str:
        partition, position = unpack_id(int(block.ids[row]))
        try:
            files: list[File] = []
            for each in self.asked:
                value = block.fields[each.name][row] if each.name in block.fields else payload
                if isinstance(value, dict) and each.suffix is None and each.name.endswith(".*"):
                    files += _headers(value)
                elif value is not None:
                    suffix = each.suffix or self._by_path(each, position)
                    files.append(as_file(each.name, value, suffix, each.main, self.fallback))
            for change in self.changes:
                files = change(files)
            if not files:
                return "none of the members that are written"
            if len(found := {suffix.lower() for suffix, _ in files}) < len(files):
                suffixes = [suffix.lower() for suffix, _ in files]
                twice = next(suffix for suffix in found if suffixes.count(suffix) > 1)
                return f"two of its members would both be .{twice}; say which by members="
        except (ConfigError, MemoryError):
            raise
        except FormatError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  whatever a change raises is about this record
            return f"{type(error).__name__}: {error}"
        return Sample(self.keys.of(partition, position, number), files)

    def _by_path(self, each: _Asked, position: int) -> str | None:
        """A single file keeps its ending."""
        if self.files is None or not each.main:
            return None
        return os.path.splitext(self._paths[position])[1].lower().lstrip(".") or None  # noqa: PTH122


def contents_of(source: Any, members: Mapping[str, str] | Sequence[str] | None, keys: str) -> Contents:
    """What becomes of a source's records.

    members  of the source, in order; or suffix -> member; None: all of them
    keys     see `keys.keys_of`

    Raises ConfigError for members that no record can have, and for a source that cannot give any.
    """
    given = _given(members)
    base = source.of if isinstance(source, Chosen) else source
    made = keys_of(base, keys)
    if base is not source:
        made = Chosen.keys(base, made)
    if not isinstance(base, Members) or getattr(getattr(base, "_options", None), "codec", None) is not None:
        if given:
            msg = f"{source!r}: members= needs a source that can give members; found {', '.join(a.name for a in given)}"
            raise ConfigError(msg)
        asked = (_Asked(_PAYLOAD, None, main=True), *(_Asked(name) for name in source.fields))
        return Contents(source, asked, made)
    asked = given or _all(base)
    names = tuple(dict.fromkeys(each.name for each in asked))
    files = base if isinstance(base, FileList) else None
    return Contents(source.giving(None, names), asked, made, files=files, _paths=[] if files is None else files.paths)


def _given(members: Mapping[str, str] | Sequence[str] | None) -> tuple[_Asked, ...]:
    if members is None:
        return ()
    if isinstance(members, str) or not members:
        msg = f"members: must be names of members, or a mapping of suffixes to them; found {members!r}"
        raise ConfigError(msg)
    if isinstance(members, Mapping):
        return tuple(_Asked(name, suffix.strip(".")) for suffix, name in members.items())
    return tuple(_Asked(name, None, main=name in ("bytes", "value", "image")) for name in members)


def _all(source: Any) -> tuple[_Asked, ...]:
    """All members of a source. Of a topic its records' own and all headers, whichever a record has."""
    if isinstance(source, FileList):
        return (_Asked("bytes", None, main=True), *(() if source.labels is None else (_Asked(LABEL),)))
    names = [member.name for member in source.members()]
    if isinstance(source, ShardSet):
        return tuple(_Asked(name, name) for name in names)
    if {"value", "timestamp"} <= set(names) and hasattr(source, "without_codec"):
        return _Asked("value", None, main=True), _Asked("key"), _Asked("timestamp"), _Asked("headers.*")
    whole = [name for name in names if name.rpartition(".")[0] not in names]  # a struct's parts come with it
    image, texts = getattr(source, "_image", None), _texts(source)
    return tuple(_Asked(name, texts.get(name) if name != image else None, main=name == image) for name in whole)


def _texts(source: Any) -> dict[str, str]:
    """The suffixes of a table's columns of text, whose values come as bytes."""
    if not isinstance(source, ArrowRows):
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


def each_row(block: Block, make: Callable[[int, memoryview], _T | str]) -> Iterator[_T | str | None]:
    """Of each row what is made of it, or why there is none; None where the position holds no record."""
    for row, payload in enumerate(block.payloads):
        if row in block.faults:
            yield block.faults[row]
        elif payload is None:
            yield None
        else:
            yield make(row, payload)
