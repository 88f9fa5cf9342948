"""BadRecords: the user's choice of what is done with records that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dali_feed.checks import whole
from dali_feed.errors import ConfigError
from dali_feed.quarantine.letters import DeadLetters

__all__ = ["BadRecords"]


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
    dead_letter  where bad records are kept, once per record, epoch and rank: a `DeadLetterFolder` or a
                 `DeadLetterTopic` of `dali_feed.external_sources`; None: nowhere
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
                "BadRecords(dead_letter=...): must be a DeadLetterFolder, a DeadLetterTopic or None;"
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
