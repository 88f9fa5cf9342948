"""Positions and shares: where the next pass begins, and how batches are dealt, without a feed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_feed.errors import ConfigError
from dali_feed.plan.batching import Shares
from dali_feed.plan.state import LOOKS, Position


def stands(at: Position) -> tuple[int, int, bool]:
    """What a state holds, and whether a pass begins there."""
    return at.epoch, at.consumed, at.pending


def taken(count: int, *, epoch: int = 3, consumed: int = 4, of: int = 5) -> Position:
    """Where a trainer stands that was given `count` of `of` batches, of two samples a lane, of a pass."""
    at = Position(epoch, consumed)
    at.leave()
    for n in range(count):
        at.took(2, last=n == of - 1)
    return at


@pytest.mark.parametrize(
    ("count", "begins"), [(0, (3, 4)), (1, (3, 4)), (2, (4, 0)), (5, (4, 0))], ids=["none", "a look", "two", "all"]
)
def test_a_pass_that_is_left_has_had_its_epoch_unless_it_was_a_look(count: int, begins: tuple[int, int]) -> None:
    """And leaving is asking: what `next` says is where the position then stands."""
    at = taken(count)
    assert (at.epoch, at.consumed) == (3, 4 + 2 * count)
    assert at.next == begins
    at.leave()
    assert stands(at) == (*begins, True)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_skipping_ends_an_epoch_of_which_anything_was_taken(count: int) -> None:
    """A look too, and once only; an epoch of which nothing was taken is still to come."""
    at = taken(count)
    for _ in range(2):
        at.skip()
        assert stands(at) == ((4, 0, True) if count else (3, 4, True))


def test_only_so_many_looks_in_a_row_leave_no_trace() -> None:
    """The one after them has its epoch, and after a skipped epoch they are counted anew."""
    at = Position()
    for look in range(LOOKS + 1):
        at.took(2, last=False)
        at.leave()
        assert stands(at) == (look // LOOKS, 0, True)
    at.took(2, last=False)
    at.skip()
    for _ in range(LOOKS):
        at.took(2, last=False)
        at.leave()
    assert stands(at) == (2, 0, True)


@pytest.mark.parametrize(
    ("count", "epoch", "moves", "begins"),
    [
        (0, 3, False, (3, 4)),
        (0, 4, True, (4, 0)),
        (1, 3, True, (3, 4)),
        (1, 4, True, (4, 0)),
        (2, 3, True, (3, 0)),
        (2, 4, True, (4, 0)),
    ],
)
def test_an_epoch_is_set_unless_the_next_pass_is_one_of_it(
    count: int, epoch: int, *, moves: bool, begins: tuple[int, int]
) -> None:
    """A restored state and a look keep their place in it; a pass of which more was taken begins anew."""
    at = taken(count)
    assert at.set_epoch(epoch) is moves
    assert stands(at) == (*begins, True)


def test_an_error_and_an_end_leave_no_look() -> None:
    """One batch and then an error has had its epoch, as has a pass of one batch that came to its end."""
    at = taken(1)
    at.failed()
    at.leave()
    assert stands(at) == (4, 0, True)
    at = taken(1, of=1)
    at.ended()
    assert stands(at) == (4, 0, True)
    assert at.between
    assert not Position().between


def test_an_epoch_is_fresh_until_a_batch_of_it_was_taken() -> None:
    """Also where a restored state stands at its beginning, and not where it stands inside."""
    at = Position(2)
    assert at.fresh
    at.took(2, last=False)
    assert not at.fresh
    at.ended()
    assert at.fresh
    assert not Position(2, 4).fresh


def test_shares_are_checked_and_frozen() -> None:
    """However they are made; NumPy's ints are kept as Python's, and no lanes are as many as ranks."""
    shares = Shares.of(np.int64(6), np.int64(1), np.int64(2), None)  # type: ignore[arg-type]
    assert shares == Shares(6, 1, 2, 2)
    assert all(type(value) is int for value in (shares.batch_size, shares.rank, shares.world_size, shares.lanes))
    with pytest.raises(AttributeError):
        shares.rank = 0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((0, 0, 1, 1), "batch_size: must be an int of at least 1; found 0"),
        ((1, 0, "2", None), "world_size: must be an int of at least 1; found '2'"),
        ((1, -1, 1, 1), "rank: must be an int of at least 0; found -1"),
        ((1, 2, 2, 2), "rank: must be below world_size=2; found 2"),
        ((1, 0, 1, True), "lanes: must be an int of at least 1; found True"),
        ((6, 0, 2, 3), "lanes: must be a multiple of world_size, .* found lanes=3, world_size=2"),
        ((3, 0, 2, 4), "lanes: .* batch_size [*] world_size = 6 must be a multiple of lanes; found lanes=4"),
    ],
)
def test_shares_that_do_not_go_together_are_named(given: tuple[Any, ...], told: str) -> None:
    """Each of the four, and how they must divide one another."""
    with pytest.raises(ConfigError, match=f"^{told}"):
        Shares.of(*given)


@pytest.mark.parametrize("drop_last", [False, True])
def test_all_ranks_have_all_lanes(*, drop_last: bool) -> None:
    """The lanes of the ranks are each lane once, and batches take all of a lane but for a dropped rest."""
    ranks = [Shares(6, rank, 2, 4) for rank in range(2)]
    assert sorted(lane for each in ranks for lane in each.mine) == [0, 1, 2, 3]
    assert [each.per_lane for each in ranks] == [3, 3]
    assert ranks[0].counts(11, drop_last=drop_last) == ([3, 3, 3] if drop_last else [3, 3, 3, 2])
    assert ranks[0].counts(9, drop_last=drop_last) == [3, 3, 3]
