"""Two tunings in turns: what is kept, and what is taken for noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from dali_feed.errors import ConfigError
from dali_feed.options import Tuning
from dali_feed.tuner.race import race

BEFORE, TRIED = Tuning(), Tuning(readers=4)


def _turns(*rates: float) -> Callable[[Tuning], float]:
    left: Iterable[float] = iter(rates)
    return lambda _: next(iter(left))


def test_both_run_in_turns() -> None:
    """A machine that grows slower must not make the second one look bad."""
    order: list[int | str] = []

    def turn(tuning: Tuning) -> float:
        order.append(tuning.readers)
        return 100.0

    race(BEFORE, TRIED, turn)
    assert order == [2, 4, 2, 4]


@pytest.mark.parametrize(
    ("rates", "why"),
    [
        ((100, 101, 100, 101), "it gains less than a line in a program is worth"),
        ((100, 150, 160, 170), "one turn without it was faster than one with it"),
        ((100, 131, 130, 150), "turns of one tuning lie further apart than the two tunings"),
        ((100, 120, 100, 120, 125, 120), "the turn that should confirm it does not"),
    ],
)
def test_what_does_not_win_by_more_than_the_spread_is_not_kept(rates: tuple[float, ...], why: str) -> None:
    """Noise is no gain."""
    assert not race(BEFORE, TRIED, _turns(*rates)).kept, why


def test_a_gain_beyond_the_spread_is_kept() -> None:
    """Once a third turn of each has confirmed it."""
    trial = race(BEFORE, TRIED, _turns(100, 120, 102, 121, 101, 122))
    assert trial.kept
    assert (round(trial.gain, 3), round(trial.spread, 3)) == (0.198, 0.02)
    assert trial.names == ("readers",)


def test_a_tuning_that_cannot_be_is_a_loser_with_a_reason() -> None:
    """The search goes on without it."""

    def turn(tuning: Tuning) -> float:
        if tuning == TRIED:
            msg = "Tuning(memory=1): too little"
            raise ConfigError(msg)
        return 100.0

    trial = race(BEFORE, TRIED, turn)
    assert (trial.kept, trial.rates, trial.why) == (False, (), "Tuning(memory=1): too little")
