"""Striped sets: the bytes of the plain file at any layout, and errors that name the target."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.blocks import Reads, rows
from kit.denied import denied
from kit.packed_images import plain, striped
from kit.properties import examples

from dali_feed.errors import ClosedError, ConfigError, DataLostError, SourceChangedError, SourceDeniedError, StateError
from dali_feed.external_sources import FileList, ShardSet
from dali_feed.packing import PackedSet, damage, index, merge, pack, verify
from dali_feed.storage.sets import SetStore
from dali_feed.storage.store import FileReads
from dali_feed.storage.striping import BLOCK, Layout, StripedFile, StripeWriter, check_parts

__all__ = ["plain"]  # a fixture


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four targets."""
    base = tmp_path_factory.mktemp("stripes")
    for k in range(4):
        (base / f"t{k}").mkdir()
    return base


@pytest.mark.parametrize(
    ("targets", "count", "stripe", "said"),
    [
        ((), 1, BLOCK, "targets: must be one folder or more"),
        (("a", "./a"), 1, BLOCK, "found a twice"),
        (("a", "b"), 3, BLOCK, "stripe_count: must be 1 to 2"),
        (("a",), 1, 1000, "stripe_size: must be a multiple of 4096"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(targets: tuple[str, ...], count: int, stripe: int, said: str) -> None:
    """With the argument's name."""
    with pytest.raises(ConfigError, match=said):
        Layout(targets, count, stripe)


def test_a_name_means_that_all_bytes_are_there(tmp_path: Path) -> None:
    """Parts get theirs at the end, on targets in turn; given up, or where one is full or gone, nothing is left."""
    layout = Layout(("t0", "t1"), 2, BLOCK)
    (tmp_path / "t0").mkdir()
    with pytest.raises(SourceDeniedError, match=r"target .*/t1: must be a folder that can be written to; .* No such"):
        StripeWriter(tmp_path, layout, 0, "a.tar")
    (tmp_path / "t1").mkdir()
    writer = StripeWriter(tmp_path, layout, 0, "a.tar")
    writer.write(bytes(3 * BLOCK))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK, before[1]))
    try:
        with pytest.raises(SourceDeniedError, match=r"target \S+/t0: must be a folder .* File too large; mount or"):
            writer.commit()
    finally:
        writer.abort()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [path for path in tmp_path.glob("t*/*") if path.is_file()]
    writer = StripeWriter(tmp_path, layout, 1, "a.tar")
    writer.write(bytes(3 * BLOCK))
    assert not list(tmp_path.glob("t*/a.tar*"))
    parts = writer.commit()
    writer.abort()
    assert [part.target for part in parts] == [1, 0]
    check_parts(tmp_path, layout, parts)


@examples(times=1.2)
@given(st.integers(1, 4), st.integers(0, 9 * BLOCK), st.data())
def test_any_range_of_any_layout_is_that_of_the_plain_file(
    folders: Path, targets: int, size: int, data: st.DataObject
) -> None:
    """One read, and several at once, give the bytes that were written, and as many as there are."""
    base = folders
    count = data.draw(st.integers(1, targets))
    layout = Layout(tuple(str(base / f"t{k}") for k in range(targets)), count, BLOCK * data.draw(st.integers(1, 2)))
    whole = bytes((k * 7 + k // 251) % 256 for k in range(size))
    writer = StripeWriter(base, layout, data.draw(st.integers(0, 3)), "a.tar")
    writer.write(whole)
    file = StripedFile("a.tar", str(base), layout, writer.commit())
    try:
        spans = data.draw(st.lists(st.tuples(st.integers(0, size + 10), st.integers(0, size + 10)), max_size=5))
        for at, held in spans:
            found = bytearray(held)
            assert file.read(memoryview(found), at) == len(whole[at : at + held])
            assert found[: len(whole[at : at + held])] == whole[at : at + held]
    finally:
        file.close()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_striped_set_holds_what_the_plain_one_does(plain: Path, tmp_path: Path, count: int) -> None:
    """Payloads and fingerprint are equal, so a state of one goes on from the other; and verify finds it whole."""
    path = striped(plain, tmp_path, 3, count)
    assert rows(ShardSet(path)) == rows(ShardSet(plain))
    assert ShardSet(path).snapshot().fingerprint == ShardSet(plain).snapshot().fingerprint
    assert not verify(path).damages


def test_what_is_not_as_it_was_packed_is_named(plain: Path, tmp_path: Path) -> None:
    """A part that is another, may not be read or is short, and a target that is gone: before it is opened and after."""
    path = striped(plain, tmp_path)
    source = ShardSet(path)
    source.snapshot()
    rows(source)  # what it imports is not to be denied
    part = next((tmp_path / "t0").glob("*000000*"))
    with pytest.raises(SourceDeniedError, match="a part of a shard must be readable; found"), denied(tmp_path / "t0"):
        Reads(source).first(1)
    (tmp_path / "t1").rename(tmp_path / "gone")
    for each in (source, ShardSet(path)):
        with pytest.raises(DataLostError, match=r"target .*/t1: .* must be there; found no such folder; mount it"):
            each.snapshot(), Reads(each).first(1)
    (tmp_path / "gone").rename(tmp_path / "t1")
    (tmp_path / "other").write_bytes(bytes(part.stat().st_size))
    (tmp_path / "other").replace(part)
    with pytest.raises(SourceChangedError, match=r"x\.dfset/x-000000\.tar: a shard must not change"):
        Reads(source).first(1)
    os.truncate(part, part.stat().st_size - 1)
    with pytest.raises(DataLostError, match=rf"t0/{part.name}: this part of a shard must have \d+ bytes; found \d+"):
        rows(ShardSet(path))
    assert [part.name in str(damage) for damage in verify(path).damages] == [True]


def test_a_part_that_is_cut_and_a_stop_end_an_open_file(plain: Path, tmp_path: Path) -> None:
    """Bytes that are gone are never what the memory held before; a read that was stopped between two parts says so."""
    path, stop = striped(plain, tmp_path), threading.Event()
    store = SetStore()
    shard = store.matches(str(path))[0]
    file = store.open(shard, stop)
    part = next(each for each in (tmp_path / "t0").iterdir() if Path(shard).name in each.name)
    os.truncate(part, 0)
    with pytest.raises(DataLostError, match=rf"t0/{part.name}: this part of a shard must have .* found 0 bytes"):
        file.read(memoryview(bytearray(BLOCK * 4)), 0)
    stop.set()
    with pytest.raises(ClosedError, match="t0: the read was stopped"):
        file.read(memoryview(bytearray(4 * BLOCK)), 0)
    assert store.fill(FileReads(lambda _: file, [0], [memoryview(bytearray(9))], [0], stop)) == [-1]
    file.close()


def test_a_cold_set_is_read_from_all_targets(plain: Path, tmp_path: Path) -> None:
    """Pages dropped, many small reads and one that is larger than a reader asks for at once: bytes and figures."""
    path = striped(plain, tmp_path)
    store = SetStore().metered()
    shard = store.matches(str(path))[0]
    file, wanted = store.open(shard), store.open(shard)
    assert isinstance(file, StripedFile)
    whole = bytearray(file.size)
    wanted.read(memoryview(whole), 0)
    wanted.close()
    for part in tmp_path.glob("t*/*"):
        fd = os.open(part, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    file.ahead = 3 * BLOCK
    at = [*range(0, file.size, 777), 0]
    views = [memoryview(bytearray(BLOCK)) for _ in at[:-1]] + [memoryview(bytearray(file.size))]
    counts = store.fill(FileReads(lambda _: file, [0] * len(at), views, at, threading.Event()))
    for view, byte, count in zip(views, at, counts, strict=True):
        assert count == min(len(view), file.size - byte)
        assert view[:count] == whole[byte : byte + count]
    (told,) = file.storage()
    assert (told.bytes, told.queued, told.failures) == (sum(counts), 0, 0)
    assert [each.queued for each in told.targets] == [0, 0, 0]
    file.close()


@pytest.mark.parametrize("count", [1, 3])
def test_what_targets_gave_is_counted(plain: Path, tmp_path: Path, count: int) -> None:
    """Reads and bytes of each target, of all shards as one store, and still when they are closed."""
    path = striped(plain, tmp_path, 3, count)
    source = ShardSet(path)
    reads = Reads(source)
    for shard, stop in enumerate(source.snapshot().stops.tolist()):
        reads.first(stop, shard)
    (found,) = reads.reader.storage()
    reads.close()
    (after,) = reads.reader.storage()
    assert after.bytes == found.bytes
    assert (found.store, found.queued, found.failures) == (str(path), 0, 0)
    assert [each.name for each in found.targets] == [str(tmp_path / f"t{k}") for k in range(3)]
    assert [each.reads > 0 for each in found.targets] == [True, True, count > 1]
    assert found.bytes == sum(each.bytes for each in found.targets) > 0


def test_a_part_that_is_cut_while_verify_runs_is_a_damage(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed with its target, and the other shards are read to their end."""
    path = striped(plain, tmp_path, 2)
    part = tmp_path / "t1" / "x-000000.tar.1of2"
    monkeypatch.setattr(damage, "PIECE", BLOCK)
    found = verify(path, workers=1, advance=lambda _: os.truncate(part, 0)).damages
    assert len(found) == 1
    assert found[0].path == f"{path}/x-000000.tar"
    assert f"t1/{part.name}: this part of a shard must have" in found[0].what


def test_pack_writes_stripes_and_goes_on_where_it_was_ended(plain: Path, tmp_path: Path) -> None:
    """A shard that lacks a part is written again, the set is that of one undisturbed run, and nothing is left over."""
    source = FileList.from_folder(plain.parent.parent / "source")
    layout = Layout.over(str(tmp_path), [str(tmp_path / "t0"), str(tmp_path / "t1")], size=BLOCK)
    assert layout.targets == ("t0", "t1")
    for folder in ("t0", "t1"):
        (tmp_path / folder).mkdir()
    out = tmp_path / "x.dfset"

    def ends(done: PackedSet) -> None:
        if done.done:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        pack(source, out, shard_bytes=20000, workers=1, layout=layout, tell=ends)
    part = tmp_path / "t0" / "x-000000.tar.0of2"
    part.rename(part.with_name(f".{part.name}.{'0' * 32}.tmp"))  # as a kill between two names leaves it
    pack(source, out, shard_bytes=20000, workers=1, layout=layout)
    assert rows(ShardSet(out)) == rows(ShardSet(plain))
    assert not verify(out).damages
    parts = [f"t{k ^ shard}/x-00000{shard}.tar.{k}of2" for shard in (0, 1) for k in (0, 1)]
    indexes = [f"x-00000{shard}.tar.dfidx" for shard in (0, 1)]
    found = [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()]
    assert sorted(found) == sorted(["x.dfset", *indexes, *parts])
    with pytest.raises(StateError, match="layout"):
        pack(source, out, shard_bytes=20000)


def test_what_takes_plain_sets_refuses_a_striped_one(plain: Path, tmp_path: Path) -> None:
    """Before it looks for files that are not there, and with the cure."""
    path = striped(plain, tmp_path, 2)
    for call in (lambda: merge([plain, path], tmp_path / "both.dfset"), lambda: index(path)):
        with pytest.raises(
            ConfigError, match=r"x\.dfset: must be a set of whole files; found a set striped over t0, t1; pack"
        ):
            call()
