"""Insides that contract/feed/test_changed_files.py needs not: they go with what they test."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from kit.blocks import taken
from kit.changed_files import WAYS, shard

from dali_feed.errors import SourceChangedError
from dali_feed.external_sources import tar as tar_index
from dali_feed.external_sources.shards import ShardSet
from dali_feed.records.extents import Extents
from dali_feed.storage.local import LocalStore
from dali_feed.testing.shards import write_shard


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes that cannot lie beside a shard lie here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("way", WAYS)
def test_a_shard_that_changes_within_a_read_is_told(
    tmp_path: Path, way: Callable[[Path, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was open and sound when the read began is looked at again after the last byte, evicted files too."""
    other = shard(tmp_path / "other.tar", 500)
    paths = [tmp_path / f"{k}.tar" for k in range(3)]
    for k, path in enumerate(paths):
        shard(path, 100 + 64 * k)
    real = os.preadv

    def changing(fd: int, views: Sequence[memoryview], at: int, flags: int = 0) -> int:
        got = real(fd, views, at, flags)
        if at > 512 and os.fstat(fd).st_ino == paths[0].stat().st_ino:
            way(paths[0], other)
        return got

    monkeypatch.setattr(os, "preadv", changing)
    source = ShardSet(paths)
    monkeypatch.setattr(source, "_store", LocalStore(most_open=1))
    source.snapshot()
    reader = source.reader()
    three = np.arange(3)
    with pytest.raises(SourceChangedError, match=r"0\.tar: a shard must not change"):
        reader.read(Extents(three, three * 0 + 1, three * 0 + 2))
    reader.close()


@pytest.mark.parametrize("way", WAYS)
def test_an_index_from_before_a_change_is_not_believed(tmp_path: Path, way: Callable[[Path, bytes], None]) -> None:
    """Where size and time of the last write are the old ones too, the members are looked for anew, where they lie."""
    path, kept = tmp_path / "a.tar", tmp_path / f"a.tar{tar_index.SUFFIX}"
    records = [(b"a" * 700, 1), (b"b" * 100, 2)]
    write_shard(path, records[::-1])
    other = path.read_bytes()
    write_shard(path, records)
    assert len(ShardSet(path).snapshot()) == 2
    os.utime(kept, (1, 1))  # long ago
    way(path, other)
    source = ShardSet(path)
    source.snapshot()
    block = source.reader().read(Extents.one(0, 0, 2))
    assert [taken(payload) for payload in block.payloads] == [b"b" * 100, b"a" * 700]
    block.lease.release()
