"""Insides that contract/sources/test_tar_index.py needs not: they go with what they test."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from kit.blocks import taken

from dali_feed.errors import SourceDeniedError
from dali_feed.external_sources import index as index_bytes
from dali_feed.external_sources import tar as tar_index
from dali_feed.external_sources.shards import ShardSet
from dali_feed.records.extents import Extents
from dali_feed.testing.shards import write_shard


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


def grouped(path: Path) -> list[dict[bytes, tuple[int, int]]]:
    """Samples as tarfile and the webdataset rule see them: [{suffix: (offset, size)}]."""
    samples: list[dict[bytes, tuple[int, int]]] = []
    last: tuple[str, str] | None = None
    with tarfile.open(path) as tar:
        for info in tar:
            folder, _, name = info.name.rpartition("/")
            stem, dot, suffix = name.partition(".")
            if not info.isreg() or not dot or not stem:
                continue
            if (folder, stem) != last:
                samples.append({})
                last = (folder, stem)
            samples[-1][suffix.lower().encode()] = (info.offset_data, info.size)
    return samples


LONG = "folder/" * 30 + "x" * 120
FORMS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


@pytest.mark.parametrize("form", FORMS)
def test_the_index_equals_what_tarfile_sees(tmp_path: Path, form: str) -> None:
    """Offsets, sizes, suffixes and grouping are tarfile's, with long names, odd letters, folders and links between."""
    path = tmp_path / "a.tar"
    stems = [
        "a",
        "dir.d/b",
        ("p" * 60 + "/") * 2 + "q" * 90,
        *(f"{c * 80}/{'c' * 30}/x" for c in "AB"),
        "./c",
        ".hidden",
    ]
    stems += [] if form == "ustar" else [LONG, LONG + "é", "\udcff\udc80"]
    members = [
        (f"{stem}.{end}", os.urandom(7 * k)) for k, stem in enumerate(stems) for end in ("JPG", "cls", "seg.png")
    ]
    archive(path, [*members, ("no_dot", b"1"), ("a.jpg", b"again, but apart")], FORMS[form])
    with tarfile.open(path, "a", format=FORMS[form]) as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo("link.jpg")
            info.type, info.linkname = kind, "t" * 300 if form != "ustar" else "t"
            tar.addfile(info)
        info = tarfile.TarInfo("last.jpg")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"end"))
    index = tar_index.build(str(path))
    mine = [
        {index.suffixes[index.suffix[m]]: (int(index.offset[m]), int(index.length[m])) for m in range(a, b)}
        for a, b in zip(index.first[:-1], index.first[1:], strict=True)
    ]
    assert mine == grouped(path)


def test_sizes_in_base_256_and_in_pax_headers_are_read(tmp_path: Path) -> None:
    """A size that no octal field holds comes from the GNU or the pax form, and the next member is found after it."""
    forms: dict[str, Literal[1, 2]] = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    for name, form in forms.items():
        path = tmp_path / f"{name}.tar"
        info = tarfile.TarInfo("big.jpg")
        info.size = size = (8 << 30) + 5
        second = tarfile.TarInfo("next.jpg")
        header = info.tobuf(form)
        with path.open("wb") as file:  # sparse on disk: it takes no room
            file.write(header)
            file.seek(size + 507, os.SEEK_CUR)
            file.write(second.tobuf(form) + bytes(1024))
        index = tar_index.build(str(path))
        assert index.offset.tolist() == [len(header), len(header) + size + 507 + 512]
        assert index.length.tolist() == [size, 0]


def test_a_stale_or_damaged_index_is_built_anew(tmp_path: Path) -> None:
    """A rewritten shard, a flipped bit in the index and an index cut off all give the shard's true rows."""
    path, kept = tmp_path / "a.tar", tmp_path / f"a.tar{tar_index.SUFFIX}"
    write_shard(path, [(b"old", 1)])
    rows(ShardSet(path))
    first = kept.read_bytes()
    write_shard(path, [(b"new", 2)])
    assert rows(ShardSet(path)) == [(b"new", 2, None)]
    good = kept.read_bytes()
    assert good != first
    flipped = bytearray(good)
    flipped[90] ^= 1
    for bad in (bytes(flipped), good[:20], good[:-3], first):
        kept.write_bytes(bad)
        assert rows(ShardSet(path)) == [(b"new", 2, None)]
        assert kept.read_bytes() == good


ENERGON = b"\0\0\0\0\0\0\0\0" + (2048).to_bytes(8, "little")  # offsets of samples, as Megatron-Energon keeps them


@pytest.mark.parametrize("name", ["a.tar.idx", "a.idx", f"a.tar{tar_index.SUFFIX}"])
@pytest.mark.parametrize("held", [ENERGON, b"nonsense", b""], ids=["energon", "nonsense", "empty"])
def test_a_file_that_is_no_index_of_ours_is_never_replaced(cache: Path, tmp_path: Path, name: str, held: bytes) -> None:
    """Another tool's index beside the shard stays as it is, by whatever name, and the shard is read all the same."""
    path = tmp_path / "a.tar"
    write_shard(path, [(b"x", 1)])
    (tmp_path / name).write_bytes(held)
    for _ in range(2):
        assert rows(ShardSet(path)) == [(b"x", 1, None)]
        assert (tmp_path / name).read_bytes() == held
    ours = tmp_path / f"a.tar{tar_index.SUFFIX}"
    kept = ours if ours.name != name else tar_index.index_path(str(path), None)
    assert kept.read_bytes().startswith(index_bytes.MAGIC)
    assert {f.name for f in tmp_path.iterdir() if f != cache} == {"a.tar", name, ours.name}


def test_index_dir_with_a_foreign_file_of_that_name_is_refused(tmp_path: Path) -> None:
    """Where indexes must lie in one folder, a file in the way that is not ours is named and kept."""
    path, home = tmp_path / "a.tar", tar_index.index_path(str(tmp_path / "a.tar"), tmp_path)
    write_shard(path, [(b"x", 1)])
    home.write_bytes(ENERGON)
    with pytest.raises(SourceDeniedError, match=rf"not an index of dali_feed.*{home.name}"):
        ShardSet(path, index_dir=tmp_path).snapshot()
    assert home.read_bytes() == ENERGON


def test_a_kept_index_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second source of the same shard reads no header."""
    path = tmp_path / "a.tar"
    write_shard(path, [(b"x", 1)])
    fingerprint = ShardSet(path).snapshot().fingerprint
    monkeypatch.setattr(tar_index, "build", lambda path: pytest.fail("built again"))
    assert ShardSet(path).snapshot().fingerprint == fingerprint


@contextlib.contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """As somebody who may read `folder` and not write to it."""
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


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
        with without_rights(folder):
            assert rows(ShardSet(path)) == [(b"x", 1, None)]
            kept = tar_index.index_path(str(path), None)
            assert kept.parent == cache / "dali_feed" / "index"
            assert kept.exists()
            assert os.listdir(folder) == ["a.tar"]
            with pytest.raises(SourceDeniedError, match="index_dir"):
                ShardSet(path, index_dir=folder).snapshot()
            monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
            assert rows(ShardSet(path)) == [(b"x", 1, None)]
            assert "set index_dir" in caplog.text
        own = base / "own"
        own.mkdir()
        ShardSet(path, index_dir=own).snapshot()
        assert [f.name for f in own.iterdir()] == [tar_index.index_path(str(path), own).name]


def test_an_index_of_another_shard_is_not_believed(tmp_path: Path) -> None:
    """Ranges that leave the shard are refused even where size, time and digest of the index fit."""
    path = tmp_path / "a.tar"
    write_shard(path, [(b"x" * 5000, 1)])
    good = tar_index.load(str(path))
    wrong = replace(good, offset=good.offset + 1_000_000)
    tar_index._write(Path(f"{path}{tar_index.SUFFIX}"), wrong, 0o600)
    assert rows(ShardSet(path)) == [(b"x" * 5000, 1, None)]
