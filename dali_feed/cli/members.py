"""What members a source's records have: how many records have each, how large it is, and what it seems to be.

A look at some records. A member whose format is known is looked into: JSON in a tar sample, what --format says of a
topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dali_feed.cli.findings import Findings, size_of, spread
from dali_feed.cli.member_kinds import Guess, guess
from dali_feed.external_sources import Renamed, ShardSet
from dali_feed.formats.format import Format
from dali_feed.records.members import Members, alternatives
from dali_feed.records.source import Block, Snapshot, Source, unpack_id

__all__ = ["VALUE", "Seen", "members_seen"]

LOOKED_AT = 64  # records
MOST = 100  # members that are listed
VALUE = "value"  # of a topic's record; what its format finds there is called by its path alone


@dataclass(slots=True)
class Seen:
    """A member.

    count   records that have it, of `of`
    size    bytes of all of them; single numbers count none
    kinds   what it seems to be -> records
    inside  the member that it was found in, "" where it is one of the source's own
    """

    name: str
    inside: str = ""
    of: int = 0
    count: int = 0
    size: int = 0
    kinds: Counter[Guess] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Of the records, 0..1."""
        return self.count / max(1, self.of)

    @property
    def guess(self) -> Guess:
        """What most of them are."""
        return self.kinds.most_common(1)[0][0]

    def take(self, value: Any) -> None:
        """Note a record's."""
        self.count += 1
        if isinstance(value, bytes | memoryview | str):
            self.size += len(value)
        elif isinstance(value, np.ndarray):
            self.size += value.nbytes
        self.kinds[guess(self.name, value)] += 1


def members_seen(
    source: Source, snapshot: Snapshot, sample: int, formats: Mapping[str, Format], findings: Findings | None = None
) -> list[Seen]:
    """The members of up to 64 of its records, in the source's order, and behind each what a format finds in it.

    formats   what a member holds, where that was told
    findings  where the records go that it does not fit; None: nowhere

    Raises a SourceError where records cannot be read.
    """
    if not isinstance(source, Members):
        return []
    names = tuple(member.name for member in source.members() if _askable(member.name))[:MOST]
    reader = source.giving(None, names).reader()
    found = {name: Seen(f"headers.{name}" if VALUE in formats and _is_header(name) else name) for name in names}
    inside: dict[tuple[str, str], Seen] = {}  # a header may be called as what a format finds
    count = 0
    try:
        block = reader.read(spread(snapshot, min(sample, LOOKED_AT)))
        try:
            for row, payload in enumerate(block.payloads):
                if payload is None:
                    _note(findings, absent=1)
                elif (reason := block.faults.get(row)) is None:
                    count += 1
                    reason = _take(source, block, row, found, inside, formats)
                if payload is not None:
                    _note(findings, source, block, row, reason)
        finally:
            block.payloads.clear()
            block.lease.release()
    finally:
        reader.close()
    for seen in (*found.values(), *inside.values()):
        seen.of = count
    there = [(name, seen) for name, seen in found.items() if seen.count]
    return [each for name, seen in there for each in (seen, *(one for (of, _), one in inside.items() if of == name))][
        :MOST
    ]


def _askable(name: str) -> bool:
    """Whether a column may have it as its member: a ";" stands between several."""
    return alternatives(name) == (name,)


def _is_header(name: str) -> bool:
    """Whether the short name of a topic's member is a header's, which gets its full one beside a format."""
    return name not in (VALUE, "key", "timestamp") and not name.startswith("headers.")


def _take(
    source: Source,
    block: Block,
    row: int,
    found: dict[str, Seen],
    inside: dict[tuple[str, str], Seen],
    formats: Mapping[str, Format],
) -> str | None:
    """Note a record's members; why a format does not fit, where one was told, or None."""
    reason = None
    for name, values in block.fields.items():
        value = values[row]
        if value is None:
            continue
        found[name].take(value)
        form = formats.get(name) or (source.form_of(name) if isinstance(source, ShardSet | Renamed) else None)
        if form is None or not isinstance(value, memoryview | bytes):
            continue
        try:
            members = form.members(value)
        except Exception as error:  # noqa: BLE001 - a format may raise anything
            reason = str(error) if name in formats else None
            continue
        for path, each in _paths(name, members):
            if each is not None and _askable(path) and len(inside) < 10 * MOST:
                inside.setdefault((name, path), Seen(path, name)).take(each)
    return reason


def _paths(name: str, inside: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Members of a member by the names that columns have for them."""
    for path, value in inside.items():
        if path != "$":
            own = path in ("value", "key", "timestamp") or path.startswith("headers.")  # of a topic's record
            yield path if name == VALUE and not own else f"{name}:{path}", value


def _note(
    findings: Findings | None,
    source: Source | None = None,
    block: Block | None = None,
    row: int = 0,
    reason: str | None = None,
    *,
    absent: int = 0,
) -> None:
    """A record, or an absent one, among the findings."""
    if findings is None:
        return
    findings.rows += 1
    findings.absent += absent
    if source is None or block is None:
        return
    findings.payloads.append(size_of(block, row))
    if reason is not None:
        findings.bad.append((source.where(*unpack_id(int(block.ids[row]))), reason))
