"""Insides that contract/sources/test_shards.py needs not: they go with what they test."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dali_feed.errors import (
    ClosedError,
    ConfigError,
    SourceNotFoundError,
)
from dali_feed.external_sources import shards as shard_reader
from dali_feed.external_sources import tar as tar_index
from dali_feed.external_sources.shards import ShardSet
from dali_feed.records.extents import Extents
from dali_feed.storage.local import LocalFile, LocalStore
from dali_feed.testing.shards import write_shard


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Indexes that cannot lie beside a shard lie here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def read_sizes(patch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that each read from now on asks for, in order."""
    sizes: list[int] = []
    real = os.preadv

    def recording(fd: int, views: Sequence[memoryview], at: int, flags: int = 0) -> int:
        got = real(fd, views, at, flags)  # what the page cache lacks raises here, and is read again
        sizes.append(len(views[0]))
        return got

    patch.setattr(os, "preadv", recording)
    return sizes


def test_neighbours_are_read_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequential extent is a few large reads, a read of lone samples one each, and a gap is not read."""
    path = tmp_path / "a.tar"
    write_shard(path, [(bytes(50_000), k) for k in range(200)])
    source = ShardSet(path)
    source.snapshot()
    sizes = read_sizes(monkeypatch)
    reader = source.reader()
    reader.read(Extents.one(0, 0, 200)).lease.release()
    assert len(sizes) == 3
    assert max(sizes) <= shard_reader.RUN_BYTES
    sizes.clear()
    at = np.arange(0, 200, 20)
    reader.read(Extents(np.zeros(10, np.int64), at, at + 1)).lease.release()
    assert len(sizes) == 10
    assert max(sizes) < 52_000


def test_patterns(tmp_path: Path) -> None:
    """Globs, braces, ranges and lists name the files one expects, in the order one expects."""
    for k in range(12):
        write_shard(tmp_path / f"t-{k:02d}.tar", [(b"x", k)])
    (tmp_path / "u").mkdir()
    write_shard(tmp_path / "u" / "t-00.tar", [(b"y", 0)])
    t = f"{tmp_path}/t-"

    def names(shards: Any) -> list[str]:
        return [os.path.relpath(p, tmp_path)[2:4] for p in ShardSet(shards).paths]

    assert names(f"{t}*.tar") == [f"{k:02d}" for k in range(12)]
    assert names(t + "{08..11}.tar") == ["08", "09", "10", "11"]
    assert names(t + "{0,1}{1,0}.tar") == ["00", "01", "10", "11"]
    for index in (tar_index.SUFFIX, ".idx"):
        Path(f"{t}00.tar{index}").touch()  # an index beside its shard is no shard, ours nor another tool's
    assert names(f"{t}0[01]*") == ["00", "01"]
    assert names([f"{t}03.tar", Path(f"{t}01.tar")]) == ["03", "01"]
    twins = ShardSet([f"{t}00.tar", tmp_path / "u" / "t-00.tar", f"{t}05.tar"])
    assert twins.where(1, 7) == "u/t-00.tar#7"
    assert len(set(twins.snapshot().names)) == 3
    assert ShardSet(f"{t}05.tar").where(0, 118) == "t-05.tar#118"
    for bad, error in (
        (f"{tmp_path}/v-*.tar", SourceNotFoundError),
        (t + "{10..12}.tar", SourceNotFoundError),
        ([f"{t}01.tar", f"{t}0*.tar"], ConfigError),
        ([], ConfigError),
        (tmp_path, ConfigError),
        ("pipe:cat a.tar", ConfigError),
        (t + "{11..08}.tar", ConfigError),
    ):
        with pytest.raises(error):
            ShardSet(bad)
    with pytest.raises(SourceNotFoundError, match=r"v-\*\.tar"):
        ShardSet(f"{tmp_path}/v-*.tar")


class _Recording(LocalStore):
    """Remembers what was opened."""

    opened: ClassVar[list[str]] = []

    def open(self, path: str, stop: threading.Event | None = None) -> LocalFile:
        self.opened.append(Path(path).stem)
        return super().open(path, stop)


def test_a_reader_keeps_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many shards there are, no more than the store allows stay open, and none after close()."""
    for k in range(10):
        write_shard(tmp_path / f"{k}.tar", [(b"x", k)])
    source = ShardSet(f"{tmp_path}/*.tar")
    monkeypatch.setattr(source, "_store", _Recording(3))
    source.snapshot()
    before = len(os.listdir("/proc/self/fd"))
    reader = source.reader()
    for shard in [*range(10), *range(10)]:
        block = reader.read(Extents.one(shard, 0, 1))
        assert block.fields["label"].tolist() == [shard]
        assert len(os.listdir("/proc/self/fd")) <= before + 3
    _Recording.opened.clear()
    for shard in (0, 1, 2, 0, 3, 0):  # what was used last stays
        reader.read(Extents.one(shard, 0, 1)).lease.release()
    assert _Recording.opened == ["0", "1", "2", "3"]
    reader.close()
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ClosedError):
        reader.read(Extents.one(0, 0, 1))
