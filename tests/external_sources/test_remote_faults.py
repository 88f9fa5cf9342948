"""What a server does wrong, and what comes of it: the records, or the error by its name, after so many requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.blocks import taken
from kit.web import Web

from dali_feed.errors import (
    DaliFeedError,
    DataLostError,
    SourceChangedError,
    SourceDeniedError,
    SourceError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.external_sources import ShardSet
from dali_feed.records.extents import Extents
from dali_feed.storage import remote
from dali_feed.testing.shards import write_shard

RECORDS = [[(os.urandom(900 + 7 * k), 20 * shard + k) for k in range(20)] for shard in range(2)]
EVERY = [record for shard in RECORDS for record in shard]
FAULTS: list[tuple[str, list[str], type[DaliFeedError] | None, int]] = [
    # name, what the next requests for shard 1 meet, the error, requests for it
    ("none", [], None, 1),
    ("503 four times", ["503"] * 4, None, 5),
    ("503 for good", ["503"] * 9, SourceUnreachableError, 5),
    ("500", ["500"], None, 2),
    ("501", ["501"], None, 2),
    ("502", ["502"], None, 2),
    ("504", ["504"], None, 2),
    ("429 four times", ["429"] * 4, None, 5),
    ("429 for good", ["429"] * 9, SourceUnreachableError, 5),
    ("408", ["408"], None, 2),
    ("reset four times", ["reset"] * 4, None, 5),
    ("reset for good", ["reset"] * 9, SourceUnreachableError, 5),
    ("short four times", ["short"] * 4, None, 5),
    ("short for good", ["short"] * 9, SourceUnreachableError, 5),
    ("the whole file four times", ["whole"] * 4, None, 5),
    ("the whole file for good", ["whole"] * 9, SourceUnreachableError, 5),
    ("another range four times", ["shifted"] * 4, None, 5),
    ("another range for good", ["shifted"] * 9, SourceUnreachableError, 5),
    ("one after the other", ["503", "reset", "short", "shifted"], None, 5),
    ("401", ["401"], SourceDeniedError, 1),
    ("403", ["403"], SourceDeniedError, 1),
    ("404", ["404"], SourceNotFoundError, 1),
    ("410", ["410"], SourceNotFoundError, 1),
    ("400", ["400"], SourceError, 1),
    ("416", ["416"], SourceChangedError, 1),
    ("412", ["412"], SourceChangedError, 1),
    ("another object, If-Match ignored", ["other"], SourceChangedError, 1),
]


@pytest.fixture(params=["http", "s3"])
def source(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ShardSet, Web]]:
    """Two shards behind a server, by its address or as a bucket of S3, whose index is known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.01)
    for k, records in enumerate(RECORDS):
        write_shard(tmp_path / f"{k}.tar", records)
    with Web({f"train/{k}.tar": (tmp_path / f"{k}.tar").read_bytes() for k in range(2)}) as web:
        if request.param == "http":
            shards = ShardSet(f"{web.url}/train/{{0..1}}.tar")
        else:
            shards = ShardSet("s3://train/{0..1}.tar", storage_options=s3_options(web.url))
        shards.snapshot()
        web.requests.clear()
        yield shards, web


def s3_options(url: str) -> dict[str, Any]:
    """Of a server that is no Amazon."""
    return {"access_key_id": "alice", "secret_access_key": "alice-secret", "endpoint": url, "region": "us-east-1"}


def rows(source: ShardSet) -> list[tuple[bytes, int]]:
    """Payload and label of every record."""
    reader = source.reader()
    try:
        block = reader.read(Extents(np.arange(2), np.zeros(2, np.int64), np.full(2, 20)))
        return list(zip(map(taken, block.payloads), block.fields["label"].tolist(), strict=True))
    finally:
        reader.close()


@pytest.mark.parametrize(("faults", "error", "requests"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_a_fault_of_a_server(
    source: tuple[ShardSet, Web], faults: list[str], error: type[DaliFeedError] | None, requests: int
) -> None:
    """What may pass is tried again, five times in all; what will not is told at once, and names the shard."""
    shards, web = source
    web.faults["train/1.tar"].extend(faults)
    if error is None:
        assert rows(shards) == EVERY
    else:
        with pytest.raises(error, match=r"train/1\.tar") as caught:
            rows(shards)
        assert type(caught.value) is error
    assert len(web.ranges("train/1.tar")) == requests


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        (["503", "reset", "short", "429"], None),
        (["503"] * 9, SourceUnreachableError),
        (["403"], SourceDeniedError),
        (["404"], DataLostError),  # it was there
        (["other"], SourceChangedError),
    ],
)
def test_a_fault_when_it_is_asked_what_a_shard_is(
    source: tuple[ShardSet, Web], faults: list[str], error: type[DaliFeedError] | None
) -> None:
    """As of a read; that asks for the first byte, since addresses that are signed for reads refuse a HEAD."""
    shards, web = source
    web.faults["train/1.tar"].extend(f"look {fault}" for fault in faults)
    if error is None:
        shards.snapshot()
    else:
        with pytest.raises(error, match=r"train/1\.tar") as caught:
            shards.snapshot()
        assert type(caught.value) is error
    assert {method for method, *_ in web.requests} == {"GET"}


def test_an_empty_shard_is_told_as_an_empty_file_is(tmp_path: Path) -> None:
    """It has no first byte that could be asked for."""
    (tmp_path / "0.tar").touch()
    errors = []
    with Web({"0.tar": b""}) as web:
        for path in (f"{web.url}/0.tar", str(tmp_path / "0.tar")):
            with pytest.raises(SourceError) as caught:
                ShardSet(path).snapshot()
            errors.append((type(caught.value), str(caught.value).replace(path, "PATH")))
    assert errors[0] == errors[1]
