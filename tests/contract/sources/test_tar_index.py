"""Tar indexes: where members lie, and when an index may be believed."""

from __future__ import annotations

import bz2
import functools
import gzip
import lzma
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.blocks import pictures, rows
from kit.by_hand import FORMS, LONG, archive
from kit.denied import denied
from kit.inside import write_shard
from kit.properties import examples

from dali_feed.errors import DataLostError, SourceDeniedError, SourceEmptyError, SourceError
from dali_feed.external_sources import ShardSet

pytestmark = pytest.mark.usefixtures("cache_home")


def read(path: Path) -> list[dict[str, Any]]:
    """All members of all samples."""
    source = ShardSet(path)
    return rows(source, *(member.name for member in source.members()))


def test_a_cut_shard_gives_rows_or_a_data_lost_error(tmp_path: Path) -> None:
    """At every byte count there are whole leading records, or an error that names shard, sample and byte."""
    whole = tmp_path / "whole.tar"
    written = [(os.urandom(700 + k), k) for k in range(3)]
    archive(
        whole,
        [
            (f"{LONG if k == 1 else k}.{end}", d)
            for k, (b, n) in enumerate(written)
            for end, d in (("jpg", b), ("cls", b"%d" % n))
        ],
        tarfile.PAX_FORMAT,
    )
    data = whole.read_bytes()
    outcomes: set[int | str] = set()
    for size in sorted({*range(0, len(data) + 1, 512), *range(100, len(data), 512)}):
        path = tmp_path / f"cut-{size}.tar"
        path.write_bytes(data[:size])
        try:
            found = read(path)
        except DataLostError as error:
            outcomes.add("lost")
            assert path.name in str(error)
            assert size == 0 or f"of {size}" in str(error)
        else:
            outcomes.add(len(found))
            for k, (row, (want, number)) in enumerate(zip(found, written, strict=False)):
                assert row["jpg"] == want
                assert row.get("cls") == b"%d" % number or (k == len(found) - 1 and row.get("cls") is None)
    assert outcomes == {"lost", 1, 2, 3}


def test_a_cut_behind_a_long_name_and_a_hole_between_members_are_lost_data(tmp_path: Path) -> None:
    """Where a member was announced, or lies behind a lone zero block, fewer rows would be a silent loss."""
    path = tmp_path / "a.tar"
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        archive(path, [("a.jpg", b"1"), (f"{LONG}.jpg", b"2")], form)
        os.truncate(path, 1024 + 1024)  # the first member; then the long name without its member
        with pytest.raises(DataLostError, match="after a long name without its member"):
            ShardSet(path).snapshot()
    write_shard(path, [(b"x", 1), (b"y", 2)])
    data = bytearray(path.read_bytes())
    data[2048:2560] = bytes(512)
    path.write_bytes(data)
    with pytest.raises(DataLostError, match="byte 2048 .*single block of zeros between members"):
        ShardSet(path).snapshot()


def test_a_damaged_header_and_what_is_no_tar_are_told_apart(tmp_path: Path) -> None:
    """One flipped bit in a header is lost data at its byte; a file of zeros holds no sample."""
    path = tmp_path / "a.tar"
    write_shard(path, [(b"x" * 600, 1), (b"y" * 600, 2)])
    data = bytearray(path.read_bytes())
    data[2560 + 3] ^= 1  # the header of the second sample's image
    path.write_bytes(data)
    with pytest.raises(DataLostError, match=r"a\.tar#0.* byte 2560 .*checksum"):
        ShardSet(path).snapshot()
    path.write_bytes(bytes(1024))
    with pytest.raises(SourceEmptyError, match="found none"):
        ShardSet(path).snapshot()


@pytest.mark.parametrize("by", [gzip, bz2, lzma])
def test_a_compressed_shard_is_told_with_what_compressed_it(tmp_path: Path, by: Any) -> None:
    """However small or large it is: it cannot be read by position, so it is to be unpacked."""
    name = {"bz2": "bzip2", "lzma": "xz"}.get(by.__name__, "gzip")
    for size in (1, 100_000):
        plain, path = tmp_path / "plain", tmp_path / f"{size}.tar"
        write_shard(plain, [(os.urandom(size), 1)])
        path.write_bytes(by.compress(plain.read_bytes()))
        with pytest.raises(SourceError, match=f"uncompressed tar.* found a file compressed by {name}; unpack it"):
            ShardSet(path).snapshot()


@pytest.mark.parametrize("padding", [1024, 10_240, 3 << 20])
def test_what_lies_behind_the_end_is_told_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, padding: int
) -> None:
    """`cat a.tar b.tar` is read as tar reads it, up to the first end, and a warning says how much is not read."""
    first, second, path = tmp_path / "a.tar", tmp_path / "b.tar", tmp_path / "both.tar"
    for shard, label in ((first, 1), (second, 2)):
        write_shard(shard, [(b"x" * 700, label)])
    members = first.read_bytes().rstrip(b"\0")
    whole = members + bytes(-len(members) % 512) + bytes(padding)
    path.write_bytes(whole)
    assert [label for _, label, _ in pictures(ShardSet(path))] == [1]
    assert caplog.text == ""
    path.write_bytes(whole + second.read_bytes())
    for _ in range(2):  # from the headers, and from the kept index
        caplog.clear()
        assert [label for _, label, _ in pictures(ShardSet(path))] == [1]
        size = len(second.read_bytes())
        assert f"ends before byte {len(whole)}, and the {size} bytes after that are not read" in caplog.text
        assert "name both files" in caplog.text


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    """Its bytes do not lie in the file as they are, so reading it by range would give wrong ones."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.jpg")
        info.pax_headers = {"GNU.sparse.major": "1"}
        tar.addfile(info)
    with pytest.raises(DataLostError, match="sparse"):
        ShardSet(path).snapshot()


def test_a_suffix_that_no_column_can_name_is_no_member(tmp_path: Path) -> None:
    """An empty one, and one that reads like a choice or a path; the sample's others are there."""
    path = tmp_path / "a.tar"
    archive(path, [(f"a.{suffix}", b"1") for suffix in ("jpg", "", "c;s", "x:y")], tarfile.USTAR_FORMAT)
    assert read(path) == [{"jpg": b"1"}]


@functools.cache
def long_names(form: str) -> bytes:
    """An archive of three samples whose names are longer than a header of one block holds."""
    members = [(f"{'n' * 60}/{k}/{'m' * 60}.{end}", b"12") for k in range(3) for end in ("jpg", "cls")]
    with tempfile.TemporaryDirectory() as folder:
        archive(Path(folder, "a.tar"), members, FORMS[form])
        return Path(folder, "a.tar").read_bytes()


EDITS = st.lists(
    st.tuples(st.integers(0, 2**20), st.binary(min_size=1, max_size=12), st.booleans()), min_size=1, max_size=4
)


@examples(times=3)
@given(form=st.sampled_from(sorted(FORMS)), edits=EDITS)
def test_any_damage_to_the_headers_gives_rows_or_a_source_error(
    form: str, edits: list[tuple[int, bytes, bool]]
) -> None:
    """Bytes overwritten anywhere never show as another exception, nor as a payload from outside the shard."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.tar")
        whole = bytearray(long_names(form))
        for place, new, fits in edits:
            at = place % len(whole)
            whole[at : at + len(new)] = new
            block = at // 512 * 512
            if fits:  # a checksum that fits, so that the damage gets past it
                total = sum(whole[block : block + 512]) - sum(whole[block + 148 : block + 156]) + 256
                whole[block + 148 : block + 156] = b"%06o\0 " % total
        path.write_bytes(whole)
        try:
            found = read(path)
        except SourceError as error:
            assert str(path) in str(error)
        else:
            assert all(sum(len(row[name] or b"") for row in found) <= len(whole) for name in found[0])


def test_a_stale_or_damaged_index_is_built_anew(tmp_path: Path) -> None:
    """A rewritten shard, a flipped bit in the index and an index cut off all give the shard's true rows."""
    path, kept = tmp_path / "a.tar", tmp_path / "a.tar.dfidx"
    write_shard(path, [(b"old", 1)])
    pictures(ShardSet(path))
    first = kept.read_bytes()
    write_shard(path, [(b"new", 2)])
    assert pictures(ShardSet(path)) == [(b"new", 2, None)]
    good = kept.read_bytes()
    assert good != first
    flipped = bytearray(good)
    flipped[90] ^= 1
    for bad in (bytes(flipped), good[:20], good[:-3], first):
        kept.write_bytes(bad)
        assert pictures(ShardSet(path)) == [(b"new", 2, None)]
        assert kept.read_bytes() == good


ENERGON = b"\0\0\0\0\0\0\0\0" + (2048).to_bytes(8, "little")  # offsets of samples, as Megatron-Energon keeps them


@pytest.mark.parametrize("name", ["a.tar.idx", "a.idx", "a.tar.dfidx"])
@pytest.mark.parametrize("held", [ENERGON, b"nonsense", b""], ids=["energon", "nonsense", "empty"])
def test_a_file_that_is_no_index_of_ours_is_never_replaced(
    cache_home: Path, tmp_path: Path, name: str, held: bytes
) -> None:
    """Another tool's index beside the shard stays as it is, by whatever name, and the shard is read all the same."""
    path = tmp_path / "a.tar"
    write_shard(path, [(b"x", 1)])
    (tmp_path / name).write_bytes(held)
    for _ in range(2):
        assert pictures(ShardSet(path)) == [(b"x", 1, None)]
        assert (tmp_path / name).read_bytes() == held
    ours = [tmp_path / "a.tar.dfidx"] if name != "a.tar.dfidx" else list(cache_home.rglob("*.dfidx"))
    assert [kept.read_bytes()[:4] for kept in ours] == [b"dfee"]
    assert {f.name for f in tmp_path.iterdir() if f != cache_home} == {"a.tar", name, "a.tar.dfidx"}


def test_index_dir_with_a_foreign_file_of_that_name_is_refused(tmp_path: Path) -> None:
    """Where indexes must lie in one folder, a file in the way that is not ours is named and kept."""
    path, homes = tmp_path / "a.tar", tmp_path / "homes"
    homes.mkdir()
    write_shard(path, [(b"x", 1)])
    ShardSet(path, index_dir=homes).snapshot()
    (home,) = homes.iterdir()
    home.write_bytes(ENERGON)
    with pytest.raises(SourceDeniedError, match=rf"not an index of dali_feed.*{home.name}"):
        ShardSet(path, index_dir=homes).snapshot()
    assert home.read_bytes() == ENERGON


def test_in_a_read_only_folder_the_index_goes_to_the_cache(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside the shard, else in the user's cache, else nowhere with a warning; `index_dir` is obeyed or refused."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        base = Path(name)
        folder, cache = base / "data", base / "cache"
        folder.mkdir()
        cache.mkdir()
        base.chmod(0o755)
        cache.chmod(0o777)
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        path = folder / "a.tar"
        write_shard(path, [(b"x", 1)])
        with denied(folder, 0o555):
            assert pictures(ShardSet(path)) == [(b"x", 1, None)]
            assert len(list((cache / "dali_feed" / "index").iterdir())) == 1
            assert os.listdir(folder) == ["a.tar"]
            with pytest.raises(SourceDeniedError, match="index_dir"):
                ShardSet(path, index_dir=folder).snapshot()
            monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
            assert pictures(ShardSet(path)) == [(b"x", 1, None)]
            assert "set index_dir" in caplog.text
        own = base / "own"
        own.mkdir()
        ShardSet(path, index_dir=own).snapshot()
        assert len(list(own.iterdir())) == 1
