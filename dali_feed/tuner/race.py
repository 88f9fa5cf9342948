"""Two tunings against each other, in turns, so that a machine's good and bad moments are not taken for a gain.

The law: a tuning wins only where each of its turns was faster than each of the other's, by more than the spread of
turns of one and the same tuning, and by 2 % at least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from dali_feed.errors import ConfigError
from dali_feed.options import Tuning

__all__ = ["Trial", "Turn", "changes", "race"]

Turn = Callable[[Tuning], float]  # samples per second of one turn; ConfigError where that tuning cannot be
PAIRS, AGAIN = 2, 3  # turns of each; by chance one is ahead in all of two turns each a sixth of the time
LEAST = 0.02  # gain that is worth a line in a program


@dataclass(frozen=True, slots=True)
class Trial:
    """What a race gave.

    before, tried  the tunings
    rates          samples per second of each turn: before, tried, before, tried; () where `tried` cannot be
    why            why it cannot be; "" where it can
    """

    before: Tuning
    tried: Tuning
    rates: tuple[float, ...]
    why: str = ""

    @property
    def rate(self) -> float:
        """Samples per second with what was tried, the mean of its turns; 0 where it cannot be."""
        return _mean(self.rates[1::2])

    @property
    def rate_before(self) -> float:
        """Samples per second without."""
        return _mean(self.rates[::2])

    @property
    def gain(self) -> float:
        """How much faster, as a share: 0.1 is a tenth."""
        return self.rate / self.rate_before - 1 if self.rates else 0.0

    @property
    def spread(self) -> float:
        """How far turns of one and the same tuning lay apart, as a share: the larger of the two."""
        return max(_apart(self.rates[::2]), _apart(self.rates[1::2])) if self.rates else 0.0

    @property
    def kept(self) -> bool:
        """Whether it won."""
        apart = bool(self.rates) and min(self.rates[1::2]) > max(self.rates[::2])
        return apart and self.gain > self.spread and self.gain >= LEAST

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that differ."""
        return tuple(changes(self.before, self.tried))


def race(before: Tuning, tried: Tuning, turn: Turn) -> Trial:
    """Both, in turns: two each, and one more where the second says that `tried` wins. Raises as `turn(before)` does."""
    trial = Trial(before, tried, ())
    while len(trial.rates) < 2 * PAIRS or (trial.kept and len(trial.rates) < 2 * AGAIN):
        without = turn(before)
        try:
            trial = Trial(before, tried, (*trial.rates, without, turn(tried)))
        except ConfigError as error:
            return Trial(before, tried, (), str(error))
    return trial


def changes(before: Tuning, after: Tuning) -> dict[str, Any]:
    """The fields that differ, as they are in `after`."""
    values = {each.name: getattr(after, each.name) for each in fields(Tuning)}
    return {name: value for name, value in values.items() if value != getattr(before, name)}


def _mean(rates: tuple[float, ...]) -> float:
    return sum(rates) / max(1, len(rates))


def _apart(rates: tuple[float, ...]) -> float:
    return (max(rates) - min(rates)) / _mean(rates)
