"""What is left when what was kept or told cannot be used: the run goes on without, or says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from kit.cached_feeds import feed, scripted

from dali_feed.errors import StateError
from dali_feed.feed.commit import reached


def test_a_state_of_something_else_has_reached_nothing() -> None:
    """Of another snapshot, of a sampler's order, or with what it was made for left out: each is named."""
    source = scripted()
    with feed(source, None) as made:
        next(iter(made))
        state, snapshot = made.state_dict(), made.snapshot
    assert reached(state, snapshot).sum() >= 0
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"source": "another"}, "state: it must fit its own pin; the fingerprints are 'another'"),
        ({"sampler": "x"}, "state: its order came from a sampler, which a state does not hold"),
        ({"lanes": "many"}, "state: must be the dict that state_dict\\(\\) gave; ValueError"),
    )
    for change, said in changes:
        with pytest.raises(StateError, match=said):
            reached(state | {"made_for": state["made_for"] | change}, snapshot)
