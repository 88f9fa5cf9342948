"""Records: sample ids, extents, and maps of the positions that hold a record."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.errors import ConfigError
from dali_feed.records.extents import (
    MAX_PARTITION,
    MAX_POSITION,
    Extents,
    Present,
    pack_ids,
    packed,
    unpack_ids,
    unpacked,
)

pairs = st.lists(st.tuples(st.integers(0, MAX_PARTITION), st.integers(0, MAX_POSITION)), min_size=1, max_size=50)
runs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1000), st.integers(0, 30)), max_size=20)


@given(pairs)
def test_ids_unpack_to_what_was_packed(pairs: list[tuple[int, int]]) -> None:
    """The round trip is exact up to the largest partition and position, and ids are never negative."""
    partition, position = np.array(pairs, np.int64).T
    ids = pack_ids(partition, position)
    assert ids.dtype == np.int64
    assert (ids >= 0).all()
    back = unpack_ids(ids)
    assert (back[0] == partition).all()
    assert (back[1] == position).all()


@given(pairs)
def test_ids_sort_as_their_coordinates_do_and_differ_where_they_do(pairs: list[tuple[int, int]]) -> None:
    """Order and equality of ids are those of (partition, position)."""
    ids = pack_ids(*np.array(pairs, np.int64).T).tolist()
    assert [i for i, _ in sorted(zip(ids, pairs, strict=True))] == pack_ids(*np.array(sorted(pairs)).T).tolist()
    assert len(set(ids)) == len(set(pairs))


@pytest.mark.parametrize(
    ("partition", "position"), [(-1, 0), (0, -1), (MAX_PARTITION + 1, 0), (0, MAX_POSITION + 1), ([3, -7], [0, 0])]
)
def test_coordinates_that_do_not_fit_are_refused(partition: object, position: object) -> None:
    """The message names the value: an id that wrapped around would be another sample's."""
    with pytest.raises(ConfigError, match=r"must lie in 0\.\."):
        pack_ids(np.asarray(partition), np.asarray(position))


@given(runs)
def test_the_ids_of_extents_are_their_positions_in_order(runs: list[tuple[int, int, int]]) -> None:
    """Run after run, each from start to stop, empty runs included."""
    columns = np.array(runs, np.int64).reshape(-1, 3).T
    extents = Extents(columns[0], columns[1], columns[1] + columns[2])
    want = [(p, k) for p, start, length in runs for k in range(start, start + length)]
    found = [tuple(pair) for pair in np.stack(unpack_ids(extents.ids()), 1).tolist()]
    assert found == want
    assert extents.lengths.tolist() == [length for _, _, length in runs]
    assert len(extents) == len(runs)


@given(st.lists(st.tuples(st.integers(0, 50), st.lists(st.booleans(), max_size=60)), min_size=1, max_size=5))
def test_what_is_present_comes_back_from_its_packing(parts: list[tuple[int, list[bool]]]) -> None:
    """A packed map, through JSON, is the same map and counts each partition's records; one of no records is refused."""
    starts = np.array([start for start, _ in parts], np.int64)
    stops = starts + np.array([len(flags) for _, flags in parts], np.int64)
    present = Present.of_flags(starts.tolist(), [np.array(flags, bool) for _, flags in parts])
    told = json.loads(json.dumps(packed(present, starts)))
    assert present.records.tolist() == [sum(flags) for _, flags in parts]
    if not len(present):
        with pytest.raises(ValueError, match="0 in all"):
            unpacked(told, starts, stops)
        return
    again = unpacked(told, starts, stops)
    assert again == present
    assert hash(again) == hash(present)
    first, last = np.zeros_like(starts), present.records
    ids = again.positions(Extents(np.arange(len(parts)), first, last)).ids().tolist()
    assert ids == [(p << 40) | (a + k) for p, (a, flags) in enumerate(parts) for k, there in enumerate(flags) if there]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"packed": "no base64!"}, "."),
        ({"packed": "AAAA"}, "."),
        ({"runs": [1]}, "1 runs take 16 bytes"),
        ({"runs": [2, 1]}, "2 partitions"),
        ({"runs": [-1]}, "-1 in all"),
    ],
    ids=str,
)
def test_a_packing_that_is_none_is_refused(wrong: dict[str, Any], told: str) -> None:
    """Runs that overlap, do not fit or cannot be unpacked are a ValueError, and take no more memory than is told."""
    starts, stops = np.array([5]), np.array([15])
    good = packed(Present.of_flags([5], [np.array([1, 1, 0, 1, 0, 0, 1, 1, 1, 1], bool)]), starts)
    unpacked(good, starts, stops)
    with pytest.raises(ValueError, match=told):
        unpacked(good | wrong, starts, stops)
    for other in (stops - 1, np.array([10])):
        with pytest.raises(ValueError, match="runs must"):
            unpacked(good, starts, other)


def test_a_map_of_many_holes_is_small() -> None:
    """A million records in transactions of 25 take less than 4 kB; at random half of them gone, 2 bits each."""
    flags = np.arange(1_000_000) % 26 != 25
    assert len(packed(Present.of_flags([0], [flags]), np.zeros(1, np.int64))["packed"]) < 4_000
    flags = np.random.default_rng(0).random(1_000_000) < 0.5
    assert len(packed(Present.of_flags([0], [flags]), np.zeros(1, np.int64))["packed"]) < 250_000


def test_what_is_reached_is_a_position() -> None:
    """After so many records of a partition comes the position of the next, its start before any, its stop after all."""
    present = Present.of_flags([5, 0, 0], [np.array([0, 1, 1, 0, 1, 0], bool), np.ones(3, bool), np.zeros(2, bool)])
    starts, stops = np.array([5, 0, 0]), np.array([11, 3, 2])
    given = ((0, 0), (1, 7), (2, 9), (3, 11), (4, 11))  # more than there are: lanes are filled up with the first ones
    for count, wanted in given:
        assert present.reached(np.array([count, 1, 0]), starts, stops).tolist() == [wanted if count else 5, 1, 0]
