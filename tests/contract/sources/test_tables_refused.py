"""Tables of files: what they cannot be asked for, and what stays behind when one is sent to another process."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.images import jpeg

from dali_feed.errors import ConfigError, SourceEmptyError
from dali_feed.external_sources import Table


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two rows."""
    pq.write_table(pa.table({"image": [jpeg(0), jpeg(1)], "n": [1.5, 2.5]}), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


def test_files_are_named_once_each(path: Path) -> None:
    """None, and one twice, are refused."""
    for files in ([], [path, path]):
        with pytest.raises(ConfigError, match="Table: each file must be named once, and there must be at least one"):
            Table(files)


def test_a_table_is_as_it_is(path: Path, tmp_path: Path) -> None:
    """It takes no pin, has an image of bytes alone, and must hold rows."""
    source = Table(path)
    assert source.paths == (str(path),)
    with pytest.raises(ConfigError, match="Parquet files are fixed and take no pin; found"):
        source.snapshot({"topic": "t"})
    with pytest.raises(ConfigError, match="member 'n': an image is made of binary, .* found double"):
        source.image_of("n")
    pq.write_table(pa.table({"image": pa.array([], pa.binary())}), tmp_path / "none.parquet")
    with pytest.raises(SourceEmptyError, match=r"Parquet files must hold rows; found none in 1 file\(s\)"):
        Table(tmp_path / "none.parquet").snapshot()


def test_a_table_that_was_sent_looks_at_its_own_files(path: Path) -> None:
    """Its footers stay behind: on another machine the files may be others, and are seen to be."""
    source = Table(path)
    mine = source.snapshot().fingerprint
    sent = pickle.dumps(source)
    assert pickle.loads(sent).snapshot().fingerprint == mine
    pq.write_table(pa.table({"image": [jpeg(2)], "n": [1.5]}), path)
    assert len(pickle.loads(sent).snapshot()) == 1
