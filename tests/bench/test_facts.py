"""Holds what each row says of where it was made."""

from __future__ import annotations

from dali_feed.bench.facts import facts
from dali_feed.native.library import used


def test_a_row_says_whether_the_loops_in_c_were_used() -> None:
    """Beside the versions, as rows with them and without are no rows of one way."""
    assert facts()["native"] == used()
