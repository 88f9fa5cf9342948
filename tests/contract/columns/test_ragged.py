"""Arrays of which each record has its own number of rows: a list, a padded array with a count, a nested tensor."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from kit.blocks import columns_of
from kit.by_hand import npy
from kit.images import QUICK
from kit.inside import write_shard

from dali_feed import DataLoader
from dali_feed.columns import Array, Counted, Number
from dali_feed.errors import ConfigError
from dali_feed.external_sources import ShardSet, Table
from dali_feed.testing import assert_resumes_anywhere

pytestmark = pytest.mark.usefixtures("cache_home")

ROWS = [np.arange(4 * (n % 4), dtype=np.float32).reshape(-1, 4) + n for n in range(12)]  # some have none


def shards(folder: Path, large: int = 1) -> ShardSet:
    """Rows as bytes without a header, as `.npy` and as JSON; large ones are read straight into batches."""
    samples = (
        {"f32": np.tile(rows, (large, 1)).tobytes(), "npy": npy(np.asfortranarray(rows)), "cls": b"%d" % n}
        | {"json": json.dumps({"x": rows.tolist()}).encode()}
        for n, rows in enumerate(ROWS)
    )
    write_shard(folder / "a.tar", samples)
    return ShardSet(folder / "a.tar", label=None)


def batch(source: Any, column: Array, **options: Any) -> Any:
    """The whole source as one batch of that column, as a loader gives it."""
    with DataLoader(source, 12, columns={"x": column}, device="cpu", tuning=QUICK, **options) as loader:
        return next(iter(loader))["x"]


@pytest.mark.parametrize(("member", "large"), [("f32", 1), ("f32", 400), ("npy", 1), ("json:x", 1)])
def test_rows_come_in_each_form(tmp_path: Path, member: str, large: int) -> None:
    """Whatever they were stored as; a nested tensor has torch's jagged layout."""
    wanted = [torch.from_numpy(np.tile(rows, (large, 1))) for rows in ROWS]
    source, shape = shards(tmp_path, large), (None, 4)
    listed = batch(source, Array(member, "float32", shape))
    padded = batch(source, Array(member, "float32", shape, ragged="pad", most=3 * large))
    nested = batch(source, Array(member, "float32", shape, ragged="nested"))
    assert isinstance(padded, Counted)
    assert padded.rows.shape == (12, 3 * large, 4)
    assert padded.count.tolist() == [len(rows) for rows in wanted]
    assert nested.layout is torch.jagged
    for n, rows in enumerate(wanted):
        assert torch.equal(listed[n], rows)
        assert torch.equal(padded.rows[n, : len(rows)], rows)
        assert not padded.rows[n, len(rows) :].any()
        assert torch.equal(nested[n], rows)


def test_numbers_of_a_table(tmp_path: Path) -> None:
    """Lists of several lengths, of the dtype that they have; a null is a missing member."""
    source = Table(pa.table({"x": pa.array([[1, 2], None, [], [3]], pa.list_(pa.int16()))}), image=None)
    with DataLoader(source, 4, columns=[Array("x", shape=(None,), default=[])], device="cpu", tuning=QUICK) as loader:
        ((rows,),) = loader
    assert [(each.dtype, each.tolist()) for each in rows] == [(torch.int16, x) for x in ([1, 2], [], [], [3])]


def test_a_collate_fn_gets_the_rows_of_each_record(tmp_path: Path) -> None:
    """As a tensor, whatever a batch would be."""
    columns = {"x": Array("f32", "float32", (None, 4), ragged="nested")}
    with DataLoader(shards(tmp_path), 12, columns=columns, device="cpu", tuning=QUICK, collate_fn=list) as loader:
        samples = next(iter(loader))
    assert [sample["x"].tolist() for sample in samples] == [rows.tolist() for rows in ROWS]


def test_a_run_resumes_anywhere(tmp_path: Path) -> None:
    """A state taken after any batch gives the rest at other world sizes."""
    columns = {"x": Array("f32", "float32", (None, 4), ragged="pad", most=3), "n": Number("cls")}
    assert_resumes_anywhere(shards(tmp_path), columns=columns, shuffle=True, positions=3)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (bytes(20), r"rows of float32 \(4,\) must have 16 bytes each; found 20 bytes"),
        (bytes(64), r"at most 3 rows \(most=\) are allowed; found 4"),
        (npy(np.zeros((2, 3), np.float32)), r"shape must be \(2, 4\); found \(2, 3\)"),
        (npy(np.zeros((2, 4))), "must be float32; found float64"),
    ],
)
def test_a_record_of_other_rows_is_a_bad_one(tmp_path: Path, value: bytes, reason: str) -> None:
    """Its slot goes to another."""
    write_shard(tmp_path / "a.tar", [{"f32": ROWS[n].tobytes()} for n in range(3)] + [{"f32": value}])
    column = Array("f32", "float32", (None, 4), most=3)
    block = columns_of(ShardSet(tmp_path / "a.tar", label=None), {"x": column})
    assert list(block.faults) == [3]
    assert re.search(reason, block.faults[3].reason)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"shape": (None, 4), "ragged": "pad"}, "needs most="),
        ({"shape": (4,), "most": 3}, "are of a shape whose first side is None"),
        ({"shape": (4, None)}, "shape must be a tuple of positive ints, the first may be None"),
        ({"shape": (None, 4), "ragged": "stack"}, 'ragged must be "list", "pad" or "nested"'),
        ({"shape": (None, 4), "most": 0}, "most, where it is not None"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], rule: str) -> None:
    """By the column, when it is made."""
    with pytest.raises(ConfigError, match=rule):
        Array("f32", "float32", **options)
