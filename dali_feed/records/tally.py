"""What became of the records of a run: how many are good, how many hold nothing, and which failed for which reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SHOWN = 3  # places of each kind of failure
KINDS = 100  # of failures that are told apart
LETTERS = 300  # of one
OTHERS = "other reasons"


def kind_of(reason: str) -> str:
    """A reason without what differs from record to record: numbers and quoted bytes."""
    plain = re.sub(r" \(starts with .*\)", "", reason, flags=re.DOTALL)
    plain = re.sub(r"b?\"[^\"]*\"|b?'[^']*'", "...", plain)
    return re.sub(r"\b[0-9a-fx]*\d[0-9a-fx]*\b", "N", plain)


@dataclass(slots=True)
class Failure:
    """Records that failed for one reason: how many, and coordinates and reason of the first."""

    count: int = 0
    first: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """What became of records.

    records   that a run wrote, or found to be good
    size      bytes of their values
    absent    positions of the source that hold no record
    failures  by reason: `count`, and in `first` coordinates and reason of the first
    """

    records: int = 0
    size: int = 0
    absent: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Records that were not written, or cannot be used."""
        return sum(each.count for each in self.failures.values())

    def fail(self, reason: str, where: str) -> None:
        """Count a failure."""
        failure = self._failure(kind_of(reason))
        failure.count += 1
        if len(failure.first) < SHOWN:
            failure.first.append(f"{where}: {reason}"[:LETTERS])

    def add(self, other: Tally) -> None:
        """Count what another has counted, of records that come after those of this one."""
        self.records, self.size = self.records + other.records, self.size + other.size
        self.absent += other.absent
        for reason, more in other.failures.items():
            failure = self._failure(reason)
            failure.count += more.count
            failure.first = (failure.first + more.first)[:SHOWN]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        failures = {reason: [kind.count, kind.first] for reason, kind in self.failures.items()}
        return {"records": self.records, "bytes": self.size, "absent": self.absent, "failures": failures}

    @classmethod
    def of(cls, counts: Mapping[str, Any]) -> Tally:
        """What `to_json` gave. Raises KeyError, TypeError or ValueError where it is not that."""
        failures = {
            str(reason): Failure(int(count), [str(where) for where in first])
            for reason, (count, first) in counts["failures"].items()
        }
        return cls(int(counts["records"]), int(counts["bytes"]), int(counts["absent"]), failures)

    def _failure(self, kind: str) -> Failure:
        known = kind in self.failures or len(self.failures) < KINDS
        return self.failures.setdefault(kind if known else OTHERS, Failure())
