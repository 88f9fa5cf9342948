"""Filling: rows copied one after the other are pieces of what was copied."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.records import pieces as filling
from dali_feed.records.pieces import Filling
from dali_feed.records.slabs import SlabPool

ROW = st.one_of(st.none(), st.binary(max_size=300), st.binary(max_size=20).map(bytearray))


@given(st.permutations(range(12)), st.lists(ROW, min_size=12, max_size=12), st.integers(1, 400))
def test_rows_are_what_was_copied_in_whatever_order(
    order: list[int], rows: list[bytes | bytearray | None], at_once: int
) -> None:
    """Copied (bytes here), kept where they lie in the lease (bytearrays) or absent, in memories of any size."""
    lease = SlabPool(256).lease()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "AT_ONCE", at_once)
        made = Filling(len(rows), lease)
        for row in order:
            data = rows[row]
            if isinstance(data, bytes):
                made.copy(row, data)
            else:
                view = None
                if data is not None:
                    view = lease.room(len(data))
                    view[:] = data
                made.keep(row, view)
        found = made.pieces()
    assert [None if view is None else bytes(view) for view in found] == [r if r is None else bytes(r) for r in rows]


def test_no_row_is_looked_at_by_the_collector() -> None:
    """A thousand rows leave it a few objects more."""
    lease = SlabPool(1 << 20).lease()
    gc.collect()
    before = len(gc.get_objects())
    made = Filling(1000, lease)
    for row in range(1000):
        made.copy(row, b"%04d" % row)
    found = made.pieces()
    assert len(gc.get_objects()) - before < 50
    assert bytes(found[999] or b"") == b"0999"
