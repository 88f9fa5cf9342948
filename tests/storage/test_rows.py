"""Rows of files that are read to where they belong: the bytes of plain reads, whatever the page cache has."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dali_feed.native import library as native
from dali_feed.storage import rows as filling
from dali_feed.storage.local import LOCAL, LocalFile, LocalStore
from dali_feed.storage.rows import FileRows, fill_rows

SIZES = (3 << 20, 50_000, 1, 0, 200_000)
DATA = [np.random.default_rng(k).bytes(size) for k, size in enumerate(SIZES)]


@pytest.fixture(autouse=True, params=["in C", "in Python"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the library is used, where there is one."""
    if request.param == "in Python":
        monkeypatch.setattr(filling, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("the loops in C are not compiled")


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Files of DATA, on the disk."""
    for k, data in enumerate(DATA):
        with (tmp_path / str(k)).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    return [str(tmp_path / str(k)) for k in range(len(DATA))]


class Opened:
    """At most so many files, the oldest of which is closed for another."""

    def __init__(self, paths: list[str], most: int) -> None:
        self._paths, self._most, self._open = paths, most, dict[int, LocalFile]()

    def __call__(self, k: int) -> LocalFile:
        """That file, open."""
        self._open[k] = self._open.pop(k) if k in self._open else LOCAL.open(self._paths[k])
        if len(self._open) > self._most:
            self._open.pop(next(iter(self._open))).close()
        return self._open[k]

    def close(self) -> None:
        """All of them."""
        for file in self._open.values():
            file.close()


@pytest.fixture
def opened(paths: list[str]) -> Iterator[Opened]:
    """Two at once."""
    files = Opened(paths, 2)
    yield files
    files.close()


def drawn(count: int, seed: int) -> tuple[FileRows, bytearray]:
    """Rows of any files, near and far, of any sizes, over their ends too; and the room that they go to."""
    rng = np.random.default_rng(seed)
    file = rng.integers(0, len(SIZES), count)
    size = rng.integers(0, 4000, count) * rng.integers(0, 2, count) + (rng.integers(0, 40, count) == 0) * (2 << 20)
    at = (rng.random(count) * (np.array(SIZES)[file] + 100)).astype(np.int64)
    room = bytearray(int(size.sum()) + 1)
    to = np.empty(count, np.int64)
    order = rng.permutation(count)
    to[order] = np.cumsum(size[order]) - size[order]
    return FileRows(file, at, size.astype(np.int64), to, memoryview(room)), room


@pytest.mark.parametrize("cold", [False, True])
def test_rows_are_those_of_their_files(paths: list[str], opened: Opened, cold: bool) -> None:
    """In any order, of more files than may be open, in the page cache or not; of a short one as much as there is."""
    store = LocalStore(most_open=2)
    for seed in range(6):
        rows, room = drawn(150, seed)
        for path in paths if cold else ():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        counts = fill_rows(store, opened, rows, threading.Event())
        for k, (file, at, size, to) in enumerate(zip(*(each.tolist() for each in rows[:4]), strict=True)):
            wanted = DATA[file][at : at + size]
            assert (counts[k], bytes(room[to : to + len(wanted)])) == (len(wanted), wanted)


def test_what_was_read_is_counted(opened: Opened) -> None:
    """Bytes of all, and neighbours as the one read that they were."""
    store = LOCAL.metered()
    count = 100
    at, size = np.arange(count) * 1000, np.full(count, 488)
    rows = FileRows(np.zeros(count, np.int64), at, size, np.cumsum(size) - size, memoryview(bytearray(count * 488)))
    assert (fill_rows(store, opened, rows, threading.Event()) == 488).all()
    assert store.meter is not None
    found = store.meter.stats()
    assert (found.bytes, found.reads <= count) == (count * 488, True)


def test_nothing_is_read_after_a_stop(opened: Opened) -> None:
    """Every count says so."""
    rows, room = drawn(20, 0)
    stop = threading.Event()
    stop.set()
    assert (fill_rows(LOCAL, opened, rows, stop) == -1).all()
    assert not any(room)
