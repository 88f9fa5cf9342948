"""Shards in a real S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from kit.blocks import Reads, pictures
from kit.inside import write_shard
from kit.s3 import S3Server, unavailable
from obstore.store import S3Store

from dali_feed.errors import SourceChangedError, SourceDeniedError, SourceNotFoundError
from dali_feed.external_sources import Secret, ShardSet

pytestmark = pytest.mark.waits
RECORDS = [[(os.urandom(900), 30 * shard + k) for k in range(30)] for shard in range(2)]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[S3Server, S3Store]]:
    """One server for the file, and its bucket `train`."""
    why = unavailable()
    if why is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    with S3Server() as server:
        yield server, server.bucket("train")


@pytest.fixture
def server(served: tuple[S3Server, S3Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """With two shards and the index of one of them in the bucket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("S3_SECRET", "alice-secret")
    server, bucket = served
    for k, records in enumerate(RECORDS):
        write_shard(tmp_path / f"{k}.tar", records)
        obstore.put(bucket, f"set/{k}.tar", (tmp_path / f"{k}.tar").read_bytes())
    obstore.put(bucket, "set/0.tar.dfidx", b"no index of ours")
    return server


@pytest.fixture
def bucket(served: tuple[S3Server, S3Store]) -> S3Store:
    """The bucket."""
    return served[1]


def test_shards_in_a_bucket_are_what_the_files_are(server: S3Server, bucket: S3Store, tmp_path: Path) -> None:
    """A pattern is matched by the store, and records, labels and fingerprint are those of the files."""
    source = ShardSet("s3://train/set/*.tar", storage_options=server.options(Secret(env="S3_SECRET")))
    assert source.paths == ("s3://train/set/0.tar", "s3://train/set/1.tar")
    found = source.snapshot()
    assert found.fingerprint == ShardSet(str(tmp_path / "*.tar")).snapshot().fingerprint
    reader = Reads(source)
    assert [row[:2] for row in pictures(source)] == [record for shard in RECORDS for record in shard]
    reader.first(1, 1).lease.release()
    obstore.put(bucket, "set/1.tar", bytes((tmp_path / "1.tar").stat().st_size))
    with pytest.raises(SourceChangedError, match=r"s3://train/set/1\.tar"):
        reader.first(1, 1)
    reader.first(1).lease.release()


def test_what_a_bucket_refuses_and_what_it_lacks(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong secret and a missing object are told at once, and the secret is in no word of it."""
    with pytest.raises(SourceNotFoundError, match=r"2\.tar"):
        ShardSet("s3://train/set/{0..2}.tar", storage_options=server.options()).snapshot()
    monkeypatch.setenv("S3_SECRET", "another-secret")
    with pytest.raises(SourceDeniedError, match="refuses") as told:
        ShardSet("s3://train/set/0.tar", storage_options=server.options(Secret(env="S3_SECRET"))).snapshot()
    assert "another-secret" not in str(told.value)
