"""Members: the named pieces of a record, and what a source says and gives of them.

A tar sample's members are its files by suffix, a Kafka record's are `value`, `key`, `timestamp` and its headers, a
table row's are its columns. A name may list several, "jpg;png": the foremost that a record has counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dali_feed.records.source import Source

__all__ = ["Member", "Members", "alternatives"]


@dataclass(frozen=True, slots=True)
class Member:
    """A member, as a look at some records finds it.

    share  of those records that have it, 0..1
    bytes  mean size; 0 where it is a value and no bytes
    """

    name: str
    share: float
    bytes: int


@runtime_checkable
class Members(Protocol):
    """A source that can give any of its records' members, and nothing but those that it is asked for."""

    def members(self) -> tuple[Member, ...]:
        """What its records have, in a stable order."""
        ...

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same records with other members.

        Its payloads are the member `image`, empty views where that is None; its `fields` are `members`: lists of views
        of the slab, None where a record has none of it, or values where the source has them. Snapshot, ids and
        coordinates are the same. Raises ConfigError for a member that no record can have.
        """
        ...


def alternatives(name: str) -> tuple[str, ...]:
    """The members that a name lists, the foremost first."""
    return tuple(filter(None, (part.strip().lstrip(".") for part in name.split(";"))))
