"""Turns of contestants that follow a script: who goes when, whose figures count, and what a failure costs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import pytest

from dali_feed.bench.contract import Steps
from dali_feed.bench.turns import WARM_STEPS, Listener, Make, Measured, Turn, ratios, run_turn, spread, take_turns


class Counted(Steps):
    """Gives `sizes` in turn, and raises after `most` steps."""

    def __init__(self, size: int, most: int | None, error: type[BaseException]) -> None:
        self.size, self.most, self.error, self.taken = size, most, error, 0

    def __next__(self) -> int:
        self.taken += 1
        if self.most is not None and self.taken > self.most:
            msg = "as the script says"
            raise self.error(msg)
        return self.size


@dataclass
class Script:
    """Contestants whose turns are written down; `fails` names the turns of "who/way" that fail, by number."""

    fails: dict[str, tuple[int, ...]] = field(default_factory=dict)
    error: type[BaseException] = ValueError
    order: list[str] = field(default_factory=list)
    made: list[Counted] = field(default_factory=list)

    def make(self, name: str, size: int) -> Make:
        """A contestant whose batches are of `size`: twice as large is about twice as fast."""

        @contextmanager
        def turn() -> Iterator[Steps]:
            number = self.order.count(name)
            self.order.append(name)
            steps = Counted(size, 2 if number in self.fails.get(name, ()) else None, self.error)
            self.made.append(steps)
            yield steps

        def begun() -> AbstractContextManager[Steps]:
            return turn()

        return begun


def taken(script: Script, contestants: dict[str, dict[str, int]], repeats: int) -> Measured:
    """Their turns, each so short that a batch or two is counted."""
    makes = {
        who: {way: script.make(f"{who}/{way}", size) for way, size in ways.items()} for who, ways in contestants.items()
    }
    found = Measured()
    take_turns(makes, found, repeats=repeats, seconds=1e-4)
    return found


def test_contestants_take_turns_and_each_turn_is_made_afresh() -> None:
    """a, b, c, a, b, c; what one turn made is not used by the next."""
    script = Script()
    found = taken(script, {"a": {"": 1}, "b": {"": 1}, "c": {"": 1}}, 2)
    assert script.order == ["a/", "b/", "c/"] * 2
    assert len({id(steps) for steps in script.made}) == 6
    assert {who: len(turns) for who, turns in found.turns.items()} == {"a": 2, "b": 2, "c": 2}


def test_the_first_steps_of_a_turn_are_not_counted() -> None:
    """They were taken, and their images are in no figure."""
    script = Script()
    turn = run_turn(script.make("a", 5), 1e-4)
    assert turn.images == 5 * len(turn.waits)
    assert script.made[0].taken >= WARM_STEPS + len(turn.waits)


def test_the_fastest_way_goes_on() -> None:
    """All ways of a contestant run in the first round, and after it the one with most images per second alone."""
    script = Script()
    found = taken(script, {"a": {"slow": 1, "fast": 10_000, "middle": 10}, "b": {"": 1}}, 3)
    assert script.order == ["a/slow", "a/fast", "a/middle", "b/", *["a/fast", "b/"] * 2]
    assert found.ways == {"a": "fast", "b": ""}
    assert len(found.turns["a"]) == 3


def test_who_fails_is_named_and_the_others_go_on() -> None:
    """In the first round or later, its turns are gone, so that no figure of it is told."""
    script = Script({"a/": (0,), "b/": (1,)})
    found = taken(script, {"a": {"": 1}, "b": {"": 1}, "c": {"": 1}}, 3)
    assert script.order == ["a/", "b/", "c/", "b/", "c/", "c/"]
    assert found.failed == dict.fromkeys("ab", "ValueError: as the script says")
    assert list(found.turns) == ["c"]


@pytest.mark.parametrize("failing", ["first", "second"])
def test_a_way_that_fails_leaves_the_others(failing: str) -> None:
    """A contestant is out where all its ways fail, and not before."""
    script = Script({f"a/{failing}": (0,)})
    found = taken(script, {"a": {"first": 1, "second": 1}}, 2)
    assert found.failed == {}
    assert found.ways == {"a": "second" if failing == "first" else "first"}
    assert len(found.turns["a"]) == 2


def test_an_interrupted_run_keeps_what_it_had() -> None:
    """Ctrl-C is no failure of a contestant: it ends the run, and the turns before it are there."""
    script = Script({"b/": (1,)}, KeyboardInterrupt)
    makes = {who: {"": script.make(f"{who}/", 1)} for who in "abc"}
    found = Measured()
    with pytest.raises(KeyboardInterrupt):
        take_turns(makes, found, repeats=5, seconds=1e-4)
    assert {who: len(turns) for who, turns in found.turns.items()} == {"a": 2, "b": 1, "c": 1}
    assert found.failed == {}


def test_no_turn_begins_when_the_time_is_up() -> None:
    """Who had turns keeps them, and who had none is named with the reason."""
    script, found = Script(), Measured()
    makers = {who: {"": script.make(f"{who}/", 1)} for who in "ab"}
    take_turns({"a": makers["a"]}, found, repeats=1, seconds=1e-4)
    take_turns(makers, found, repeats=2, seconds=1e-4, until=0.0)
    assert script.order == ["a/"]
    assert list(found.turns) == ["a"]
    assert found.missing == {"b": "the time of --quick ended before its turn; leave --quick out"}


def test_what_is_left_to_do_is_told_before_each_turn() -> None:
    """The number of turns done grows by one, and their total is what comes in the end, less those who fail."""

    class Heard(Listener):
        def __init__(self) -> None:
            self.at: list[tuple[int, int]] = []

        def begins(self, who: str, way: str, done: int, total: int) -> None:
            self.at.append((done, total))

    script, heard = Script({"b/": (1,)}), Heard()
    makes = {"a": {"x": script.make("a/x", 1), "y": script.make("a/y", 1)}, "b": {"": script.make("b/", 1)}}
    take_turns(makes, Measured(), repeats=3, seconds=1e-4, listener=heard)
    assert heard.at == [(0, 7), (1, 7), (2, 7), (3, 7), (4, 7), (5, 6)]


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that slows down for both changes no ratio; a round that one has alone is left out."""

    def turn(rate: int) -> Turn:
        return Turn(rate, 1.0, 0.0, 0.0, 0.0, [1.0], 0)

    ours, theirs = [turn(300), turn(30), turn(3)], [turn(100), turn(10)]
    assert ratios(ours, theirs) == (3.0, 3.0, 3.0)
    assert spread([1.0, 9.0, 2.0]) == (2.0, 1.0, 9.0)
