"""A set that holds a topic's records, by the offsets that they had."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_feed.errors import DataLostError, StateError
from dali_feed.external_sources.replay import Replay, rows_of
from dali_feed.records.extents import Extents
from dali_feed.records.present import Present, packed


def pin(starts: list[int], ends: list[int], present: Present | None = None) -> dict[str, Any]:
    """The pin of a topic that is nowhere."""
    told = {"topic": "t", "id": "", "starts": starts, "ends": ends, "extent": 4, "record_bytes": 10, "absent": 0.0}
    return told if present is None else told | {"present": packed(present, np.array(starts, np.int64))}


def test_a_set_of_a_topic_with_known_holes_deals_the_same_records() -> None:
    """Where the topic's snapshot knew which offsets hold a record, so does the set's; other pins are refused."""
    present = Present.of(Extents(np.array([0, 1]), np.array([11, 2]), np.array([13, 6])), 2)
    found = Replay.missing(pin([10, 0], [16, 6], present), [[1, 3, 4]])
    assert rows_of(found.held, np.array([0, 0, 0, 1, 1, 1]), np.array([10, 11, 13, 2, 3, 5])).tolist() == [
        -1, 0, -1, 2, -1, 4,
    ]  # fmt: skip
    snapshot = found.snapshot("set", np.array([5]))
    assert snapshot.present == present
    assert found.snapshot("set", np.array([5]), snapshot.pin).fingerprint == snapshot.fingerprint
    with pytest.raises(StateError, match="the pin must be of the stretch of t"):
        found.snapshot("set", np.array([5]), pin([10, 0], [16, 6]))
    with pytest.raises(DataLostError, match="must hold 5 records of its topic; found 4 samples"):
        found.snapshot("set", np.array([4]))
