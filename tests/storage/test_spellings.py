"""What files are called, and that each is named once, however it is spelled."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dali_feed.errors import ConfigError
from dali_feed.external_sources import Arrays, ShardSet, Table
from dali_feed.packing.sinks import write_shard
from dali_feed.storage.paths import unique_names

TWICE = [
    (ShardSet, "a.tar", "each shard may be named once; found"),
    (Arrays, "a.npy", "each file may be named once; found"),
    (Table, "a.parquet", "each file must be named once"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a file of each kind, which relative paths begin in."""
    write_shard(tmp_path / "a.tar", [(b"x", 1)])
    np.save(tmp_path / "a.npy", np.zeros((2, 2)))
    pq.write_table(pa.table({"image": [b"x"]}), tmp_path / "a.parquet")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("spelled", [lambda name: f"./{name}", os.path.abspath, lambda name: f"b/../{name}"])
@pytest.mark.parametrize(("source", "name", "rule"), TWICE, ids=["tar", "npy", "parquet"])
def test_a_file_in_two_spellings_is_named_twice(
    source: Callable[[Any], Any], name: str, rule: str, spelled: Callable[[str], str]
) -> None:
    """An error at once: names of one path are never told apart, and who looked for such would look for ever."""
    os.makedirs("b", exist_ok=True)
    with pytest.raises(ConfigError, match=rule):
        source([name, spelled(name)])


def test_names_end_where_paths_do() -> None:
    """As few folders as tell paths apart; where none do, as of two schemes of one address, the whole of each."""
    assert unique_names(["/d/a/x.tar", "/d/b/x.tar"]) == ("a/x.tar", "b/x.tar")
    assert unique_names(["/b/x.tar", "s3://b/x.tar"]) == ("/b/x.tar", "s3://b/x.tar")
    assert unique_names(["/x.tar", "/d/x.tar"]) == ("x.tar", "d/x.tar")
    assert unique_names([]) == ()
