"""Values of Arrow columns: what some rows are, however a table is cut, and in whose memory they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.errors import ConfigError
from dali_feed.external_sources import Table
from dali_feed.external_sources.arrow_values import Files, contents_of, members_in, plain, rows_of, values_of
from dali_feed.records.pieces import ArrayPieces, Pieces
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents

KINDS = {
    "text": (pa.string(), st.text(max_size=9)),
    "large": (pa.large_binary(), st.binary(max_size=40)),
    "view": (pa.string_view(), st.text(max_size=20)),
    "int": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "flag": (pa.bool_(), st.booleans()),
    "list": (pa.list_(pa.float32()), st.lists(st.integers(0, 9).map(float), max_size=5)),
    "fixed": (pa.list_(pa.int64(), 2), st.lists(st.integers(0, 9), min_size=2, max_size=2)),
    "nested": (pa.list_(pa.list_(pa.int8())), st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "", "é"])),
}


def never() -> None:
    """A reader that is not stopped."""


def listed(values: Any) -> list[Any]:
    """Rows as Python has them."""
    return [
        bytes(value) if isinstance(value, memoryview) else value.tolist() if hasattr(value, "tolist") else value
        for value in values
    ]


ROWS = {name: st.lists(st.none() | values, min_size=1, max_size=20) for name, (_, values) in KINDS.items()}
PLACES = st.integers(0, 2**16)  # of rows or of their ends: what is left over when it is divided by how many there are


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data(), ends=st.lists(PLACES, max_size=3), picked=st.lists(PLACES, max_size=30))
def test_rows_are_those_of_the_table(name: str, data: st.DataObject, ends: list[int], picked: list[int]) -> None:
    """Any rows of any chunks and slices, nulls too; copied into a lease they are the same, and stay."""
    kind, rows = KINDS[name][0], data.draw(ROWS[name])
    cuts = sorted(end % (len(rows) + 1) for end in ends)
    parts = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    column = pa.chunked_array([pa.array([*part, None], kind).slice(0, len(part)) for part in parts], kind)
    (leaf,) = members_in(pa.schema({"c": kind})).values()
    held = values_of(leaf.of(pa.table({"c": column})), "c", "a table")
    some = np.array([place % len(rows) for place in picked], np.int64)
    wanted = [rows[k].encode() if isinstance(rows[k], str) else rows[k] for k in some.tolist()]
    pool = SlabPool(256)
    block = Block(some, {}, pool.lease())
    assert leaf.kind == plain(kind)
    assert listed(rows_of(held, some, block, never)) == wanted
    copied = rows_of(held, some, block, never, copy=True)
    assert listed(copied) == wanted
    assert pool.leased == 0 or isinstance(held, Pieces | ArrayPieces)
    assert list(contents_of(held, np.arange(len(rows)))) == list(
        contents_of(values_of(leaf.of(pa.table({"c": column.combine_chunks()})), "c", ""), np.arange(len(rows)))
    )


def test_what_lies_in_files_is_read_beside_what_does_not(tmp_path: Any) -> None:
    """Each into its row; a file that is not there is a fault of the row that it has in the block."""
    (tmp_path / "a").write_bytes(b"of a file")
    paths = [str(tmp_path / "a"), None, str(tmp_path / "gone"), None]
    column = pa.chunked_array(
        [pa.array([{"bytes": b, "path": p} for b, p in zip([None, b"own", None, None], paths, strict=True)])]
    )
    held = values_of(column, "image", "a table")
    assert isinstance(held, Files)
    block = Block(np.arange(14), {}, SlabPool().lease())
    found = rows_of(held, np.array([3, 2, 1, 0]), block, never, 10, copy=True)
    assert listed(found) == [None, None, b"own", b"of a file"]
    assert list(block.faults) == [11]


def test_groups_that_are_kept_are_of_the_memory(tmp_path: Path) -> None:
    """Two of a reader, what they take decoded, until it is closed: the pool counts them, and one that is too large."""
    columns = {"x": [bytes([n]) * 1000 for n in range(50)], "n": range(50)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=10, compression="zstd")
    source, pool = Table(tmp_path / "a.parquet", image=None), SlabPool(1 << 16, most=1 << 20)
    reader, group = source.reader(["x"]), 10 * (1000 + 4)
    for n, kept in enumerate([1, 2, 2, 2, 2]):
        reader.read(Extents.one(n, 3, 4), lease := pool.lease())
        lease.release()
        assert (pool.kept, pool.leased) == (kept * group, 0)
    assert pool.peak >= 2 * group
    reader.close()
    assert pool.kept == 0
    with pytest.raises(ConfigError, match=r"memory=9000\): must hold a group of rows; .*a\.parquet#20: row group 2, r"):
        source.reader(["x"]).read(Extents.one(2, 0, 1), SlabPool(1 << 10, most=9000).lease())
