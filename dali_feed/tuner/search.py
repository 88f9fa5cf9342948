"""The search: one field after another, a step up or down at a time, and no step is kept that did not win.

The law: it begins with the defaults, so what it ends with is them, or won a race against what won against them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dali_feed.options import Tuning
from dali_feed.tuner.ladders import Ladders
from dali_feed.tuner.race import Trial, Turn, changes, race

__all__ = ["Outcome", "best_of", "search"]

_ROUNDS = 2  # a field may pay only once another one has moved


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search ended with.

    start   the tuning that it began with
    trials  in order
    broken  whether somebody interrupted it
    """

    start: Tuning
    trials: tuple[Trial, ...]
    broken: bool = False

    @property
    def best(self) -> Tuning:
        """What the trials speak for."""
        return best_of(self.start, self.trials)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields in which that differs from the start."""
        return changes(self.start, self.best)

    @property
    def rate_before(self) -> float:
        """Samples per second of the start; 0 where nothing was measured."""
        return next((trial.rate_before for trial in reversed(self.trials) if trial.before == self.start), 0.0)

    @property
    def rate(self) -> float:
        """Samples per second of the best: as raced against the start, or else by the steps that led to it."""
        best, rate = self.best, self.rate_before
        if best == self.start:
            return rate
        for trial in self.trials:
            if (trial.before, trial.tried) == (self.start, best) and trial.kept:
                return trial.rate
        for trial in self.trials:
            rate *= 1 + trial.gain * trial.kept
        return rate


def search(start: Tuning, ladders: Ladders, turn: Turn, more: Callable[[], bool]) -> Iterator[Trial]:
    """Each trial as it is over; `more` says before each whether there is time for one.

    Where two steps or more were kept, the last trial is all of them against `start`.
    """
    best, steps, seen = start, 0, {start}
    for _ in range(_ROUNDS):
        begun = best
        for name, values in ladders.items():
            for way in (1, -1):
                moved = False
                while (tried := _beside(best, name, values, way)) is not None and tried not in seen and more():
                    seen.add(tried)
                    trial = race(best, tried, turn)
                    yield trial
                    if not trial.kept:
                        break
                    best, moved, steps = tried, True, steps + 1
                if moved:
                    break
        if best == begun:
            break
    if steps > 1:
        yield race(start, best, turn)


def best_of(start: Tuning, trials: Iterable[Trial]) -> Tuning:
    """What the trials so far speak for: the last tuning that won, or `start` where all of it together did not."""
    best, steps = start, 0
    for trial in trials:
        whole = steps > 1 and (trial.before, trial.tried) == (start, best)
        if trial.kept and not whole:
            best, steps = trial.tried, steps + 1
        elif whole and not trial.kept:
            best = start
    return best


def _beside(tuning: Tuning, name: str, values: Sequence[Any], way: int) -> Tuning | None:
    """The tuning with the next value of that field; None at the end of its ladder."""
    at = values.index(getattr(tuning, name)) + way
    return replace(tuning, **{name: values[at]}) if 0 <= at < len(values) else None
