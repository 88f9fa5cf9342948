"""The tar files that are written, and the indexes that come with them."""

from __future__ import annotations

import os
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from dali_feed.external_sources import tar as tar_index
from dali_feed.external_sources.index import index_bytes, indexed
from dali_feed.packing.sinks import TarWriter
from dali_feed.testing.shards import write_shard


def test_tarfile_reads_what_is_written_and_the_index_is_the_one_of_its_headers(tmp_path: Path) -> None:
    """Long names, letters that are not ASCII, empty and large members: tarfile and our own index find them all."""
    keys = ["a", "folder/b", "x" * 120 + "/" + "y" * 120, "é/ü", "é" * 90]
    samples: list[tuple[str, list[tuple[str, bytes | memoryview]]]] = [
        (key, [("jpg", os.urandom(k * 700)), ("CLS", b"%d" % k), ("seg.png", b"")]) for k, key in enumerate(keys)
    ]
    samples.append(("large", [("bin", memoryview(os.urandom(3 << 20)))]))
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        tar = TarWriter(file.write)
        for sample in samples:
            tar.add(*sample)
        made = tar.finish()
    with tarfile.open(path) as read:
        found = [(info.name, info.mtime, read.extractfile(info).read()) for info in read]  # type: ignore[union-attr]
    assert found == [(f"{key}.{suffix}", 0, bytes(data)) for key, files in samples for suffix, data in files]
    built = tar_index.build(str(path))
    for mine, its in zip(made.columns, (built.first, built.offset, built.length, built.suffix), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert (made.suffixes, made.size, built.behind) == (built.suffixes, path.stat().st_size, 0)
    assert made.crc is not None
    assert made.crc.tolist() == [zlib.crc32(data) for _, files in samples for _, data in files]


def test_a_member_of_8_gib_gets_its_size_from_a_pax_header() -> None:
    """What no octal field holds is said before the header, as tarfile reads it."""
    from dali_feed.packing.sinks import _header

    head = _header("big.bin", 9 << 30)
    (info,) = (tarfile.TarInfo.frombuf(head[:512], "utf-8", "strict"),)
    assert info.type == tarfile.XHDTYPE
    assert head[512:].startswith(b"19 size=9663676416\n")


def test_plain_samples_are_the_bytes_that_other_tools_write(tmp_path: Path) -> None:
    """A sample with a short name gives the plain ustar bytes of `write_shard`."""
    write_shard(tmp_path / "a.tar", [{"jpg": b"1" * 600, "cls": b"3"}, {"jpg": b"2"}])
    parts: list[bytes] = []
    tar = TarWriter(parts.append)
    tar.add("00000000", [("jpg", b"1" * 600), ("cls", b"3")])
    tar.add("00000001", [("jpg", b"2")])
    tar.finish()
    assert b"".join(parts) == (tmp_path / "a.tar").read_bytes()


def test_an_index_file_is_whole_or_refused() -> None:
    """Its bytes give the same index; with any byte flipped, or cut anywhere, they give a ValueError."""
    tar = TarWriter(lambda _: None)
    for k in range(3):
        tar.add(f"{k}", [("jpg", b"x" * k), ("cls", b"1")])
    whole = index_bytes(tar.finish())
    assert index_bytes(indexed(whole)) == whole
    for k in range(len(whole)):
        for broken in (whole[:k] + bytes([whole[k] ^ 1]) + whole[k + 1 :], whole[:k]):
            with pytest.raises(ValueError, match="damaged"):
                indexed(broken)
