"""What going over a source finds: counts, and of each kind of fault the first places."""

from __future__ import annotations

from dataclasses import dataclass, field

from dali_feed.quarantine.letters import Letter
from dali_feed.records.tally import kind_of

__all__ = ["Kind", "Report"]

FIRST = 3  # places kept of each kind of fault
KINDS = 100  # kinds of faults kept apart
OTHER = "other reasons"


@dataclass(slots=True)
class Kind:
    """Faults of one kind: how many, and (sample, where, reason) of the first of them."""

    count: int = 0
    first: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, other: Kind) -> None:
        """Take in another part's."""
        self.count += other.count
        self.first = sorted([*self.first, *other.first])[:FIRST]


@dataclass(slots=True)
class Report:
    """What was found.

    records, absent  positions that hold a record, and those that hold none
    labelled         good records that have a label
    size             bytes of all payloads
    kinds            the faults, by kind
    letters          of bad records, where they are wanted
    """

    records: int = 0
    absent: int = 0
    labelled: int = 0
    size: int = 0
    kinds: dict[str, Kind] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)

    @property
    def bad(self) -> int:
        """Records that cannot be used."""
        return sum(kind.count for kind in self.kinds.values())

    def blame(self, sample: int, where: str, reason: str) -> None:
        """Count a bad record."""
        self._of(kind_of(reason)).add(Kind(1, [(sample, where, reason)]))

    def add(self, other: Report) -> None:
        """Add another part's report, without its dead letters."""
        self.records += other.records
        self.absent += other.absent
        self.labelled += other.labelled
        self.size += other.size
        for name, kind in other.kinds.items():
            self._of(name).add(kind)

    def _of(self, name: str) -> Kind:
        return self.kinds.setdefault(name if len(self.kinds) < KINDS or name in self.kinds else OTHER, Kind())
