"""The search, over machines that are scripted: a function of a tuning says how fast it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from dali_feed.options import AutoTuning, Cache, Tuning
from dali_feed.tuner.ladders import ladders
from dali_feed.tuner.search import Outcome, search

START = Tuning(threads=2)
LADDERS = {"threads": [1, 2, 4, 8], "readers": [1, 2, 4, 8], "prefetch": [1, 2, 4]}


def _found(turn: Callable[[Tuning], float], more: Callable[[], bool] = lambda: True) -> Outcome:
    return Outcome(START, tuple(search(START, LADDERS, turn, more)))


def _threads(tuning: Tuning) -> int:
    assert tuning.threads is not None
    return tuning.threads


def test_it_climbs_to_the_best_of_each_field() -> None:
    """More threads pay up to 4, one reader is enough, prefetch does not matter."""
    found = _found(lambda its: 100.0 * min(_threads(its), 4) / int(its.readers))
    assert found.fields == {"threads": 4, "readers": 1}
    assert (found.rate_before, found.rate) == (100.0, 400.0)


def test_it_ends_with_all_that_was_kept_against_the_defaults() -> None:
    """What two steps gain each they may not gain together: then the defaults stay."""

    def turn(tuning: Tuning) -> float:
        return next(rates) if tuning == START and next(count) >= 3 else 100.0 * _threads(tuning)

    rates, count = itertools.repeat(1000.0), itertools.count()
    found = _found(turn)
    last = found.trials[-1]
    assert (last.before, last.tried, last.kept) == (START, Tuning(threads=8), False)
    assert (found.best, found.fields) == (START, {})


def test_nothing_is_tried_twice() -> None:
    """Not in a second round either."""
    tried = [trial.tried for trial in _found(lambda its: 100.0 * int(its.readers)).trials[:-1]]
    assert len(tried) == len(set(tried))


def test_a_field_that_pays_only_after_another_one_is_tried_again() -> None:
    """Threads pay only with more batches in flight, which are tried after them."""
    found = _found(lambda its: 100.0 * ((1 + (its.prefetch == 4)) * (_threads(its) if its.prefetch == 4 else 2)))
    assert found.fields == {"threads": 8, "prefetch": 4}


def test_it_stops_when_the_time_is_up() -> None:
    """With what won until then, which is raced against the defaults once more."""
    left = iter([True, True, False])
    found = _found(lambda its: 100.0 * _threads(its), lambda: next(left, False))
    assert [trial.tried.threads for trial in found.trials] == [4, 8, 8]
    assert found.fields == {"threads": 8}


def test_a_search_that_was_broken_off_speaks_for_what_won_before() -> None:
    """The trials that are there decide."""
    trials = list(itertools.islice(search(START, LADDERS, lambda its: 100.0 * _threads(its), lambda: True), 1))
    assert Outcome(START, tuple(trials), broken=True).fields == {"threads": 4}


def test_caps_and_pins_bound_what_is_tried() -> None:
    """No more threads than may be, no pinned field, and a cache only where its memory is given and the data fits."""
    asked = Tuning.auto(readers=4, memory="3GiB")
    start = asked.defaults(gpu=False)
    found = ladders(asked, Tuning(threads=3, readers=4), most_threads=6, data=1 << 30)
    assert list(found) == ["threads", "prefetch", "cache"]
    assert found["threads"] == [1, 2, 3, 4, 6]
    assert found["cache"] == (Cache(2 << 30), None, Cache(2 << 30, pixels=True))
    assert "cache" not in ladders(asked, start, most_threads=6, data=3 << 30)
    assert "cache" not in ladders(AutoTuning(), Tuning(), most_threads=6, data=1)
