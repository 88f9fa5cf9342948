"""The rules by which readers adapt: facts in, decisions out, without a clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.feed.adapting import FEW, LONGEST, Bounds, Decision, Facts, Reading, Standing, decide

BOUNDS = Bounds(1, 8, fetch=2, ahead=8)
# A second in which two readers were busy all the time and the feed waited for half of it.
HUNGRY = Facts(seconds=1.0, size=100 << 20, busy=2.0, waited=0.5, queued=3, cpu=1.2, cores=4)
CONTENT = replace(HUNGRY, waited=0.0, busy=0.3)

times = st.floats(0, 20)
any_facts = st.builds(
    Facts,
    seconds=st.floats(0.01, 10),
    size=st.integers(0, 1 << 32),
    busy=times,
    waited=times,
    queued=st.integers(0, 3),
    cpu=times,
    cores=st.integers(1, 8),
)


def run(facts: list[Facts], readers: int = 2, bounds: Bounds = BOUNDS) -> tuple[Standing, list[Decision]]:
    """All intervals in turn."""
    standing, made = Standing(Reading(readers)), []
    for each in facts:
        standing, decision = decide(standing, each, bounds)
        if decision is not None:
            made.append(decision)
    return standing, made


def source(rates: dict[int, float], reading: Reading, needed: float) -> Facts:
    """A second of a source that gives rates[readers] MB/s, before a loop that takes `needed` at most."""
    rate = rates[reading.readers]
    used = min(1.0, needed / rate)
    busy = used * reading.readers
    return Facts(1.0, int(min(rate, needed) * 1e6), busy, 1.0 - 1.0 / max(1.0, needed / rate), 3, busy, 16)


def steered(rates: dict[int, float], needed: float, intervals: int) -> list[int]:
    """The number of readers after each interval."""
    standing, seen = Standing(Reading(2)), []
    for _ in range(intervals):
        standing, _ = decide(standing, source(rates, standing.reading, needed), BOUNDS)
        seen.append(standing.reading.readers)
    return seen


@given(st.lists(any_facts, max_size=400))
def test_whatever_the_facts_it_stays_within_bounds_and_changes_become_rare(facts: list[Facts]) -> None:
    """Bounds hold after each interval, each decision starts where the last one ended, and there are few of them."""
    _, made = run(facts)
    at = Reading(2)
    for decision in made:
        assert decision.before == at != decision.after
        assert BOUNDS.hold(decision.after)
        at = decision.after
    # Of five directions each rests 8, 16, ... intervals. A trial that fails costs four changes at most and lets its
    # direction rest; one that pays costs five, and lets the opposite rest.
    n = len(facts)
    rests = sum(8 * (2**k - 1) <= n for k in range(1, 7)) + n // LONGEST + 1
    assert len(made) <= 5 * (5 * rests + 8)


def test_readers_grow_while_each_pays_and_stop_where_it_does_not() -> None:
    """Up to four readers pay here: it goes there, tries a fifth, takes that back, and seldom tries again."""
    rates = {1: 100.0, 2: 200.0, 3: 290.0, 4: 380.0, 5: 385.0, 6: 385.0, 7: 385.0, 8: 385.0}
    seen = steered(rates, 1000.0, 200)
    assert seen[-1] == 4
    assert max(seen) == 5
    assert seen.count(5) <= 6
    assert seen.count(3) <= 20


def test_readers_that_get_in_each_others_way_are_taken_back() -> None:
    """Where three give less than two, two it is."""
    rates = {1: 300.0, 2: 400.0, 3: 250.0}
    seen = steered(rates, 1000.0, 100)
    assert seen[-1] == 2
    assert seen.count(3) <= 4


def test_readers_that_are_not_needed_go_and_come_back() -> None:
    """A slow loop leaves one reader; when it becomes fast, there are more again."""
    rates = {n: 100.0 * n for n in range(1, 9)}
    slow = [source(rates, Reading(2), 30.0)] * FEW
    standing, made = run(slow)
    assert [each.after.readers for each in made] == [1]
    standing, decision = decide(standing, source(rates, standing.reading, 500.0), BOUNDS)
    assert decision is not None
    assert (decision.before.readers, decision.after.readers) == (1, 2)


def test_a_load_that_comes_and_goes_does_not_make_it_swing() -> None:
    """Five quiet intervals and five hungry ones in turn, for a thousand: a reader goes and comes some dozen times."""
    rates = {n: 100.0 * n for n in range(1, 9)}
    standing, changes = Standing(Reading(2)), 0
    for n in range(1000):
        needed = 30.0 if n // FEW % 2 == 0 else 190.0
        standing, decision = decide(standing, source(rates, standing.reading, needed), BOUNDS)
        changes += decision is not None
    assert changes <= 20


def test_reads_that_wait_for_the_network_are_made_larger_first() -> None:
    """Readers that use little CPU fetch twice as much before there are more of them; where it pays, both stay."""
    far = replace(HUNGRY, cpu=0.2)
    twice = replace(far, size=2 * far.size)
    standing, made = run([far])
    assert standing.reading == Reading(2, 2)
    assert str(made[0]) == "fetches x1 -> x2: the feed waits 50 % of the time for reads, CPU 5 % of 4 cores, 105 MB/s"
    standing, made = run([far, twice, far, twice, far, twice])
    assert standing.reading == Reading(3, 2)
    assert [str(decision) for decision in made[1:5]] == [
        "fetches x2 -> x1: to compare: 210 MB/s with it, 105 without",
        "fetches x1 -> x2: to compare: 210 MB/s with it, 105 and 105 without",
        "fetches x2 -> x1: to compare: 210 and 210 MB/s with it, 105 and 105 without",
        "fetches x1 -> x2: it pays: 210 and 210 MB/s with it, 105 and 105 and 105 without",
    ]
    assert str(made[5]).startswith("readers 2 -> 3: ")


def test_what_did_not_pay_is_taken_back_and_said() -> None:
    """The rate stayed: the reader goes, and the reason has both rates."""
    standing, made = run([HUNGRY, HUNGRY])
    assert standing.reading == Reading(2)
    assert str(made[1]) == "readers 3 -> 2: it did not pay: 105 MB/s with it, 105 without"


@pytest.mark.parametrize("rates", [(1, 2, 2), (1, 2, 1, 2, 2)], ids=["once", "twice"])
def test_a_machine_that_gets_faster_by_itself_is_no_merit_of_a_reader(rates: tuple[int, ...]) -> None:
    """It is twice as fast while a reader is tried, and once without it, so the reader is gone for good."""
    standing, made = run([replace(HUNGRY, size=rate * HUNGRY.size) for rate in rates])
    assert standing.reading == Reading(2)
    assert standing.trial is None
    assert len(made) == len(rates) - 1


def test_a_reader_too_many_is_found_though_the_loop_waits() -> None:
    """Begun where two readers get in each other's way, one it is in the end, and stays."""
    rates = {1: 400.0, 2: 300.0, 3: 250.0}
    seen = steered(rates, 1000.0, 300)
    assert seen[-1] == 1
    assert seen[100:].count(1) > 190


def test_a_reader_that_ends_the_waiting_stays() -> None:
    """There is nothing left to gain, and so nothing to compare."""
    standing, made = run([HUNGRY, replace(HUNGRY, waited=0.0, busy=3.0)])
    assert (standing.reading, len(made)) == (Reading(3), 1)


@pytest.mark.parametrize(
    "facts",
    [
        replace(HUNGRY, waited=0.05),
        replace(HUNGRY, busy=1.5),
        replace(HUNGRY, queued=0),
        replace(HUNGRY, cpu=3.8),
        replace(HUNGRY, size=0),
    ],
    ids=["no wait", "an idle reader", "memory full", "CPUs full", "no bytes"],
)
def test_no_reader_is_added_where_it_could_not_help(facts: Facts) -> None:
    """Each of these alone keeps the number as it is."""
    assert run([facts] * 20)[1] == []


def test_fetches_of_all_readers_together_are_bounded() -> None:
    """Larger fetches are no more than the memory for them allows, and a pinned source's stay as they are."""
    far = replace(HUNGRY, cpu=0.2, busy=8.0)
    assert run([far], 8)[0].reading == Reading(7), "one less is tried, not twice as much"
    standing, _ = run([replace(far, busy=2.0)], bounds=replace(BOUNDS, fetch=1))
    assert standing.reading == Reading(3)
