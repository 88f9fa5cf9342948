"""Tar indexes: where members lie, and when an index may be believed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.blocks import taken
from kit.inside import Extents, write_shard
from kit.properties import examples

from dali_feed.errors import DataLostError, SourceEmptyError, SourceError
from dali_feed.external_sources import ShardSet


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Indexes that cannot lie beside a shard lie here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def rows(source: ShardSet) -> list[tuple[bytes, int, str | None]]:
    """(payload, label, fault or None) of every position of a single shard."""
    reader = source.reader()
    block = reader.read(Extents.one(0, 0, len(source.snapshot())))
    labels = block.fields["label"].tolist()
    found = [(taken(p), labels[k], block.faults.get(k)) for k, p in enumerate(block.payloads)]
    block.lease.release()
    reader.close()
    return found


def archive(path: Path, members: list[tuple[str, bytes]], form: int) -> None:
    """A tar file as the standard library writes it."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


LONG = "folder/" * 30 + "x" * 120
FORMS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


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
            found = rows(ShardSet(path, label="cls"))
        except DataLostError as error:
            outcomes.add("lost")
            assert path.name in str(error)
            assert size == 0 or f"of {size}" in str(error)
        else:
            outcomes.add(len(found))
            for (payload, label, fault), (want, number) in zip(found, written, strict=False):
                assert payload == want
                assert label == number or (payload == found[-1][0] and fault and "no .cls member" in fault)
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


PACKED = {"a.tar.gz": "gzip", "a.tgz": "gzip", "a.tar.bz2": "bzip2", "a.tar.xz": "xz", "odd.tar": "gzip"}


@pytest.mark.parametrize("name", PACKED)
def test_a_compressed_shard_is_told_with_the_command_that_unpacks_it(tmp_path: Path, name: str) -> None:
    """However small or large it is: the compression is named, and the command, run as it stands, gives a good shard."""
    if shutil.which(PACKED[name]) is None:
        pytest.skip(f"no {PACKED[name]}")
    packers: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
    for size in (1, 100_000):
        plain, path = tmp_path / "plain", tmp_path / f"it's {size} {name}"
        write_shard(plain, [(os.urandom(size), 1)])
        path.write_bytes(packers[PACKED[name]](plain.read_bytes()))
        with pytest.raises(
            SourceError, match=rf"uncompressed tar.* found a file compressed by {PACKED[name]};"
        ) as told:
            ShardSet(path).snapshot()
        command = str(told.value).partition("unpack it: ")[2]
        subprocess.run(["bash", "-ec", command], check=True)
        (made,) = tmp_path.glob(f"it's {size} *.tar") if name != "odd.tar" else tmp_path.glob(f"*{size} odd-plain.tar")
        assert made.read_bytes() == plain.read_bytes()


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
    assert [label for _, label, _ in rows(ShardSet(path))] == [1]
    assert caplog.text == ""
    path.write_bytes(whole + second.read_bytes())
    for _ in range(2):  # from the headers, and from the kept index
        caplog.clear()
        assert [label for _, label, _ in rows(ShardSet(path))] == [1]
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


@examples(times=3)
@given(data=st.data())
def test_any_damage_to_the_headers_gives_rows_or_a_source_error(data: st.DataObject) -> None:
    """Bytes overwritten anywhere never show as another exception, nor as a payload from outside the shard."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.tar")
        form = data.draw(st.sampled_from(sorted(FORMS)))
        archive(
            path, [(f"{'n' * 60}/{k}/{'m' * 60}.{end}", b"12") for k in range(3) for end in ("jpg", "cls")], FORMS[form]
        )
        whole = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(whole) - 1))
            new = data.draw(st.binary(min_size=1, max_size=12))
            whole[at : at + len(new)] = new
            block = at // 512 * 512
            if data.draw(st.booleans()):  # a checksum that fits, so that the damage gets past it
                total = sum(whole[block : block + 512]) - sum(whole[block + 148 : block + 156]) + 256
                whole[block + 148 : block + 156] = b"%06o\0 " % total
        path.write_bytes(whole)
        try:
            found = rows(ShardSet(path, label="cls"))
        except SourceError as error:
            assert str(path) in str(error)
        else:
            assert sum(len(payload) for payload, _, _ in found) <= len(whole)
