"""A cache of pieces before a web server: what was fetched is asked for no more, and is never of another object."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kit.blocks import taken
from kit.web import Web

from dali_feed.errors import SourceChangedError
from dali_feed.external_sources import DiskCache, ShardSet
from dali_feed.records.extents import Extents
from dali_feed.records.gauges import StorageStats, storage_of
from dali_feed.testing.shards import write_shard

PIECE = 1 << 14
RECORDS = [[(os.urandom(1500 + 7 * k), 40 * shard + k) for k in range(40)] for shard in range(2)]
EVERY = [record for shard in RECORDS for record in shard]


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A server of two shards of 5 pieces each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "indexes"))
    for k, records in enumerate(RECORDS):
        write_shard(tmp_path / f"{k}.tar", records)
    with Web({f"{k}.tar": (tmp_path / f"{k}.tar").read_bytes() for k in range(2)}) as server:
        yield server


def shards(web: Web, folder: Path) -> ShardSet:
    """The server's, behind a cache with room for all, and indexed."""
    source = ShardSet(f"{web.url}/{{0..1}}.tar", cache=DiskCache(folder / "pieces", "10MB", PIECE))
    source.snapshot()
    web.requests.clear()
    return source


def rows(source: ShardSet) -> tuple[list[tuple[bytes, int]], tuple[StorageStats, ...]]:
    """Payload and label of every record, and what the reader measured."""
    found = source.snapshot()
    reader = source.reader()
    try:
        block = reader.read(Extents(np.arange(len(found.names)), found.starts, found.stops))
        result = list(zip(map(taken, block.payloads), block.fields["label"].tolist(), strict=True))
        block.lease.release()
        return result, storage_of([reader])
    finally:
        reader.close()


def asked(web: Web) -> int:
    """Ranges that the server was asked for."""
    return sum(len(web.ranges(name)) for name in web.files)


def test_a_second_epoch_asks_for_no_range(web: Web, tmp_path: Path) -> None:
    """Faults on the way included; the reader's figures are of the store and of the cache, each its own."""
    source = shards(web, tmp_path)
    web.faults["0.tar"].extend(["503", "short"])
    first, (cache, store) = rows(source)
    assert (first, store.store, bool(cache.misses)) == (EVERY, web.url, True)
    assert store.reads == asked(web) - 2
    web.requests.clear()
    second, (cache, store) = rows(source)
    assert (second, asked(web)) == (EVERY, 0)
    assert (store.reads, store.bytes, cache.misses, bool(cache.hits)) == (0, 0, 0, True)
    assert rows(shards(web, tmp_path))[0] == EVERY  # and one that comes after it
    assert asked(web) == 0


def test_another_object_is_not_read_from_old_pieces(web: Web, tmp_path: Path) -> None:
    """Of an object that changed its records are an error, and then, indexed anew, its own: never the old bytes."""
    source = shards(web, tmp_path)
    assert rows(source)[0] == EVERY
    changed = [(payload[::-1], label) for payload, label in RECORDS[1]]
    write_shard(tmp_path / "1.tar", changed)
    web.files["1.tar"] = (tmp_path / "1.tar").read_bytes()
    with pytest.raises(SourceChangedError, match=r"/1\.tar: a shard must not change"):
        rows(source)
    assert rows(shards(web, tmp_path))[0] == RECORDS[0] + changed


_PROCESS = """
import sys
import numpy as np
from dali_feed.external_sources import DiskCache, ShardSet
from dali_feed.records.extents import Extents
source = ShardSet(sys.argv[1] + "/{0..1}.tar", cache=DiskCache(sys.argv[2], "10MB", int(sys.argv[3])))
source.snapshot()
reader = source.reader()
for n in range(40):
    reader.read(Extents.one(0, n, n + 1)).lease.release()
print("read", flush=True)
reader.read(Extents.one(1, 0, 40)).lease.release()
"""


def test_who_comes_after_a_killed_process_has_what_it_kept(web: Web, tmp_path: Path) -> None:
    """After kill -9 while the server holds an answer back the pieces before it are there, the others are fetched."""
    shards(web, tmp_path)  # whose index the process finds
    web.faults["1.tar"].append("hang")
    command = [sys.executable, "-c", _PROCESS, web.url, str(tmp_path / "pieces"), str(PIECE)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "read\n"
    assert web.hanging.wait(60)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    source = shards(web, tmp_path)
    assert rows(source)[0] == EVERY
    assert (web.ranges("0.tar"), asked(web) > 0) == ([], True)
    assert not list((tmp_path / "pieces" / "parts").iterdir())
