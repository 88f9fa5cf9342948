"""Insides that contract/sources/test_mds_packed.py needs not: they go with what they test."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import zstandard
from kit.images import jpeg
from kit.record_files import mds

from dali_feed.errors import DataLostError
from dali_feed.external_sources import MDS
from dali_feed.external_sources.mds import PackedStore
from dali_feed.records import Extents

IMAGES = [jpeg(n % 16, 16 + n % 3 * 4) for n in range(22)]


def made(folder: Path, hashes: tuple[str, ...] = ("sha1",), compression: str = "zstd:7") -> Path:
    """A set of two shards as MDSWriter(compression="zstd:7", hashes=hashes) leaves it."""
    rows = [(image, struct.pack("<q", n)) for n, image in enumerate(IMAGES)]
    mds(folder, {"image": "jpeg", "label": "int"}, [rows[:15], rows[15:]])
    told = json.loads((folder / "index.json").read_text())
    for shard in told["shards"]:
        raw = folder / shard["raw_data"]["basename"]
        whole = zstandard.ZstdCompressor(7).compress(raw.read_bytes())
        name = f"{raw.name}.zstd"
        (folder / name).write_bytes(whole)
        raw.unlink()
        digests = {each: hashlib.new(each, whole).hexdigest() for each in hashes}
        shard |= {"compression": compression, "zip_data": {"basename": name, "bytes": len(whole), "hashes": digests}}
        shard["raw_data"]["hashes"] = {each: shard["raw_data"]["hashes"][each] for each in hashes}
    (folder / "index.json").write_text(json.dumps(told))
    return folder


def test_a_shard_is_unpacked_once_for_all_of_its_records(tmp_path: Path) -> None:
    """However its records are asked for in one read; what another shard needs takes its place."""
    source = MDS(made(tmp_path / "set"))
    source.snapshot()
    store, unpacked = source._files.store, []
    assert isinstance(store, PackedStore)
    check = store._check
    store._check = lambda packed, held: (unpacked.append(packed.path), check(packed, held))  # type: ignore[func-returns-value,assignment]
    reader = source.reader()
    block = reader.read(Extents(*map(np.array, ([1, 0, 1, 0], [0, 3, 4, 9], [2, 4, 6, 12]))))
    assert [bytes(each or b"") for each in block.payloads] == [IMAGES[k] for k in (15, 16, 3, 19, 20, 9, 10, 11)]
    assert len(unpacked) == 2


@pytest.mark.parametrize(
    ("raw", "said"), [(-7, "more bytes in it, but index.json says"), (9, "bytes in it, but index.json says")]
)
def test_a_shard_unpacks_to_what_index_json_says(tmp_path: Path, raw: int, said: str) -> None:
    """Neither more nor less: a small file must not fill the memory."""
    folder = made(tmp_path / "set", ())
    told = json.loads((folder / "index.json").read_text())
    told["shards"][0]["raw_data"]["bytes"] += raw
    (folder / "index.json").write_text(json.dumps(told))
    with pytest.raises(DataLostError, match=said):
        MDS(folder, check=False)._files.store.open(str(folder / "shard.00000.mds")).read(memoryview(bytearray(9)), 1)
