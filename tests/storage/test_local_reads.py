"""Reads of mounted files: from the page cache, from the disk, where no cache is told, and of what changes."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from kit.blocks import rows
from kit.changed_files import WAYS, shard

from dali_feed.errors import SourceChangedError
from dali_feed.external_sources import ShardSet
from dali_feed.external_sources.index import SUFFIX
from dali_feed.packing.sinks import write_shard
from dali_feed.records.extents import Extents
from dali_feed.storage import lustre
from dali_feed.storage.store import DEPTH, LARGE, LOCAL, FileReads, LocalFile, LocalStore

DATA = np.random.default_rng(0).bytes(3 << 20)
SIZE = 2000


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file whose bytes are on the disk."""
    (tmp_path / "a").write_bytes(DATA)
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return str(tmp_path / "a")


def forget(path: str) -> None:
    """Have none of it in the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def filled(store: LocalStore, path: str, at: Sequence[int]) -> tuple[list[bytes], list[int]]:
    """What reads from those places gave, and how many bytes each had."""
    file = store.open(path)
    views = [memoryview(bytearray(SIZE)) for _ in at]
    counts = store.fill(FileReads(lambda _: file, [0] * len(at), views, at, threading.Event()))
    file.close()
    return [bytes(view[:count]) for view, count in zip(views, counts, strict=True)], counts


@pytest.mark.parametrize("lustre_s", [False, True])
def test_cold_reads_are_those_of_the_file(path: str, lustre_s: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are asked of a disk at once, small and large, over and behind the file's end; on Lustre too."""
    if lustre_s:
        monkeypatch.setattr(lustre, "magic_of", lambda _: lustre.MAGIC)
        monkeypatch.setattr(lustre, "AHEAD_BYTES", 2 * LARGE)
    rng = np.random.default_rng(1)
    at = [*rng.integers(0, len(DATA), DEPTH + 70).tolist(), *range(0, 5000, 100), len(DATA) - 5, len(DATA) + 5]
    sizes = [LARGE + 1 if k % 50 == 7 else SIZE for k in range(len(at))]
    file = LOCAL.open(path)
    assert file.ahead == (2 * LARGE if lustre_s else 0)
    views = [memoryview(bytearray(size)) for size in sizes]
    forget(path)
    with open(path, "rb", buffering=0) as part:
        part.read(4096)  # the page cache has some of it
    counts = LOCAL.fill(FileReads(lambda _: file, [0] * len(at), views, at, threading.Event()))
    file.close()
    wanted = [DATA[k : k + size] for k, size in zip(at, sizes, strict=True)]
    assert [bytes(view[:count]) for view, count in zip(views, counts, strict=True)] == wanted


def test_a_file_system_that_tells_of_no_cache_gives_its_bytes() -> None:
    """Where reads that do not wait are refused, as the kernel's own files refuse them."""
    whole = Path("/proc/version").read_bytes()
    file, views = LOCAL.open("/proc/version"), [memoryview(bytearray(9)) for _ in range(3)]
    assert LOCAL.fill(FileReads(lambda _: file, [0] * 3, views, [0, 4, 8], threading.Event())) == [9, 9, 9]
    assert [bytes(view) for view in views] == [whole[k : k + 9] for k in (0, 4, 8)]
    assert not file.at_once
    file.close()


def test_a_read_that_comes_in_parts_goes_on_where_it_was(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system may give it, before the end of a file too: what came is not read again."""
    begun, preadv = list[int](), os.preadv

    def short(fd: int, views: Sequence[memoryview], at: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError(errno.EAGAIN, "not in the page cache")
        begun.append(at)
        return preadv(fd, [views[0][:700]], at)

    monkeypatch.setattr(os, "preadv", short)
    assert filled(LOCAL, path, [5]) == ([DATA[5 : 5 + SIZE]], [SIZE])
    assert begun == [5, 705, 1405]


def test_a_file_that_was_closed_meanwhile_is_opened_again(tmp_path: Path) -> None:
    """A block of more cold shards than may be open gets each one's own bytes, though file numbers come again."""
    paths = []
    for k in range(6):
        paths.append(tmp_path / f"{k}.tar")
        write_shard(paths[-1], [(bytes([k]) * 5000, k)])
    source = ShardSet(paths)
    source._store = LocalStore(most_open=2)
    source.snapshot()
    for each in paths:
        with each.open("rb") as file:
            os.fsync(file.fileno())
        forget(str(each))
    firsts = Extents(np.arange(6), np.zeros(6, np.int64), np.ones(6, np.int64))
    assert [row["jpg"] for row in rows(source, "jpg", extents=firsts)] == [bytes([k]) * 5000 for k in range(6)]


def test_each_read_of_mounted_files_is_counted(path: str) -> None:
    """Reads, bytes and a histogram of their times, of one reader; one that fails or is stopped gives no bytes."""
    store, other = LOCAL.metered(), LOCAL.metered()
    forget(path)
    filled(store, path, [0, 0, SIZE, len(DATA) - 5])
    broken = LocalFile([os.open(os.path.dirname(path), os.O_RDONLY)])  # a folder gives no bytes
    assert store.fill(FileReads(lambda _: broken, [0], [memoryview(bytearray(9))], [0], threading.Event())) == [-1]
    broken.close()
    assert store.meter is not None
    assert other.meter is not None
    stop = threading.Event()
    stop.set()  # before a file is opened
    assert store.fill(
        FileReads(lambda _: LOCAL.open("gone"), [0, 0], [memoryview(bytearray(9))] * 2, [0, 9], stop)
    ) == [
        -1,
        -1,
    ]
    found = store.meter.stats()
    assert (found.store, found.reads, found.bytes, found.queued) == ("local", 5, 3 * SIZE + 5, 0)
    assert sum(found.latency) == 5
    assert found.seconds > 0
    assert other.meter.stats().reads == 0


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

    source = ShardSet(paths)
    monkeypatch.setattr(source, "_store", LocalStore(most_open=1))
    source.snapshot()
    monkeypatch.setattr(os, "preadv", changing)
    three = np.arange(3)
    with pytest.raises(SourceChangedError, match=r"0\.tar: a shard must not change"):
        rows(source, extents=Extents(three, three * 0 + 1, three * 0 + 2))


@pytest.mark.parametrize("way", WAYS)
def test_an_index_from_before_a_change_is_not_believed(tmp_path: Path, way: Callable[[Path, bytes], None]) -> None:
    """Where size and time of the last write are the old ones too, the members are looked for anew, where they lie."""
    path, kept = tmp_path / "a.tar", tmp_path / f"a.tar{SUFFIX}"
    records = [(b"a" * 700, 1), (b"b" * 100, 2)]
    write_shard(path, records[::-1])
    other = path.read_bytes()
    write_shard(path, records)
    assert len(ShardSet(path).snapshot()) == 2
    os.utime(kept, (1, 1))  # long ago
    way(path, other)
    source = ShardSet(path)
    source.snapshot()
    assert [row["image"] for row in rows(source)] == [b"b" * 100, b"a" * 700]
