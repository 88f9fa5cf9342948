"""Which records of a run are settled: those before a mark are counted; nothing behind it is.

The law of this file: the mark passes a record once it was delivered, refused for good, or found not to be there, and
all before it were. So a run that goes on at the mark loses none. Counts are of what lies before the mark, so they are
those of one run, however often it was killed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from dali_feed.records.tally import Tally

__all__ = ["Settled"]


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
