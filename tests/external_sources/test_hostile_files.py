"""Files that lie or are damaged: indexes, row groups that expand, a disk of a striped set, limits; and labels found."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st
from kit.blocks import pictures, rows
from kit.images import jpeg
from kit.packed_images import plain, striped
from kit.properties import examples
from kit.record_files import mds

from dali_feed.errors import ConfigError, SourceError
from dali_feed.external_sources import MDS, ShardSet, Table
from dali_feed.external_sources.index import RecordIndex, TarIndex
from dali_feed.packing.sinks import write_shard
from dali_feed.records.extents import Extents
from dali_feed.records.slabs import SlabPool
from dali_feed.storage.store import Stamp

__all__ = ["plain"]  # a fixture

STAMP = Stamp(0, 20_000, 77, 0)
PAIRS = np.arange(12, dtype=np.int32) % 2
TAR = TarIndex(STAMP, 0, np.arange(0, 13, 2), np.arange(12) * 1000 + 512, np.full(12, 400), PAIRS, (b"jpg", b"cls"))
RECORDS = RecordIndex(STAMP, np.arange(10) * 1000, np.full(10, 900))
SEALED = {"tar": TAR.to_bytes(), "records": RECORDS.to_bytes("TFRecord")}
NUMBERS = st.sampled_from([0, 1, 2, 5, 7, 13, 2**31, 2**40, 2**62, 2**63 - 1, -1, -(2**63)]) | st.integers(
    -(2**63), 2**63 - 1
)


@examples(times=6)
@given(places=st.lists(st.tuples(st.integers(0, 70), NUMBERS), max_size=4), cut=st.integers(0, 400) | st.none())
@example(places=[(3, -1)], cut=None)
@example(places=[(4, 2**62)], cut=None)
@example(places=[(3, 2**62)], cut=None)
def test_any_numbers_in_an_index_make_one_or_none(places: list[tuple[int, int]], cut: int | None) -> None:
    """Whoever writes an index may seal it: what fits no file is a ValueError, and the index is built anew."""
    for kind, whole in SEALED.items():
        body = bytearray(whole[40:])
        for place, number in places:
            at = min(8 * place, len(body) // 8 * 8 - 8)
            body[at : at + 8] = number.to_bytes(8, "little", signed=True)
        sealed = whole[:8] + hashlib.sha256(body[:cut]).digest() + body[:cut]
        try:
            index: Any = TarIndex.of(sealed) if kind == "tar" else RecordIndex.of(sealed, "TFRecord", STAMP)
        except ValueError:
            continue
        assert len(index.digest) == 64
        at, size = index.member([b"jpg"]) if kind == "tar" else (index.at, index.size)
        assert ((at < 0) | ((size >= 0) & (at <= index.stamp.size - size))).all(), kind


def test_a_row_group_that_expands_is_refused_before_it_is_made(tmp_path: Path) -> None:
    """A dictionary says one text for a million rows: the footer knows of its bytes alone."""
    texts = pa.DictionaryArray.from_arrays(np.zeros(400_000, np.int32), ["a" * 1000])
    pq.write_table(pa.table({"t": texts, "n": np.arange(400_000)}), tmp_path / "a.parquet", row_group_size=400_000)
    assert (tmp_path / "a.parquet").stat().st_size < 4_000_000
    source, pool = Table(tmp_path / "a.parquet", image=None), SlabPool(1 << 16, most=4 << 20)
    reader, before = source.reader(["t"]), pa.total_allocated_bytes()
    pa.default_memory_pool().release_unused()
    peak = pa.default_memory_pool().max_memory()
    with pytest.raises(ConfigError, match=r"must hold a group of rows; .*row group 0, .* takes \d{7} bytes or more"):
        reader.read(Extents.one(0, 0, 1), pool.lease())
    assert pa.total_allocated_bytes() - before < 1 << 20  # threads of Arrow's may have pages of the file yet
    assert pa.default_memory_pool().max_memory() - max(peak, before) < 40 << 20
    reader.close()
    assert rows(source, "n", extents=Extents.one(0, 5, 7)) == [{"n": 5}, {"n": 6}]


def test_a_packed_shard_that_is_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    """By its size in index.json, before a byte is unpacked: 4 GB of zeros are few bytes packed."""
    mds(tmp_path / "a", {"image": "bytes"}, [[(bytes(200_000),)] * 3])
    described = json.loads((tmp_path / "a" / "index.json").read_text())
    for shard in described["shards"]:
        raw = tmp_path / "a" / shard["raw_data"]["basename"]
        data = zstandard.ZstdCompressor().compress(raw.read_bytes())
        zipped = {"basename": f"{raw.name}.zstd", "bytes": len(data), "hashes": {}}
        raw.with_name(zipped["basename"]).write_bytes(data)
        raw.unlink()
        shard |= {"compression": "zstd", "zip_data": zipped}
    (tmp_path / "a" / "index.json").write_text(json.dumps(described))
    source = MDS(tmp_path / "a")
    member, pool = source.members()[0].name, SlabPool(1 << 16, most=500_000)
    with pytest.raises(ConfigError, match=r"memory=500000\): must hold a shard .*\.mds takes 60\d{4} bytes"):
        source.reader([member]).read(Extents.one(0, 0, 1), pool.lease())
    reader, pool = source.reader([member]), SlabPool(1 << 16, most=1_000_000)
    reader.read(Extents.one(0, 0, 1), pool.lease())
    assert pool.kept > 600_000
    reader.close()
    assert pool.kept == 0


def test_a_wrong_byte_of_a_striped_set_names_its_disk(plain: Path, tmp_path: Path) -> None:
    """The part that the record lies in, on its target."""
    path = striped(plain, tmp_path, 3)
    part = next((tmp_path / "t1").iterdir())
    data = bytearray(part.read_bytes())
    data[::64] = bytes(255 - byte for byte in data[::64])
    part.write_bytes(data)
    said = [reason for _, _, reason in pictures(ShardSet(path)) if reason]
    assert said
    assert all("is not what was packed" in reason and str(part) in reason for reason in said)


def test_a_limit_of_open_files_is_named_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the disk."""
    write_shard(tmp_path / "a.tar", [{"jpg": jpeg(0)}])
    source, real = ShardSet(tmp_path / "a.tar"), os.open
    source.snapshot()

    def full(path: Any, *arguments: Any, **more: Any) -> int:
        if str(path).endswith("a.tar"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(SourceError, match=r"a\.tar: .*Too many open files.*ulimit -n.*fewer readers"):
        rows(source, "jpg")


def test_a_label_is_found_by_key_or_by_path(tmp_path: Path) -> None:
    """A key that has such a name comes first."""
    for name, document in {"path": {"meta": {"label": 3}}, "key": {"meta.label": 4, "meta": {"label": 3}}}.items():
        write_shard(tmp_path / f"{name}.tar", [{"jpg": b"a", "json": json.dumps(document).encode()}] * 2)
    for name, label in {"path": 3, "key": 4}.items():
        source = ShardSet(tmp_path / f"{name}.tar", label="json:meta.label")
        assert [found for _, found, _ in pictures(source)] == [label, label]


def test_no_label_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where it was left to the first sample, as a loop that unpacks two would fail without a word of ours."""
    write_shard(tmp_path / "a.tar", [{"jpg": jpeg(0)}])
    pq.write_table(pa.table({"image": [jpeg(0)]}), tmp_path / "a.parquet")
    for source in (ShardSet(tmp_path / "a.tar"), Table(tmp_path / "a.parquet")):
        assert tuple(source.preset) == tuple(source.preset) == ("image",)
    assert [record.message.split(":")[1][:30] for record in caplog.records] == [' label="auto" found no labels,'] * 2
    assert tuple(ShardSet(tmp_path / "a.tar", label=None).preset) == ("image",)
    assert len(caplog.records) == 2
