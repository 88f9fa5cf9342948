"""Reads of mounted files: from the page cache, from the disk, and from a file system that tells of no cache."""

from __future__ import annotations

import errno
import os
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dali_feed.external_sources import ShardSet
from dali_feed.records.source import Extents
from dali_feed.storage.local import LOCAL, LocalFile, LocalStore
from dali_feed.storage.local_reads import DEPTH, LARGE
from dali_feed.testing.shards import write_shard

DATA = np.random.default_rng(0).bytes(1 << 20)
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
    counts = store.fill(lambda _: file, [0] * len(at), views, at, threading.Event())
    file.close()
    return [bytes(view[:count]) for view, count in zip(views, counts, strict=True)], counts


def test_cold_reads_are_all_asked_for_before_one_is_waited_for(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk hears of up to DEPTH reads before the first that waits, and gives the file's bytes."""
    events: list[str] = []
    advise, preadv = os.posix_fadvise, os.preadv

    def advising(fd: int, at: int, size: int, what: int) -> None:
        events.append("ask")
        advise(fd, at, size, what)

    def reading(fd: int, views: Sequence[memoryview], at: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError(errno.EAGAIN, "the page cache has it not")
        events.append("wait")
        return preadv(fd, views, at)

    monkeypatch.setattr(os, "posix_fadvise", advising)
    monkeypatch.setattr(os, "preadv", reading)
    at = [7 * SIZE * k % len(DATA) for k in range(DEPTH + 2)]
    assert filled(LOCAL, path, at)[0] == [DATA[k : k + SIZE] for k in at]
    assert events == ["ask"] * DEPTH + ["wait"] * DEPTH + ["ask"] * 2 + ["wait"] * 2


def test_a_large_read_is_left_to_the_kernel(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that keeps the disk busy by itself is read in one go, with no question and no advice before it."""
    flags: list[int] = []
    preadv = os.preadv

    def reading(fd: int, views: Sequence[memoryview], at: int, flag: int = 0) -> int:
        flags.append(flag)
        return preadv(fd, views, at, flag)

    monkeypatch.setattr(os, "preadv", reading)
    os.truncate(path, LARGE + 1)
    file, view = LOCAL.open(path), bytearray(LARGE + 1)
    assert LOCAL.fill(lambda _: file, [0], [memoryview(view)], [0], threading.Event()) == [LARGE + 1]
    file.close()
    assert flags == [0]
    assert view[:-1] == DATA


def test_what_the_page_cache_has_half_is_read_whole(path: str) -> None:
    """A file that was dropped, and read in part since, gives its bytes; one that ends gives fewer."""
    at = [100 * k for k in range(60)] + [len(DATA) - 5, len(DATA) + 5]
    forget(path)
    with open(path, "rb", buffering=0) as file:
        file.read(4096)
    assert filled(LOCAL, path, at)[0] == [DATA[k : k + SIZE] for k in at]


def test_a_file_system_that_tells_of_no_cache_is_asked_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where reads that do not wait are refused, and advice too, the bytes come all the same."""
    refused: list[int] = []
    preadv = os.preadv

    def refusing(fd: int, views: Sequence[memoryview], at: int, flags: int = 0) -> int:
        if flags:
            refused.append(at)
            raise OSError(errno.EOPNOTSUPP, "not here")
        return preadv(fd, views, at)

    def silent(*_: int) -> None:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr(os, "preadv", refusing)
    monkeypatch.setattr(os, "posix_fadvise", silent)
    assert filled(LOCAL, path, [0, 9, 99])[0] == [DATA[k : k + SIZE] for k in (0, 9, 99)]
    assert refused == [0]


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
    reader = source.reader()
    block = reader.read(Extents(np.arange(6), np.zeros(6, np.int64), np.ones(6, np.int64)))
    assert [bytes(payload or b"") for payload in block.payloads] == [bytes([k]) * 5000 for k in range(6)]
    block.lease.release()
    reader.close()


def test_each_read_of_mounted_files_is_counted(path: str) -> None:
    """Reads, bytes and a histogram of their times, of one reader; a read that fails gives no bytes."""
    store, other = LOCAL.metered(), LOCAL.metered()
    forget(path)
    filled(store, path, [0, 0, SIZE, len(DATA) - 5])
    broken = LocalFile(os.open(os.path.dirname(path), os.O_RDONLY))  # a folder gives no bytes
    assert store.fill(lambda _: broken, [0], [memoryview(bytearray(9))], [0], threading.Event()) == [-1]
    broken.close()
    assert store.meter is not None
    assert other.meter is not None
    found = store.meter.stats()
    assert (found.store, found.reads, found.bytes, found.queued) == ("local", 5, 3 * SIZE + 5, 0)
    assert sum(found.latency) == 5
    assert found.seconds > 0
    assert other.meter.stats().reads == 0


def test_the_local_store_is_itself_in_another_process() -> None:
    """Who asks whether files lie beside their indexes gets the same answer there."""
    assert pickle.loads(pickle.dumps(LOCAL)) is LOCAL
    assert pickle.loads(pickle.dumps(LocalStore(3))).most_open == 3
