"""Insides that contract/feed/test_disk_records.py needs not: they go with what they test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.feed.disk_rows import RowFiles, row_of, told


def test_the_limit_holds_and_old_sources_make_room(tmp_path: Path) -> None:
    """What no process uses goes, what was used longest ago first; what one uses stays, and nothing more is kept."""
    body, limit = bytes(1 << 20), 20 << 20

    def taken() -> int:
        return sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())

    made = {}
    for n, key in enumerate("abc"):
        made[key] = RowFiles(tmp_path, limit, key * 32)
        os.utime(tmp_path / f"rows-{key * 32}" / "lock", (n, n))
        for sample in range(6):
            made[key].keep(sample, "[]", body)
        assert taken() <= limit
    assert [len(each) for each in made.values()] == [6, 6, 6]
    made["b"].close()
    made["c"].close()
    more = RowFiles(tmp_path, limit, "d" * 32)
    for sample in range(30):
        more.keep(sample, "[]", body)
        assert taken() <= limit
    assert sorted(path.name[5] for path in tmp_path.glob("rows-*")) == ["a", "d"]
    assert more.full
    assert 6 < len(more) < 14
    assert bytes(made["a"].find(3) or b"") == body
    assert more.find(29) is None


def test_one_process_never_exceeds_the_limit(tmp_path: Path) -> None:
    """With all that it writes beside rows, however small those are; what has room is kept."""
    rows = RowFiles(tmp_path, 5000, "a" * 32)
    for sample in range(500):
        rows.keep(sample, '[["label", null]]', b"x")
        assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 5000
    assert rows.full
    assert len(rows) > 80
    rows.close()


VIEWS: Any = st.binary().map(memoryview)
NUMBERS: Any = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary()
)
VALUES: Any = st.recursive(
    NUMBERS | VIEWS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal, of one type all through, NaN too."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray | np.generic):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    return bool(a == b) or repr(a) == repr(b)


@given(payload=st.none() | VIEWS, values=st.lists(VALUES), cut=st.integers(1, 40))
def test_a_row_comes_back_as_it_was(payload: memoryview | None, values: list[Any], cut: int) -> None:
    """Of any values, and with their types; of a part of its bytes there is no row."""
    values += [np.arange(6, dtype=">i2").reshape(2, 3), np.float32(1.5), np.array("ab"), np.zeros((0, 2))]
    whole = told(payload, values)
    found = row_of(memoryview(bytearray(whole)))
    assert same(found, (payload, tuple(values)))
    with pytest.raises(ValueError):
        row_of(memoryview(bytearray(whole[:-cut])))
    with pytest.raises(TypeError, match="cannot be kept"):
        told(payload, [object()])
