"""Reads into a dense lease: the values of any other read, side by side in the order that was asked for."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.blocks import rows_of
from kit.packed_images import packed_images, plain, striped

from dali_feed.columns import Array
from dali_feed.errors import ClosedError, DataLostError, SourceChangedError
from dali_feed.external_sources import Arrays, ShardSet
from dali_feed.external_sources.ranges import FileRows, fill_rows
from dali_feed.native import library as native
from dali_feed.packing.sinks import write_shard
from dali_feed.records.gauges import storage_of
from dali_feed.records.pieces import ArrayPieces, Pieces
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Source
from dali_feed.storage.store import LOCAL, LocalStore

__all__ = ["plain"]  # a fixture

RECORDS = 60


@pytest.fixture(autouse=True, params=["in C", "in Python"])
def in_c(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether rows are read by the library, where there is one."""
    if request.param == "in Python":
        monkeypatch.setattr(native, "fill", lambda *_: None)
    return request.param == "in C" and native.library() is not None


def records(seed: int) -> list[dict[str, bytes]]:
    """Of several members, one of which every seventh lacks, and one of which has no bytes now and then."""
    rng = np.random.default_rng(seed)
    return [
        {"bin": rng.bytes(5000), "cls": b"%d" % k, "odd": rng.bytes(k % 5 * 700)} | ({"few": b"few"} if k % 7 else {})
        for k in range(RECORDS)
    ]


def shards(folder: Path) -> ShardSet:
    """Three shards."""
    for k in range(3):
        write_shard(folder / f"{k}.tar", records(k))
    return ShardSet([folder / f"{k}.tar" for k in range(3)], label=None)


def arrays(folder: Path) -> Arrays:
    """Two files of rows."""
    for k in range(2):
        np.save(folder / f"{k}.npy", np.random.default_rng(k).random((RECORDS, 700), np.float32))
    return Arrays([folder / f"{k}.npy" for k in range(2)])


def read(source: Source, members: list[str], extents: Extents, *, dense: bool) -> Block:
    """A block, in memory that nobody else gets."""
    reader, pool = source.reader(members, threading.Event()), SlabPool()
    try:
        return reader.read(extents, pool.lent() if dense else pool.lease())
    finally:
        reader.close()


def anywhere(source: Source, seed: int) -> Extents:
    """Single records and runs, in any order, some of them twice."""
    snapshot, rng = source.snapshot(), np.random.default_rng(seed)
    partition = rng.integers(0, len(snapshot.names), 40)
    start = rng.integers(0, RECORDS, 40)
    return Extents(partition, start, np.minimum(start + rng.choice([1, 1, 1, 9], 40), RECORDS))


def forget(path: str) -> None:
    """Have none of a file in the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[ShardSet | Arrays, list[str]]]:
    """A source of each kind, with its members."""
    folder = tmp_path_factory.mktemp("both")
    return [(shards(folder), ["bin", "cls", "odd", "few"]), (arrays(folder), ["row"])]


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_dense_read_gives_what_any_read_gives(
    both: list[tuple[ShardSet | Arrays, list[str]]], monkeypatch: pytest.MonkeyPatch, seed: int, cold: bool
) -> None:
    """Of more files than may be open, in the page cache or not; records without a member, and members without bytes."""
    for source, members in both:
        monkeypatch.setattr(source, "_store", LocalStore(most_open=1))
        extents = anywhere(source, seed)
        wanted = rows_of(read(source, members, extents, dense=False))
        for path in source.paths if cold else ():
            forget(path)
        assert rows_of(read(source, members, extents, dense=True)) == wanted


def test_small_records_that_lie_anywhere_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_c: bool
) -> None:
    """The bytes of each, without a call of Python's for it; and a file that has ended before is named."""
    rows = np.random.default_rng(0).random((200, 64))
    np.save(tmp_path / "a.npy", rows)
    source, order = Arrays(tmp_path / "a.npy"), np.random.default_rng(1).permutation(200)
    calls, real = list[int](), os.preadv

    def counted(fd: int, views: Any, at: int, flags: int = 0) -> int:
        calls.append(at)
        return real(fd, views, at, flags)

    source.snapshot()
    monkeypatch.setattr(os, "preadv", counted)
    block = read(source, ["row"], Extents.of_samples(order), dense=False)
    assert np.array_equal(np.array(list(block.values["row"])), rows[order])
    assert bool(calls) is not in_c
    reader = source.reader(["row"])
    reader.read(Extents.one(0, 0, 1), SlabPool().lease())
    os.truncate(tmp_path / "a.npy", os.stat(tmp_path / "a.npy").st_size // 2)
    with pytest.raises((DataLostError, SourceChangedError), match=r"a\.npy"):
        reader.read(Extents.of_samples(order), SlabPool().lease())
    reader.close()


def test_what_was_read_is_counted(tmp_path: Path) -> None:
    """The bytes of all rows, and neighbours as the one read that they were."""
    reader = arrays(tmp_path).reader(["row"], threading.Event())
    reader.read(Extents.one(0, 0, RECORDS), SlabPool().lent())
    (stats,) = storage_of([reader])
    assert (stats.bytes, stats.reads <= RECORDS) == (RECORDS * 2800, True)
    reader.close()


def test_rows_of_a_member_are_one_array(tmp_path: Path) -> None:
    """A batch is a slice of them, for which nothing is copied."""
    block = read(shards(tmp_path), ["bin", "cls"], Extents.one(1, 3, 43), dense=True)
    values = block.values["bin"]
    assert isinstance(values, Pieces)
    whole, batch = values.as_they_lie(5000), values[8:16].as_they_lie(5000)
    assert whole is not None
    assert batch is not None
    assert np.shares_memory(whole, batch)
    assert batch.tobytes() == b"".join(each["bin"] for each in records(1)[11:19])
    rows = read(arrays(tmp_path), ["row"], Extents.one(0, 0, 10), dense=True).values["row"]
    assert isinstance(rows, ArrayPieces)
    assert rows.pieces.as_they_lie(2800) is not None


def test_a_large_batch_of_arrays_lies_where_it_was_read_to(tmp_path: Path) -> None:
    """No second memory is asked for."""
    values = read(shards(tmp_path), ["bin"], Extents.one(1, 0, RECORDS), dense=True).values["bin"]
    column = Array("bin", "uint8", (5000,))
    batch = column.batch(column.read(values, {}), lambda size: pytest.fail(f"{size} bytes more"))
    assert np.shares_memory(batch, values.as_they_lie(5000))
    assert batch.tobytes() == b"".join(each["bin"] for each in records(1))


def test_a_checksum_that_is_wrong_is_a_fault_of_its_row(tmp_path: Path) -> None:
    """As of any read, and of that row alone."""
    packed_images(tmp_path, tmp_path / "set", 12, 16)
    shard = tmp_path / "set" / "set-000000.tar"
    whole = bytearray(shard.read_bytes())
    at = bytes(whole).index(b"a/4.jpg") + 600
    whole[at] ^= 1
    shard.write_bytes(whole)
    blocks = [read(ShardSet(shard), ["jpg", "cls"], Extents.one(0, 1, 10), dense=dense) for dense in (False, True)]
    assert blocks[0].faults == blocks[1].faults
    assert [fault.member for fault in blocks[1].faults.values()] == ["jpg"]


def test_a_set_on_several_targets_is_read_as_one(plain: Path, tmp_path: Path) -> None:
    """Each of whose parts is a file of its own."""
    source = ShardSet(striped(plain, tmp_path / "striped"))
    blocks = [read(source, ["jpg", "cls"], Extents.one(1, 0, 4), dense=dense) for dense in (False, True)]
    assert rows_of(blocks[0]) == rows_of(blocks[1])


def test_a_file_that_ends_too_soon_or_changes_costs_the_read(tmp_path: Path) -> None:
    """With the errors of any read."""
    source = shards(tmp_path)
    source.snapshot()
    reader = source.reader(["bin"], threading.Event())
    reader.read(Extents.one(0, 0, 1), SlabPool().lent())
    with (tmp_path / "0.tar").open("r+b") as file:
        file.truncate(20_000)
    with pytest.raises(DataLostError, match=r"0\.tar#\d+: the shard ends at byte 20000"):
        reader.read(Extents.one(0, 0, RECORDS), SlabPool().lent())
    with pytest.raises(SourceChangedError, match=r"0\.tar: a shard must not change"):
        reader.read(Extents.one(0, 0, 1), SlabPool().lent())
    reader.close()


def test_a_stop_ends_a_dense_read(tmp_path: Path) -> None:
    """With the error of any read, and in its middle: counts say what was not read."""
    stop = threading.Event()
    reader = shards(tmp_path).reader(["bin"], stop)
    stop.set()
    with pytest.raises(ClosedError):
        reader.read(Extents.one(0, 0, 5), SlabPool().lent())
    reader.close()
    file, zeros, room = LOCAL.open(str(tmp_path / "0.tar")), np.zeros(3, np.int64), bytearray(9)
    rows = FileRows(zeros, zeros, zeros + 3, np.arange(3) * 3, memoryview(room))
    assert fill_rows(LOCAL, lambda _: file, rows, stop).tolist() == [0, 1, 2]
    assert not any(room)
    file.close()
