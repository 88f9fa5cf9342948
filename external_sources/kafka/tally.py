"""What became of the records of a run: those before a mark are settled, and counted; nothing behind it is.

The law of this file: the mark passes a record once it was delivered, refused for good, or found not to be there, and
all before it were. So a run that goes on at the mark loses none. Counts are of what lies before the mark, so they are
those of one run, however often it was killed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dali_feed.quarantine.reasons import kind_of

__all__ = ["Failure", "Settled", "Tally"]

SHOWN = 3  # places of each kind of failure
KINDS = 20  # of failures that are told apart
LETTERS = 300  # of one
OTHERS = "other reasons"


@dataclass(slots=True)
class Failure:
    """Records that were not written, for one reason: how many, and coordinates and reason of the first."""

    count: int = 0
    first: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """What became of records.

    records   that the broker has
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
        """Records that were not written."""
        return sum(each.count for each in self.failures.values())

    def fail(self, reason: str, where: str) -> None:
        """Count a failure."""
        alike = kind_of(reason)
        if alike not in self.failures and len(self.failures) >= KINDS:
            alike = OTHERS
        kind = self.failures.setdefault(alike, Failure())
        kind.count += 1
        if len(kind.first) < SHOWN:
            kind.first.append(f"{where}: {reason}"[:LETTERS])

    def add(self, other: Tally) -> None:
        """Count what another has counted."""
        self.records, self.size = self.records + other.records, self.size + other.size
        self.absent += other.absent
        for reason, kind in other.failures.items():
            mine = self.failures.setdefault(reason, Failure())
            mine.count += kind.count
            mine.first = (mine.first + kind.first)[:SHOWN]

    def told(self) -> dict[str, Any]:
        """As plain JSON."""
        failures = {reason: [kind.count, kind.first] for reason, kind in self.failures.items()}
        return {"records": self.records, "bytes": self.size, "absent": self.absent, "failures": failures}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Tally:
        """What `told` gave. Raises KeyError, TypeError or ValueError where it is not that."""
        failures = {
            str(reason): Failure(int(count), [str(where) for where in first])
            for reason, (count, first) in told["failures"].items()
        }
        return cls(int(told["records"]), int(told["bytes"]), int(told["absent"]), failures)


class Settled:
    """Records on their way, in the order of their numbers, and the mark. Used by one thread.

    where  coordinates of a record by its number
    """

    def __init__(self, mark: int, tally: Tally, where: Callable[[int], str]) -> None:
        self.tally = tally
        self.moved = time.monotonic()
        self._where = where
        self._next = mark
        self._waiting: deque[int] = deque()
        self._ended: dict[int, int | str | None] = {}

    @property
    def mark(self) -> int:
        """The first record that is not settled."""
        return self._waiting[0] if self._waiting else self._next

    def begin(self, number: int) -> None:
        """A record is on its way. Numbers grow; one that is left out is none of ours."""
        if not self._waiting:
            self.moved = time.monotonic()  # nobody was waited for before
        self._waiting.append(number)
        self._next = number + 1

    def end(self, number: int, outcome: int | str | None) -> None:
        """It was delivered (its payload's bytes), refused (the reason), or is not there (None)."""
        self.moved = time.monotonic()
        self._ended[number] = outcome
        while self._waiting and self._waiting[0] in self._ended:
            first = self._waiting.popleft()
            found = self._ended.pop(first)
            if found is None:
                self.tally.absent += 1
            elif isinstance(found, str):
                self.tally.fail(found, self._where(first))
            else:
                self.tally.records += 1
                self.tally.size += found

    def passed(self, number: int) -> None:
        """All before this number is somebody else's, or settled."""
        self._next = max(self._next, number)
