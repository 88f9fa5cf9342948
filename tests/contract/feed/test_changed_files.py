"""Files that are written or replaced while a loader runs: an error or a bad record, and never the new bytes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from kit.blocks import rows
from kit.changed_files import WAYS, replaced, shard
from kit.images import QUICK, jpeg
from kit.inside import Feed

from dali_feed import Shuffle, Tuning
from dali_feed.errors import SourceChangedError
from dali_feed.external_sources import FileList, ShardSet


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes that cannot lie beside a shard lie here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("way", WAYS)
def test_a_shard_that_changes_under_a_loader_is_told_and_not_delivered(
    tmp_path: Path, way: Callable[[Path, bytes], None]
) -> None:
    """Of a shard of the same size that takes its place no label is delivered, and the pass ends with its name."""
    other = shard(tmp_path / "other.tar", 500)
    paths = [tmp_path / f"{k}.tar" for k in range(4)]
    old = [shard(path, 100 + 64 * k) for k, path in enumerate(paths)]
    assert {len(data) for data in old} == {len(other)}
    order = Shuffle(extent=8, window=1)
    with Feed(ShardSet(paths), 8, shuffle=order, tuning=Tuning(threads=1, readers=1, prefetch=1)) as feed:
        batches = iter(feed)
        seen = next(batches).fields["label"].tolist()
        for path in paths:
            way(path, other)
        told = r"\d\.tar: a shard must not change .* make a new ShardSet"
        with pytest.raises(SourceChangedError, match=told):
            seen.extend(label for batch in batches for label in batch.fields["label"].tolist())
    assert max(seen) < 500


@pytest.mark.parametrize("way", WAYS)
def test_no_fingerprint_is_given_of_shards_that_changed(tmp_path: Path, way: Callable[[Path, bytes], None]) -> None:
    """A second loader over the same ShardSet would take the old index for the new bytes: it is refused at once."""
    other, path = shard(tmp_path / "other.tar", 500), tmp_path / "a.tar"
    shard(path, 100)
    source = ShardSet(path)
    assert source.snapshot().fingerprint == source.snapshot().fingerprint
    way(path, other)
    with pytest.raises(SourceChangedError, match=r"a\.tar"):
        source.snapshot()
    with Feed(ShardSet(path), 8, tuning=QUICK) as feed:
        assert next(iter(feed)).fields["label"].tolist() == list(range(500, 508))


def test_a_copy_of_a_source_looks_at_its_own_files(tmp_path: Path) -> None:
    """Sent to a machine with its own copies of the shards, whose inodes and times are others, it reads those."""
    path = tmp_path / "a.tar"
    data = shard(path, 100)
    source = ShardSet(path)
    fingerprint = source.snapshot().fingerprint
    sent = pickle.dumps(source)
    replaced(path, data)
    assert pickle.loads(sent).snapshot().fingerprint == fingerprint


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_written_while_it_is_read_is_a_bad_record(
    tmp_path: Path, way: Callable[[Path, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of one picture and half of another, of as many bytes, costs its row; the files beside it are whole."""
    paths = [tmp_path / f"{k}.jpg" for k in range(3)]
    for path in paths:
        path.write_bytes(jpeg(0))
    real, inode = os.preadv, paths[1].stat().st_ino

    def changing(fd: int, views: Sequence[memoryview], at: int) -> int:
        if os.fstat(fd).st_ino != inode:
            return real(fd, views, at)
        half = len(views[0]) // 2
        if at == 0:
            return real(fd, (views[0][:half],), 0)
        way(paths[1], bytes(len(jpeg(0))))
        return real(fd, views, at)

    monkeypatch.setattr(os, "preadv", changing)
    first, changed, last = rows(FileList(paths), "bytes")
    assert changed["fault"].startswith("the file changed while it was read: ")
    assert [len(each["bytes"]) for each in (first, last)] == [len(jpeg(0))] * 2
