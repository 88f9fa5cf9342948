"""keys: what the arrays of a batch are called."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.transforms.keys import FLIPS, by_view, further, numbered, viewed

WHATS, PARTS = ("crop", "flip", "effect", "jitter"), ("", "_order", "_seed", "_weights")


@given(
    st.lists(
        st.tuples(st.sampled_from(WHATS), st.integers(0, 2**26), st.sampled_from(PARTS), st.integers(0, 63)),
        unique=True,
        min_size=2,
    )
)
def test_no_two_arrays_have_one_name(of: list[tuple[str, int, str, int]]) -> None:
    """What, number, further part and view are all in a key, and none of them reads as another."""
    keys = [viewed(further(numbered(what, n), part), view) for what, n, part, view in of]
    assert len({*keys, *FLIPS.values()}) == len(keys) + 2


def test_arrays_go_back_to_their_view() -> None:
    """Each view gets its own arrays by its own names."""
    row = np.zeros(3)
    every = {viewed(numbered("crop", n), view): row + view for n in (1, 21) for view in range(12)}
    split = by_view(every, 12)
    assert [{name: rows[0] for name, rows in own.items()} for own in split] == [
        {"crop1": view, "crop21": view} for view in range(12)
    ]
