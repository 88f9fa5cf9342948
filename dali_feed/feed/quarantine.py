"""Quarantine: bad records are counted, told, and held to a budget."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dali_feed.errors import BadRecordError, BadRecordLimitError
from dali_feed.letters import Stage
from dali_feed.options import BadRecords

__all__ = ["Fault", "Quarantine"]

log = logging.getLogger("dali_feed")
KEPT = 100
LOGGED = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """A record that cannot be used: its sample id, why, who said so, and its payload where that lies in memory."""

    sample: int
    reason: str
    stage: Stage
    payload: memoryview | None


class Quarantine:
    """The bad records of one epoch on one rank. A record counts once, however many slots it stood in."""

    def __init__(self, policy: BadRecords, slots: int) -> None:
        self._policy = policy
        self._allowed = policy.allowed(slots)
        self._slots = slots
        self._seen: set[int] = set()
        self.recent: deque[tuple[str, str]] = deque(maxlen=KEPT)

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, sample: int, where: str, reason: str, post: Callable[[], None] = lambda: None) -> None:
        """Take a record in and, if it is new, `post` it. Raises BadRecordError or BadRecordLimitError by the policy."""
        if sample in self._seen:
            return
        self._seen.add(sample)
        self.recent.append((where, reason))
        post()
        if self._policy.action == "raise":
            raise BadRecordError(where, reason)
        if len(self._seen) <= LOGGED:
            log.warning("bad record replaced: %s: %s", where, reason)
        if self._allowed is not None and len(self._seen) > self._allowed:
            shown = "; ".join(f"{w}: {r}" for w, r in list(self.recent)[-5:])
            msg = (
                f"bad records: at most {self._allowed} of this epoch's {self._slots} slots may be bad"
                f" (limit={self._policy.limit!s}); found {len(self._seen)}, the last of them {shown}."
                " Look at the source, or raise BadRecords(limit=...)"
            )
            raise BadRecordLimitError(msg, tuple(self.recent))
