"""Quarantine: bad records are counted, logged, and held to a limit."""

from __future__ import annotations

import bisect
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from dali_feed.errors import BadRecordError, BadRecordLimitError
from dali_feed.quarantine.letters import Stage
from dali_feed.quarantine.policy import BadRecords

__all__ = ["Fault", "Quarantine"]

log = logging.getLogger("dali_feed")
KEPT = 100
LOGGED = 20
REMEMBERED = 10_000  # bad records of a stream


@dataclass(frozen=True, slots=True)
class Fault:
    """A record that cannot be used: its sample id, why, which stage refused it, its payload if in memory."""

    sample: int
    reason: str
    stage: Stage
    payload: memoryview | None


class Quarantine:
    """The bad records of one epoch on one rank. A record counts once, at the slot where it was found bad first.

    Of an `endless` stream those of the last windows are remembered.
    """

    def __init__(self, policy: BadRecords, slots: int, *, endless: bool = False) -> None:
        self._policy = policy
        self._window = policy.window or slots
        self._allowed = policy.allowed(self._window)
        self._at: list[int] = []  # the slots of the bad ones, ascending
        self._seen: set[int] = set()
        self._endless, self._count = endless, 0
        self.recent: deque[tuple[str, str]] = deque(maxlen=KEPT)

    def __len__(self) -> int:
        return self._count

    def add(self, sample: int, slot: int, where: str, reason: str, post: Callable[[], None] = lambda: None) -> None:
        """Take a record in and, if it is new, `post` it. Raises BadRecordError or BadRecordLimitError by the policy.

        `slot` counts the slots that this rank has been given; batches come in order, the faults of one in any.
        """
        if sample in self._seen:
            return
        self._seen.add(sample)
        self._count += 1
        self.recent.append((where, reason))
        post()
        if self._policy.action == "raise":
            raise BadRecordError(where, reason)
        if self._endless and len(self._seen) > REMEMBERED:  # a record of a stream comes in one batch alone
            self._seen = {sample}
            del self._at[: bisect.bisect(self._at, slot - 2 * self._window)]
        if self._count <= LOGGED:
            log.warning("bad record replaced: %s: %s", where, reason)
        if self._allowed is not None and self._too_many(slot, self._allowed):
            shown = "; ".join(f"{w}: {r}" for w, r in list(self.recent)[-5:])
            msg = (
                f"bad records: at most {self._allowed} of {self._of()} slots may be bad"
                f" ({self._limit()}); found {self._found(slot)}, the last of them {shown}."
                " Look at the source, or raise BadRecords(limit=...)"
            )
            raise BadRecordLimitError(msg, tuple(self.recent))

    def _found(self, slot: int) -> int:
        """How many are bad in the window that ends with this slot; of an epoch all."""
        return bisect.bisect(self._at, slot) - bisect.bisect(self._at, slot - self._window)

    def _limit(self) -> str:
        """How the limit was given, for the message."""
        limit, floor = self._policy.limit, self._policy.floor
        by_floor = isinstance(limit, Fraction) and int(limit * self._window) < self._allowed == floor  # type: ignore[operator]
        return f"limit={limit!s}, floor={floor}" if by_floor else f"limit={limit!s}"

    def _of(self) -> str:
        return f"this epoch's {self._window}" if self._policy.window is None else f"any {self._window} successive"

    def _too_many(self, slot: int, allowed: int) -> bool:
        """Whether a window that this slot lies in holds more than `allowed`."""
        k = bisect.bisect(self._at, slot)
        self._at.insert(k, slot)
        firsts = range(max(0, k - allowed), min(k + 1, len(self._at) - allowed))
        return any(self._at[n + allowed] - self._at[n] < self._window for n in firsts)
