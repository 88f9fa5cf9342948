"""Bad records: what the user wants done with them, their count and limit, and where their reasons come from."""

from __future__ import annotations

import bisect
import functools
import logging
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from dali_feed.checks import whole
from dali_feed.dead_letters import DeadLetters
from dali_feed.errors import BadRecordError, BadRecordLimitError, ConfigError
from dali_feed.records.source import Stage

log = logging.getLogger("dali_feed")
KEPT = 100
LOGGED = 20
REMEMBERED = 10_000  # bad records of a stream
_CALL = "__call__"


@dataclass(frozen=True, slots=True)
class BadRecords:
    """How many records may be bad, and what happens to them.

    action       "replace": another good record that is in memory takes its place in the batch; "raise": a
                 BadRecordError
    limit        how many of any `window` samples in a row may be bad: an int, or an exact Fraction; None: any number.
                 One more ends the run with a BadRecordLimitError. Kafka offsets that hold no record are replaced too,
                 and do not count.
    floor        so many may be bad even if a Fraction allows fewer: a hundredth of 50 images is none. Fraction(0) still
                 allows none; for an int the floor has no effect
    window       the limit holds for so many samples in a row, as one rank gets them; None: for its whole epoch. A
                 resumed run counts from where it resumes
    dead_letter  where bad records are kept, once per record, epoch and rank: a `DeadLetterFolder` or a `Producer` of
                 `dali_feed.external_sources`; None: nowhere
    """

    limit: int | Fraction | None = Fraction(1, 100)
    action: Literal["replace", "raise"] = "replace"
    dead_letter: DeadLetters | None = None
    window: int | None = None
    floor: int = 3

    def __post_init__(self) -> None:
        if self.action not in ("replace", "raise"):
            msg = f'BadRecords(action=...): must be "replace" or "raise"; found {self.action!r}'
            raise ConfigError(msg)
        if self.dead_letter is not None and not callable(getattr(self.dead_letter, "writer", None)):
            msg = (
                "BadRecords(dead_letter=...): must be a DeadLetterFolder, a Producer or None;"
                f" found {self.dead_letter!r}"
            )
            raise ConfigError(msg)
        if self.window is not None:
            whole("BadRecords(window=...) other than None", self.window, 1)
        whole("BadRecords(floor=...)", self.floor, 0)
        if self.limit is None:
            return
        if isinstance(self.limit, Fraction):
            if not 0 <= self.limit <= 1:
                msg = f"BadRecords(limit=...): a Fraction must lie in 0..1; found {self.limit}"
                raise ConfigError(msg)
            return
        if isinstance(self.limit, float | str):
            msg = (
                "BadRecords(limit=...): must be a number of records or an exact share, Fraction(1, 100) for one in a"
                f" hundred; found {self.limit!r}"
            )
            raise ConfigError(msg)
        whole("BadRecords(limit=...) other than a Fraction or None", self.limit, 0)

    def allowed(self, slots: int) -> int | None:
        """How many of `slots` samples in a row may be bad; None: any number."""
        if isinstance(self.limit, Fraction) and self.limit:
            return max(self.floor, int(self.limit * slots))
        return None if self.limit is None else int(self.limit)


@dataclass(frozen=True, slots=True)
class BadRecord:
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


def place_of(error: BaseException, function: Any) -> str:
    """`file:line in name` of the user's `function`, which this frame called: where it raised, or else where it begins.

    The innermost frame of the file that the function is in, for what it calls of others is not the user's to mend.
    Empty where that is not Python.
    """
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(getattr(type(function), _CALL, None), "__code__", None)
    if code is None:
        return ""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)][1:]
    inside = [(each, line) for each, line in frames if each.co_filename == code.co_filename]
    place, line = inside[-1] if inside else (code, code.co_firstlineno)
    return f"{place.co_filename}:{line} in {place.co_name}"
