"""The order that records are produced in, and the counts of what became of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dali_feed.external_sources.kafka.lanes import Acks
from dali_feed.external_sources.kafka.produce import Numbered
from dali_feed.records.extents import Extents
from dali_feed.records.present import Present
from dali_feed.records.source import Snapshot
from dali_feed.records.tally import KINDS, Tally


def _snapshot(*, interleaved: bool, present: bool) -> Snapshot:
    """Three partitions, one of them empty; of a topic read 4 offsets at a time, or of shards."""
    starts, stops = np.array([5, 0, 0], np.int64), np.array([16, 0, 7], np.int64)
    runs = Extents(*(np.array(each, np.int64) for each in ([0, 0, 2], [5, 9, 1], [7, 16, 4])))
    known = Present.of(runs, 3) if present else None
    return Snapshot(
        "s", ("a", "b", "c"), starts, stops, 4, 4 << 20,
        random_access=not interleaved, interleaved=interleaved, fingerprint="f", present=known,
    )  # fmt: skip


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("present", [False, True])
def test_a_line_goes_on_at_any_number_as_it_would_have(interleaved: bool, present: bool) -> None:
    """Every record has one number, whichever it is begun at; holes that are known are not in it."""
    line = Numbered.of(_snapshot(interleaved=interleaved, present=present))
    whole = [sample for _, extents in line.after(0) for sample in extents.ids().tolist()]
    assert len(whole) == len(set(whole)) == len(line) == (12 if present else 18)
    for number in range(len(line)):
        found = list(line.after(number))
        assert found[0][0] == number
        assert [sample for _, extents in found for sample in extents.ids().tolist()] == whole[number:]
        partition, position = line.at(number)
        assert (partition << 40) + position == whole[number]
    partitions = [sample >> 40 for sample in whole]
    assert (partitions == sorted(partitions)) == (not interleaved)


def test_the_mark_waits_for_the_slowest() -> None:
    """What is delivered behind a record that is not is counted once that one is settled, and survives as JSON."""
    acks = Acks(10, Tally(), lambda number: f"s#{number}")
    for number in (10, 11, 12, 14):
        acks.begin(number)
    acks.end(12, 100)
    acks.end(11, "too large: 17")
    assert (acks.mark, acks.tally.records) == (10, 0)
    acks.end(10, None)
    assert acks.mark == 14
    acks.end(14, 5)
    assert acks.mark == 15
    tally = Tally.of(json.loads(json.dumps(acks.tally.told())))
    assert tally == acks.tally
    assert (tally.records, tally.size, tally.absent, tally.failed) == (2, 105, 1, 1)
    assert tally.failures["too large: N"].first == ["s#11: too large: 17"]
    for number in range(100):
        tally.fail(f"reason {'x' * number}", "s")
    assert len(tally.failures) == KINDS + 1
    assert tally.failed == 101
