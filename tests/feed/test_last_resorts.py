"""What is left when what was kept or told cannot be used: the run goes on without, or says what is wrong."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from kit.cached_feeds import feed, scripted

from dali_feed.errors import StateError
from dali_feed.feed.commit import reached
from dali_feed.feed.disk_rows import row_of, told


@pytest.mark.parametrize("odd", [np.array([object()]), np.datetime64("2026-01-01"), object(), {1, 2}])
def test_values_without_a_form_in_files_are_not_kept(odd: Any) -> None:
    """The row is read again in each run instead: nothing is pickled."""
    with pytest.raises(TypeError, match="cannot be kept"):
        told(None, (odd,))


def test_bytes_that_are_no_row_are_none() -> None:
    """Of another shape, of a dtype that holds objects, or with something behind: no code comes from a file."""
    body = told(memoryview(b"image"), (np.arange(3), [1.5, "é", None, True, {"a": 1j}], np.int16(3)))
    payload, values = row_of(memoryview(body))
    assert payload is not None
    assert bytes(payload) == b"image"
    assert values[0].tolist() == [0, 1, 2]
    assert values[1:] == ([1.5, "é", None, True, {"a": 1j}], np.int16(3))
    for wrong in (body + b"N", body[:-1], body.replace(b"<i8", b"|O8"), b"", b"N" + bytes(8)):
        with pytest.raises((ValueError, struct.error, KeyError)):
            row_of(memoryview(wrong))


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
