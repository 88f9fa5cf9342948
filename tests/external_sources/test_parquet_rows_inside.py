"""Insides that contract/sources/test_parquet_rows.py needs not: they go with what they test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.images import jpeg

from dali_feed.cli.inspect import inspect_all
from dali_feed.cli.targets import Access
from dali_feed.cli.verify import verify_all

IMAGES = [jpeg(n) for n in range(30)]


def table(**columns: Any) -> pa.Table:
    """Images as Hugging Face keeps them, labels, texts of several kinds with a null, and numbers in lists."""
    texts = [None if n == 4 else f"row {n}" for n in range(30)]
    kinds: dict[str, Any] = {
        "image": [{"bytes": image, "path": None if n % 2 else f"{n}.jpg"} for n, image in enumerate(IMAGES)],
        "label": pa.array(range(30), pa.int32()),
        "text": texts,
        "large": pa.array(texts, pa.large_string()),
        "dictionary": pa.array(texts).dictionary_encode(),
        "x": pa.array([[n, n + 0.5] for n in range(30)], pa.list_(pa.float32())),
        "fixed": pa.array([[n, n + 0.5] for n in range(30)], pa.list_(pa.float32(), 2)),
    }
    return pa.table(kinds | columns)


def written(folder: Path, name: str = "a.parquet", rows: Any = None, **options: Any) -> str:
    """A file with row groups of 7 rows, unless told."""
    pq.write_table(table() if rows is None else rows, folder / name, **({"row_group_size": 7} | options))
    return str(folder / name)


def test_inspect_and_verify_read_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its ending; members are listed, and every record is looked at."""
    images = [{"bytes": b"no image" if n == 8 else image, "path": "x.jpg"} for n, image in enumerate(IMAGES)]
    path = written(tmp_path, rows=table(image=images))
    assert inspect_all([path], Access(), sample=30) == (1, 0)
    assert verify_all([path], Access(), readers=1) == 1
    told = capsys.readouterr().out
    assert "a.parquet#8: " in told
    assert "dictionary" in told
