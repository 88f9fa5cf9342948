"""A cache of pieces of files: the bytes beneath, fetched once, and what is kept of them."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from beneath import DATA, PIECE, SIZE, Counting, opened, pieces, read, taken
from hypothesis import given, settings
from hypothesis import strategies as st

from dali_feed.errors import ConfigError
from dali_feed.storage.depot import HEAD, NEVER, Coming
from dali_feed.storage.disk_cache import CachedFile, CachedStore, DiskCache
from dali_feed.storage.local import LOCAL


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file."""
    (tmp_path / "data").write_bytes(DATA)
    return str(tmp_path / "data")


@settings(max_examples=40)
@given(ranges=st.lists(st.tuples(st.integers(0, SIZE + 10), st.integers(0, 3 * PIECE)), min_size=1, max_size=5))
def test_any_range_has_the_bytes_of_the_file(tmp_path_factory: pytest.TempPathFactory, ranges: Any) -> None:
    """Also beyond its end, and of several at once; and no piece is fetched twice."""
    folder = tmp_path_factory.mktemp("any")
    (folder / "data").write_bytes(DATA)
    below, store, file = opened(str(folder / "data"))
    views = [memoryview(bytearray(size)) for _, size in ranges]
    counts = store.fill(lambda _: file, [0] * len(ranges), views, [at for at, _ in ranges], threading.Event())
    for (at, size), view, got in zip(ranges, views, counts, strict=True):
        assert bytes(view[:got]) == DATA[at : at + size]
    assert len(below.reads) == len(set(below.reads))
    shutil.rmtree(folder)


def test_a_second_epoch_reads_nothing_below(path: str) -> None:
    """Another process, or another run, finds what is there."""
    below, _, file = opened(path)
    assert read(file) == DATA
    assert sorted(below.reads) == [(at, min(PIECE, SIZE - at)) for at in range(0, SIZE, PIECE)]
    below, _, file = opened(path)
    assert read(file) == DATA
    assert not below.reads
    (stats,) = file.storage()
    assert (stats.hits, stats.misses, stats.hit_rate) == (10, 0, 1.0)


def test_a_file_that_was_written_again_is_another(path: str) -> None:
    """Of as many bytes, in the same place: nothing of the old one is given."""
    read(opened(path)[2])
    other = DATA[::-1]
    Path(path).write_bytes(other)
    assert read(opened(path)[2]) == other


def test_a_file_that_is_written_while_it_is_fetched_is_not_kept(path: str) -> None:
    """Bytes of the new one must not be kept under the name of the old one."""
    _, _, file = opened(path)
    Path(path).write_bytes(DATA[::-1])  # the open file is the same inode
    read(file)
    assert not pieces(path)


@settings(max_examples=60)
@given(where=st.integers(0, HEAD + PIECE - 1), how=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_piece_is_fetched_again(
    tmp_path_factory: pytest.TempPathFactory, where: int, how: int, cut: bool
) -> None:
    """Any byte may be another, or all from any byte on be gone: what is given is right, and the piece is mended."""
    folder = tmp_path_factory.mktemp("flip")
    (folder / "data").write_bytes(DATA)
    path = str(folder / "data")
    read(opened(path)[2])
    piece = pieces(path)[3]
    whole = bytearray(piece.read_bytes())
    if cut:
        piece.write_bytes(whole[:where])
    else:
        whole[where] ^= how
        piece.write_bytes(whole)
    below, store, file = opened(path)
    assert read(file) == DATA
    idle = not cut and 60 <= where < HEAD  # bytes that fill up the head
    assert (store.depot.damaged, below.reads) == ((0, []) if idle else (1, [(3 * PIECE, PIECE)]))
    assert read(opened(path)[2]) == DATA
    shutil.rmtree(folder)


def test_damaged_pieces_are_told_once_and_counted(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of a folder with many, and of a piece that cannot be removed and is met at every read."""
    _, _, file = opened(path)
    read(file)
    for piece in pieces(path)[:4]:
        piece.write_bytes(b"")
    stuck = pieces(path)[4]
    stuck.unlink()
    stuck.mkdir()
    caplog.clear()
    for _ in range(3):
        assert read(file) == DATA
    (record,) = caplog.records
    assert "is damaged, and is read again from where it came: its header is not that of the piece" in record.message
    (stats,) = file.storage()
    assert stats.failures == 4 + 3


def test_only_what_is_touched_is_read_and_checked(path: str) -> None:
    """A flip in one block says nothing of a read of another."""
    below = Counting()
    store = CachedStore(below, DiskCache(Path(path).parent / "cache", "1GB", 4 * PIECE))
    read(store.open(path))
    first = pieces(path)[0]
    whole = bytearray(first.read_bytes())
    whole[HEAD + 2 * PIECE] ^= 1
    first.write_bytes(whole)
    file = store.open(path)
    assert read(file, 100, PIECE) == DATA[100 : 100 + PIECE]
    assert store.depot.damaged == 0
    assert read(file, 2 * PIECE + 5, 5) == DATA[2 * PIECE + 5 : 2 * PIECE + 10]
    assert store.depot.damaged == 1


@pytest.mark.parametrize("told", [False, True])
def test_the_limit_holds(path: str, told: bool) -> None:
    """After every read; where less than a piece may be kept nothing is."""
    limit = 3 * (PIECE + HEAD) + 5
    below, store, file = opened(path, limit)
    if told:
        foresee(store, file, path, [*range(10)] * 2, 10)
    for k in (*range(10), *range(10)):
        assert read(file, k * PIECE, 10) == DATA[k * PIECE : k * PIECE + 10]
        assert 0 < taken(path) <= limit
    assert len(below.reads) <= 20
    below, store, file = opened(path, 1000)
    assert not pieces(path)  # a smaller limit than before
    assert read(file) == DATA
    assert not pieces(path)


def test_what_was_used_last_stays_where_nobody_told(path: str) -> None:
    """The least recently used piece makes room."""
    below, _, file = opened(path, 3 * (PIECE + HEAD))
    for k in (0, 1, 2, 0, 3, 0, 2, 1):
        read(file, k * PIECE, 10)
    assert [at // PIECE for at, _ in below.reads] == [0, 1, 2, 3, 1]


def foresee(store: CachedStore, file: CachedFile, path: str, order: Sequence[int], this: int) -> None:
    """The order of pieces, of which 10 bytes each will be read."""
    at = np.array(order, np.int64) * PIECE
    store.foresee([path], [file.was], np.zeros_like(at), at, np.full_like(at, 10), this)


def least_misses(order: Sequence[int], room: int) -> int:
    """By Belady's rule with the right to keep nothing: evict, or leave out, what is needed last."""
    kept: set[int] = set()
    misses = 0
    for k, piece in enumerate(order):
        if piece in kept:
            continue
        misses += 1
        kept.add(piece)
        if len(kept) > room:
            rest = list(order[k + 1 :])
            kept.remove(max(kept, key=lambda each: rest.index(each) if each in rest else len(order)))
    return misses


@pytest.mark.parametrize("room", [1, 3, 5, 8])
def test_what_is_needed_last_makes_room(path: str, room: int) -> None:
    """Over two epochs of a plan it reads no more from below than anyone could who knows the future."""
    rng = np.random.default_rng(room)
    order = [int(k) for _ in range(2) for k in rng.permutation(np.repeat(np.arange(10), 2))]
    below, store, file = opened(path, room * (PIECE + HEAD))
    foresee(store, file, path, order, len(order) // 2)
    for n, k in enumerate(order):
        if n == len(order) // 2:
            foresee(store, file, path, order[n:], n)  # the second pass begins
        read(file, k * PIECE, 10)
    assert len(below.reads) == least_misses(order, room)


@settings(max_examples=50)
@given(
    order=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400), st.integers(1, 90)), min_size=1, max_size=30),
    now=st.integers(0, 31),
)
def test_next_uses_are_those_of_the_order(order: list[tuple[int, int, int]], now: int) -> None:
    """Of each piece of each file the first read from `now` on that touches it."""
    file, at, size = (np.array(column, np.int64) for column in zip(*order, strict=True))
    coming = Coming(["a", "b", "c"], file, at, size, this=len(order), piece=50)
    coming.now = now
    names = [(name, piece) for name in "abcd" for piece in range(12)]

    def touches(k: int, name: str, n: int) -> bool:
        which, first, length = order[k]
        return "abc"[which] == name and first // 50 <= n <= (first + length - 1) // 50

    wanted = [next((k for k in range(now, len(order)) if touches(k, *name)), NEVER) for name in names]
    assert coming.next_uses(names).tolist() == wanted


def test_without_its_folder_it_reads_what_is_beneath(path: str) -> None:
    """A folder that goes away costs speed, never data."""
    below, store, file = opened(path)
    shutil.rmtree(store.depot.folder)
    assert read(file) == DATA
    assert len(below.reads) == 10


def test_a_folder_that_cannot_be_is_refused(path: str) -> None:
    """A user's mistake is said before anything is read."""
    store = CachedStore(LOCAL, DiskCache(path, "1GB"))
    with pytest.raises(ConfigError, match="must be a folder that can be written"):
        store.open(path)


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"limit": "much"}, {"limit": 1, "piece": 1000}, {"limit": 1, "piece": 1 << 30}]
)
def test_values_that_are_none_are_refused(options: dict[str, Any]) -> None:
    """Sizes are sizes, and pieces whole blocks."""
    with pytest.raises(ConfigError, match="DiskCache"):
        DiskCache("folder", **options)


def test_it_can_be_pickled(path: str) -> None:
    """Another process opens its own files, and finds the same pieces."""
    _, store, file = opened(path)
    read(file)
    below, again = (
        Counting(),
        pickle.loads(pickle.dumps(CachedStore(LOCAL, DiskCache(store.depot.folder, "1GB", PIECE)))),
    )
    del below
    file = again.open(path)
    assert read(file) == DATA
    assert file.meter.hits == 10


def test_a_fork_begins_anew(path: str) -> None:
    """A child has none of the locks that threads of its parent may hold."""
    _, store, file = opened(path)
    read(file)
    before = store.depot
    store._process = os.getpid() + 1  # as a child finds it
    store.open(path)
    assert store.depot is not before
