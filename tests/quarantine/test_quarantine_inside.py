"""Insides that contract/bad_records/test_quarantine.py needs not: they go with what they test."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from dali_feed.errors import BadRecordLimitError
from dali_feed.options import BadRecords
from dali_feed.quarantine.budget import Quarantine


@given(
    bad=st.sets(st.integers(0, 59)),
    batch=st.integers(1, 20),
    window=st.integers(1, 70),
    limit=st.one_of(st.integers(0, 6), st.fractions(0, 1)),
    floor=st.integers(0, 6),
    order=st.randoms(use_true_random=False),
)
def test_it_ends_where_a_window_holds_one_too_many(
    bad: set[int], batch: int, window: int, limit: int | Fraction, floor: int, order: object
) -> None:
    """At the batch in which some `window` slots in a row, counted one by one, first hold more than limit and floor."""
    share = isinstance(limit, Fraction)
    allowed = max(int(limit * window), floor if limit else 0) if share else int(limit)
    quarantine = Quarantine(BadRecords(limit=limit, window=window, floor=floor), 60)
    for first in range(0, 60, batch):
        here = [slot for slot in bad if first <= slot < first + batch]
        order.shuffle(here)  # type: ignore[attr-defined]  # the screen's come before the decoder's
        ended = False
        try:
            for slot in here:
                quarantine.add(slot, slot, f"t[0]@{slot}", "cut off")
        except BadRecordLimitError:
            ended = True
        told = [slot for slot in bad if slot < first + batch]
        full = any(sum(q <= slot < q + window for slot in told) > allowed for q in told)
        assert ended == full
        if ended:
            return
