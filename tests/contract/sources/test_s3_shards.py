"""Shards in a real S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from kit.blocks import taken
from kit.inside import Extents, write_shard
from kit.s3 import S3Server, unavailable

from dali_feed.errors import SourceChangedError, SourceDeniedError, SourceNotFoundError
from dali_feed.external_sources import FromEnv, ShardSet

pytestmark = pytest.mark.waits
RECORDS = [[(os.urandom(900), 30 * shard + k) for k in range(30)] for shard in range(2)]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """One for the file."""
    why = unavailable()
    if why is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    with S3Server() as found:
        there = fsspec.filesystem("s3", skip_instance_cache=True, **found.options())
        there.call_s3("create_bucket", Bucket="train")
        yield found


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file system with two shards and the index of one of them in the bucket `train`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("S3_SECRET", "alice-secret")
    there = fsspec.filesystem("s3", skip_instance_cache=True, **server.options())
    for k, records in enumerate(RECORDS):
        write_shard(tmp_path / f"{k}.tar", records)
        there.pipe_file(f"train/set/{k}.tar", (tmp_path / f"{k}.tar").read_bytes())
    there.pipe_file("train/set/0.tar.dfidx", b"no index of ours")
    return there


def test_shards_in_a_bucket_are_what_the_files_are(server: S3Server, bucket: Any, tmp_path: Path) -> None:
    """A pattern is matched by the store, and records, labels and fingerprint are those of the files."""
    source = ShardSet("s3://train/set/*.tar", storage_options=server.options(FromEnv("S3_SECRET")))
    assert source.paths == ("s3://train/set/0.tar", "s3://train/set/1.tar")
    found = source.snapshot()
    assert found.fingerprint == ShardSet(str(tmp_path / "*.tar")).snapshot().fingerprint
    reader = source.reader()
    block = reader.read(Extents(np.arange(2), found.starts, found.stops))
    rows = zip(map(taken, block.payloads), block.fields["label"].tolist(), strict=True)
    assert list(rows) == [record for shard in RECORDS for record in shard]
    bucket.pipe_file("train/set/1.tar", bytes(len((tmp_path / "1.tar").read_bytes())))
    with pytest.raises(SourceChangedError, match=r"s3://train/set/1\.tar"):
        reader.read(Extents.one(1, 0, 1))
    reader.read(Extents.one(0, 0, 1)).lease.release()


def test_what_a_bucket_refuses_and_what_it_lacks(
    server: S3Server, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong secret and a missing object are told at once, and the secret is in no word of it."""
    with pytest.raises(SourceNotFoundError, match=r"2\.tar"):
        ShardSet("s3://train/set/{0..2}.tar", storage_options=server.options()).snapshot()
    monkeypatch.setenv("S3_SECRET", "another-secret")
    with pytest.raises(SourceDeniedError, match="refuses") as told:
        ShardSet("s3://train/set/0.tar", storage_options=server.options(FromEnv("S3_SECRET"))).snapshot()
    assert "another-secret" not in str(told.value)
