"""Where tar members lie, as tarfile sees it; shards that were cut; indexes that are not believed; how few reads."""

from __future__ import annotations

import io
import os
import tarfile
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from kit.blocks import Reads, read_sizes
from kit.by_hand import FORMS, LONG, archive
from kit.images import jpeg

from dali_feed.errors import DataLostError
from dali_feed.external_sources import ShardSet
from dali_feed.external_sources import tar as tar_index
from dali_feed.external_sources.index import SUFFIX, TAR
from dali_feed.external_sources.ranges import RUN_BYTES
from dali_feed.packing import index
from dali_feed.packing.sinks import write_shard
from dali_feed.records.extents import Extents
from dali_feed.storage.sets import SetStore
from dali_feed.storage.store import LOCAL, LocalFile, LocalStore, Stamp


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


def test_an_index_of_another_shard_is_not_believed(tmp_path: Path) -> None:
    """Ranges that leave the shard are refused even where size, time and digest of the index fit."""
    path = tmp_path / "a.tar"
    write_shard(path, [(b"x" * 5000, 1)])
    good = tar_index.load(str(path))
    Path(f"{path}{SUFFIX}").write_bytes(replace(good, offset=good.offset + 1_000_000).to_bytes())
    assert tar_index.load(str(path)).offset.tolist() == good.offset.tolist()


def test_neighbours_are_read_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequential extent is a few large reads, a read of lone samples one each, and a gap is not read."""
    path = tmp_path / "a.tar"
    write_shard(path, [(bytes(50_000), k) for k in range(200)])
    source = ShardSet(path)
    source.snapshot()
    sizes = read_sizes(monkeypatch)
    reader = Reads(source)
    reader.first(200).lease.release()
    assert len(sizes) == 3
    assert max(sizes) <= RUN_BYTES
    sizes.clear()
    at = np.arange(0, 200, 20)
    reader.read(Extents(np.zeros(10, np.int64), at, at + 1)).lease.release()
    assert len(sizes) == 10
    assert max(sizes) < 52_000


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shard of six samples."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_shard(tmp_path / "a.tar", [{"jpg": jpeg(n), "cls": b"%d" % n} for n in range(6)])
    return tmp_path / "a.tar"


def test_a_shard_that_is_cut_between_samples_is_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By a warning at each start, as an old archive may end there; elsewhere a cut is an error."""
    whole, starts = path.read_bytes(), tar_index.load(str(path)).offset - 512
    for at in [*starts[2::2].tolist(), len(whole.rstrip(b"\0")) // 512 * 512 + 512, len(whole)]:
        path.with_name(path.name + SUFFIX).unlink(missing_ok=True)
        path.write_bytes(whole[:at])
        for _ in range(2):  # by the headers, and by the index that was kept
            caplog.clear()
            ShardSet(path).snapshot()
            assert (f"was the file cut at byte {at}?" in caplog.text) == (at < len(whole))


@pytest.mark.parametrize("how", ["cut", "longer", "damaged"])
def test_an_index_with_checksums_that_is_not_the_shards_is_told(
    path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Nothing is compared then: so it is said at each start, and the index stays for who looks; a new one ends it."""
    index(path)
    beside, whole = path.with_name(path.name + SUFFIX), path.read_bytes()
    if how == "damaged":
        held = bytearray(beside.read_bytes())
        held[-3] ^= 1
        beside.write_bytes(held)
    else:
        path.write_bytes(whole[: 512 * 4] + bytes(1024) if how == "cut" else whole + bytes(512))
    kept = beside.read_bytes()
    said = "damaged" if how == "damaged" else f"of a shard of {len(whole)} bytes, and this shard has "
    for _ in range(2):
        caplog.clear()
        ShardSet(path).snapshot()
        (record,) = caplog.records
        assert f"the index with checksums beside it is {said}" in record.message
        assert "nothing is compared until `dali-feed index` has run" in record.message
        assert beside.read_bytes() == kept
    index(path)
    caplog.clear()
    ShardSet(path).snapshot()
    assert not caplog.text


class Liar(LocalStore):
    """A store whose files announce far more bytes than they have."""

    def open(self, path: str, stop: threading.Event | None = None) -> Any:
        """The file of that name, after a scheme or not."""
        return Announced(super().open(path.removeprefix("liar:/"), stop).fds)


class Announced(LocalFile):
    """A file of an exabyte, as it says."""

    def stamp(self) -> Stamp:
        """Of a file of the right time and a wrong size."""
        return super().stamp()._replace(size=1 << 60)


@pytest.mark.parametrize("version", [2, 3])
def test_an_index_takes_no_more_memory_than_its_shard_can_have_members(tmp_path: Path, version: int) -> None:
    """One that is far longer is not read, with checksums or without; the shard's headers are."""
    path = tmp_path / "a.tar"
    write_shard(path, [(b"x" * 5000, 1)])
    with Path(f"{path}{SUFFIX}").open("wb") as file:  # sparse on disk: it takes no room
        file.write(TAR + bytes(32) + version.to_bytes(8, "little"))
        file.truncate(256 << 20)
    tracemalloc.start()
    try:
        assert len(tar_index.load(str(path), index_dir=None)) == 1
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_what_a_store_announces_takes_no_memory(tmp_path: Path) -> None:
    """An exabyte of an index or of a manifest is an error that says so."""
    (tmp_path / "a.dfset").write_bytes(b"{}")
    with pytest.raises(DataLostError, match=r"a\.dfset: a manifest must .* has 1,152,921,504,606,846,976 bytes"):
        SetStore(Liar()).manifest(f"liar:/{tmp_path}/a.dfset")
    write_shard(tmp_path / "a.tar", [(b"x" * 5000, 1)])
    Path(f"{tmp_path}/a.tar{SUFFIX}").write_bytes(TAR + bytes(32) + (3).to_bytes(8, "little") + bytes(40))
    with pytest.raises(ValueError, match=r"it has 1,152,921,504,606,846,976 bytes, and can have [\d,]+ at most"):
        tar_index.sealed(str(tmp_path / "a.tar"), LOCAL.stamp(str(tmp_path / "a.tar")), Liar())


def test_a_pax_header_for_all_members_is_kept_for_what_is_asked_of_it() -> None:
    """Of a million keys none but the name and the size, which each member behind it is looked up in."""
    data = b"".join(b"%d %s" % (len(each) + 3, each) for each in (b"k%05d=x\n" % k for k in range(1000)))
    assert tar_index._meta(b"g", data + b"10 size=7\n", 0) == {b"": b"", b"size": b"7"}
