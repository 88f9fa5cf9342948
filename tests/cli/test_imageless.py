"""Sources without images: inspect lists their members, verify reads every record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from kit.record_files import tfrecord
from kit.tf_example import example_bytes

from dali_feed.cli.inspect import inspect_all
from dali_feed.cli.targets import Access
from dali_feed.cli.verify import verify_all
from dali_feed.errors import ConfigError

ROWS = pa.table({"x": [[n, n + 0.5] for n in range(9)], "text": [None] + ["abcd"] * 8})


def written(folder: Path, kind: str) -> str:
    """A file of nine rows."""
    path = folder / f"a.{kind}"
    if kind == "npy":
        np.save(path, np.ones((9, 2)))
    elif kind == "parquet":
        pq.write_table(ROWS, path)
    else:
        with pa.ipc.new_file(path, ROWS.schema) as writer:
            writer.write_table(ROWS)
    return str(path)


@pytest.mark.parametrize("kind", ["npy", "arrow", "feather", "parquet"])
def test_members_are_listed_and_records_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """A member has its share of the records and its mean size; no record is bad for want of an image."""
    path = written(tmp_path, kind)
    assert inspect_all([path], Access(), sample=9) == (0, 0)
    told = [line.strip() for line in capsys.readouterr().out.splitlines()]
    member = next(line for line in told if line.startswith("row" if kind == "npy" else "x "))
    assert "100%" in member
    assert "16 bytes" in member
    assert kind == "npy" or any(line.startswith("text") and "89%" in line and "4 bytes" in line for line in told)
    assert verify_all([path], Access(), readers=1) == 0
    assert "9, read" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--decode is for images; found none"):
        verify_all([path], Access(), decode=True)


def test_faults_of_records_without_images_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of TFRecords whose features are numbers and texts: a record whose CRC is wrong is bad, and named."""
    data = bytearray(tfrecord([example_bytes({"text": b"abcd", "n": n}) for n in range(3)]))
    data[len(data) // 2] ^= 32
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data)
    assert inspect_all([str(path)], Access(), sample=3) == (1, 0)
    assert "a.tfrecord#1: the record's CRC is wrong" in capsys.readouterr().out
    assert verify_all([str(path)], Access(), readers=1) == 1
    assert "2, read" in capsys.readouterr().out
