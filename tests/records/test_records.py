"""Records: sample ids and extents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.errors import ConfigError
from dali_feed.records.extents import MAX_PARTITION, MAX_POSITION, Extents, pack_ids, unpack_ids

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


def test_packing_broadcasts() -> None:
    """One partition and many positions, as for a single run; nothing packs to nothing."""
    assert unpack_ids(pack_ids(3, np.arange(2)))[0].tolist() == [3, 3]
    assert pack_ids(3, np.array([], np.int64)).shape == (0,)


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


@given(runs, st.data())
def test_rows_of_extents_are_taken_by_slice_mask_and_index(
    runs: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """All three columns are taken alike."""
    columns = np.array(runs, np.int64).reshape(-1, 3).T
    extents = Extents(*columns)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(runs), max_size=len(runs))), bool)
    for rows in (slice(1, None, 2), mask, np.flatnonzero(mask)[::-1]):
        some = extents[rows]
        for column, name in zip(columns, ("partition", "start", "stop"), strict=True):
            assert (getattr(some, name) == column[rows]).all()
