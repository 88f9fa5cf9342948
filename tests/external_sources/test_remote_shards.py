"""Shards behind HTTP and in buckets: the bytes that were stored, or the error by its name, after so many requests."""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.blocks import Reads, pictures
from kit.web import Web

from dali_feed.columns import Bytes, Number
from dali_feed.errors import (
    ClosedError,
    ConfigError,
    DaliFeedError,
    DataLostError,
    MissingPackageError,
    SourceChangedError,
    SourceDeniedError,
    SourceError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.external_sources import Secret, ShardSet
from dali_feed.external_sources import tar as tar_index
from dali_feed.records.extents import Extents
from dali_feed.records.gauges import storage_of
from dali_feed.storage import remote
from dali_feed.testing import assert_resumes_anywhere
from dali_feed.testing.shards import write_shard

RECORDS = [[(os.urandom(900 + 7 * k), 40 * shard + k) for k in range(40)] for shard in range(3)]
EVERY = [record for shard in RECORDS for record in shard]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Indexes are kept here, and tries follow each other sooner than people want."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.01)
    return tmp_path / "cache"


@pytest.fixture
def tars(tmp_path: Path) -> dict[str, bytes]:
    """Three shards, name -> bytes."""
    for k, records in enumerate(RECORDS):
        write_shard(tmp_path / f"{k}.tar", records)
    return {f"{k}.tar": (tmp_path / f"{k}.tar").read_bytes() for k in range(len(RECORDS))}


@pytest.fixture
def web(tars: dict[str, bytes]) -> Iterator[Web]:
    """A server of the shards."""
    with Web(tars) as server:
        yield server


def shards(web: Web) -> ShardSet:
    """All of the server's."""
    return ShardSet(f"{web.url}/{{0..2}}.tar")


def rows(source: ShardSet, stop: threading.Event | None = None) -> list[tuple[Any, Any]]:
    """Image and label of every record."""
    return [row[:2] for row in pictures(source, stop=stop)]


@pytest.fixture(params=["http", "s3"])
def source(request: pytest.FixtureRequest, tars: dict[str, bytes]) -> Iterator[tuple[ShardSet, Web]]:
    """Three shards behind a server, by its address or as a bucket of S3, whose index is known."""
    with Web({f"train/{name}": data for name, data in tars.items()}) as web:
        if request.param == "http":
            found = ShardSet(f"{web.url}/train/{{0..2}}.tar")
        else:
            found = ShardSet("s3://train/{0..2}.tar", storage_options=s3_options(web.url))
        found.snapshot()
        web.requests.clear()
        yield found, web


def s3_options(url: str) -> dict[str, Any]:
    """Of a server that is no Amazon."""
    return {"access_key_id": "a", "secret_access_key": "b", "endpoint": url, "region": "us-east-1"}


def test_shards_on_a_web_server_are_what_the_files_are(web: Web, tmp_path: Path) -> None:
    """The same records, the same fingerprint; one request for each shard's neighbours, and windows for the plan."""
    source, local = shards(web), ShardSet(str(tmp_path / "*.tar"))
    assert rows(source) == EVERY
    remote = source.snapshot()
    assert (remote.fingerprint, remote.names) == (local.snapshot().fingerprint, local.snapshot().names)
    assert not remote.random_access
    web.requests.clear()
    rows(source)
    assert [len(web.ranges(name)) for name in web.files] == [1, 1, 1]
    web.requests.clear()
    Reads(source).read(Extents(np.arange(3), remote.starts, remote.stops)).lease.release()
    assert len(web.requests) == 3  # what they are was asked, and each asks for that


@pytest.mark.parametrize("tags", [True, False])
def test_a_remote_run_resumes_anywhere(tars: dict[str, bytes], tags: bool) -> None:
    """The law of resume, over HTTP, with faults on the way; also where a server has no ETags."""
    with Web(tars, tags=tags) as web:
        source = shards(web)
        source.snapshot()
        for name in web.files:
            web.faults[name].extend(["503", "reset", "short"])
        columns = {"label": Number("cls"), "bytes": Bytes("jpg")}
        assert_resumes_anywhere(source, batch_size=40, positions=[1], columns=columns)
        assert not any(web.faults.values())


def test_what_a_reader_measures(web: Web) -> None:
    """Requests, bytes and failures are its own; opening a file is no read."""
    source = shards(web)
    source.snapshot()
    reader, other = Reads(source), Reads(source)
    web.faults["0.tar"].extend(["503", "short"])
    reader.read(Extents.one(0, 0, 40)).lease.release()
    (found,) = storage_of([reader.reader])
    assert (found.store, found.reads, found.failures, found.queued) == (web.url, 1, 0, 0)
    assert found.bytes > sum(len(payload) for payload, _ in RECORDS[0])
    web.faults["0.tar"].append("403")
    with pytest.raises(SourceDeniedError):
        reader.read(Extents.one(0, 0, 40))
    assert [(each.reads, each.failures) for each in storage_of([reader.reader])] == [(2, 1)]
    assert [each.reads for each in storage_of([other.reader])] == [0]


@pytest.mark.parametrize("tags", [True, False])
def test_an_object_that_was_replaced_gives_no_bytes(tars: dict[str, bytes], tags: bool) -> None:
    """Another object of another size under the same name is seen by the request itself, and by the next snapshot."""
    with Web(tars, tags=tags) as web:
        source = shards(web)
        found = source.snapshot()
        reader = Reads(source)
        reader.first(1, 1).lease.release()
        web.files["1.tar"] = bytes(len(web.files["1.tar"]) - (0 if tags else 512))
        with pytest.raises(SourceChangedError, match=r"1\.tar"):
            reader.read(Extents.one(1, 0, int(found.stops[1])))
        with pytest.raises(SourceChangedError, match=r"1\.tar"):
            source.snapshot()


def test_a_server_that_hangs_holds_up_nobody(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop event ends the wait for an answer; a limit of time makes it a try that failed."""
    source = shards(web)
    source.snapshot()
    web.faults["0.tar"].append("hang")
    stop = threading.Event()
    told: list[BaseException] = []

    def reading() -> None:
        try:
            rows(source, stop)
        except ClosedError as error:
            told.append(error)

    thread = threading.Thread(target=reading)
    thread.start()
    assert web.hanging.wait(30)
    begun = time.monotonic()
    stop.set()
    thread.join(30)
    assert len(told) == 1
    assert time.monotonic() - begun < 5
    web.faults["0.tar"].append("hang")
    monkeypatch.setattr(remote, "LIMIT_S", 0.3)
    assert rows(shards(web)) == EVERY


def test_an_index_beside_a_remote_shard_is_taken_where_it_fits(web: Web, tmp_path: Path) -> None:
    """It is of another copy, so headers are looked at; one that speaks of another file of the same size is not used."""
    tar_index.load(str(tmp_path / "0.tar"))
    index = (tmp_path / "0.tar.dfidx").read_bytes()
    web.files["0.tar.dfidx"] = web.files["1.tar.dfidx"] = index
    lengths = [[(os.urandom(900 + 7 * (39 - k)), k) for k in range(40)], RECORDS[2]]
    write_shard(tmp_path / "other.tar", lengths[0])
    web.files["1.tar"] = (tmp_path / "other.tar").read_bytes()
    assert len(web.files["1.tar"]) == len(web.files["0.tar"])
    assert rows(shards(web)) == [*RECORDS[0], *lengths[0], *lengths[1]]
    assert f"bytes=0-{len(index) - 1}" in web.ranges("0.tar.dfidx")
    read = web.ranges("0.tar")
    web.requests.clear()
    rows(shards(web))
    assert not web.ranges("0.tar.dfidx")  # it is kept here now
    assert len(read) > len(web.ranges("0.tar")) == 1


@pytest.mark.parametrize(
    ("pattern", "options", "error", "said"),
    [
        ("{url}/*.tar", {}, ConfigError, "lists no files"),
        (["{url}/0.tar", "/data/1.tar"], {}, ConfigError, "one store"),
        ("https://me:hunter2@host/0.tar", {}, ConfigError, "no user or password"),
        ("/dev/null", {"access_key_id": "x"}, ConfigError, "storage_options are for addresses"),
        ("{url}/7.tar", {}, SourceNotFoundError, r"7\.tar: no such shard"),
        ("hdfs://host/0.tar", {}, ConfigError, "found hdfs://; mount it, and name its files"),
        ("sftp://host/0.tar", {}, ConfigError, "found sftp://; mount it"),
        ("nosuch://bucket/0.tar", {}, ConfigError, "must begin with http://, .*found nosuch://"),
        ("s3://bucket/0.tar", {"key": "hunter2"}, ConfigError, "'key' .* of fsspec; obstore has access_key_id"),
        ("s3://bucket/0.tar", {"nosuch": "hunter2"}, ConfigError, r"options of obstore's s3:// \(given: nosuch\)"),
        ("{url}/0.tar", {"client_options": {"headers": {}}}, ConfigError, "Invalid key: headers"),
        ("{url}/0.tar", {"retry_config": {"max_retries": "x"}}, ConfigError, "cannot be interpreted as an integer"),
        ("az://container/0.tar", {}, ConfigError, "Account must be specified"),
    ],
)
def test_what_cannot_be_read_is_told(
    web: Web, pattern: str | list[str], options: dict[str, object], error: type[Exception], said: str
) -> None:
    """Patterns, kinds of addresses and options, by name, with the cure; no option's value is in it."""
    names = [name.format(url=web.url) for name in ([pattern] if isinstance(pattern, str) else pattern)]
    with pytest.raises(error, match=said) as told:
        ShardSet(names, storage_options=options).snapshot()
    assert "hunter2" not in str(told.value)
    assert not web.ranges("7.tar")


def test_a_package_that_is_missing_is_named(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    monkeypatch.setattr(remote, "_loop", None)
    with pytest.raises(MissingPackageError, match="pip install obstore"):
        shards(web).snapshot()


def test_a_bucket_is_listed(tars: dict[str, bytes]) -> None:
    """By `*`, `?`, `[..]` in a name or a folder and by `**`; indexes are no shards."""
    files = {f"b/set/{name}": data for name, data in tars.items()} | {"b/set/0.tar.dfidx": b"", "b/set/x/7.tar": b""}
    with Web(files) as web:
        options = s3_options(web.url)
        for pattern, found in {
            "s3://b/set/*.tar": ["0", "1", "2"],
            "s3://b/set/[!1].tar": ["0", "2"],
            "s3://b/s?t/{0,2}.tar": ["0", "2"],
            "s3://b/*/1*": ["1"],
            "s3://b/set/**": ["0", "1", "2", "x/7"],
            "s3://b/**/7.tar": ["x/7"],
        }.items():
            assert ShardSet(pattern, storage_options=options).paths == tuple(f"s3://b/set/{k}.tar" for k in found)
        assert rows(ShardSet("s3://b/set/*.tar", storage_options=options)) == EVERY
        with pytest.raises(SourceNotFoundError, match="found no match"):
            ShardSet("s3://b/set/*.gone", storage_options=options)


def test_options_are_shown_nowhere_and_travel(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in the options is sent, is read where it is needed, and is in no text; a pickled set reads the same."""
    monkeypatch.setenv("SHARDS_TOKEN", "Bearer hunter2")
    headers = {"client_options": {"default_headers": {"Authorization": Secret(env="SHARDS_TOKEN")}}}
    source = ShardSet(f"{web.url}/{{0..2}}.tar", storage_options=headers)
    web.faults["0.tar"].append("403")
    with pytest.raises(SourceDeniedError) as told:
        rows(source)
    assert {sent["authorization"] for sent in web.headers} == {"Bearer hunter2"}
    wire = pickle.dumps(source)
    assert not any("hunter2" in text for text in (str(told.value), repr(source), repr(source.store), repr(wire)))
    assert rows(pickle.loads(wire)) == EVERY
    monkeypatch.delenv("SHARDS_TOKEN")
    with pytest.raises(ConfigError, match="SHARDS_TOKEN must be set"):
        pickle.loads(wire).snapshot()


def texts_of(error: BaseException | None) -> list[str]:
    """All that an error, its causes and its contexts say."""
    found = [] if error is None else traceback.format_exception(error)
    while error is not None:
        found += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    return found


def test_what_signs_an_address_is_shown_nowhere(web: Web, tmp_path: Path) -> None:
    """Not in repr, names, paths, states' fingerprints, figures or any error and its causes; and it is sent."""
    secret = "5igNature"

    def signed(time: str) -> ShardSet:
        query = f"X-Amz-Expires={time}&X-Amz-Signature={secret}{time}%2F&part=7"
        return ShardSet([f"{web.url}/{k}.tar?{query}" for k in range(3)])

    source = signed("1")
    assert rows(source) == EVERY
    assert {f"{secret}1%2F&" in query for query in web.queries} == {True}
    snapshot, reader = source.snapshot(), Reads(source)
    texts = [
        repr(source),
        repr(source.store),
        repr(snapshot),
        str(source.paths),
        source.where(1, 3),
        str(storage_of([reader.reader])),
    ]
    kept = {path.name for path in (tmp_path / "cache").rglob("*.dfidx")}
    assert signed("2").snapshot().fingerprint == snapshot.fingerprint
    assert {path.name for path in (tmp_path / "cache").rglob("*.dfidx")} == kept
    assert rows(pickle.loads(pickle.dumps(source))) == EVERY
    for fault in (["403"], ["404"], ["400"], ["503"] * 5, ["short"] * 5, ["whole"] * 5, ["other"], ["look 403"]):
        web.faults["1.tar"].extend(fault)
        with pytest.raises(DaliFeedError) as caught:
            rows(source)
        texts += texts_of(caught.value)
        web.faults["1.tar"].clear()
    web.files["1.tar"] = web.files["0.tar"]
    with pytest.raises(DaliFeedError) as caught:
        rows(source)
    texts += texts_of(caught.value)
    for wrong in (f"{web.url}/*.tar?sig={secret}", f"{web.url}/{{3..1}}.tar?sig={secret}"):
        with pytest.raises(ConfigError) as refused:
            ShardSet(wrong)
        texts.append(str(refused.value))
    gone = ShardSet(f"http://127.0.0.1:1/0.tar?sig={secret}")
    with pytest.raises(DaliFeedError) as caught:
        gone.snapshot()
    texts += texts_of(caught.value)
    assert not [text for text in texts if secret in text]


def test_a_query_that_signs_nothing_tells_objects_apart(web: Web) -> None:
    """`get?file=1` and `get?file=2` are two; the same one signed twice is named twice."""
    source = ShardSet([f"{web.url}/0.tar?file={k}" for k in (1, 2)])
    assert len(set(source.paths)) == 2
    with pytest.raises(ConfigError, match="each shard may be named once"):
        ShardSet([f"{web.url}/0.tar?sig={k}" for k in (1, 2)])


LASTING = ("503", "429", "reset", "short", "whole", "shifted")  # the whole file, or another range

# What the next requests for shard 1 meet, the error, requests for it.
FAULTS: dict[str, tuple[list[str], type[DaliFeedError] | None, int]] = {
    "none": ([], None, 1),
    "one after the other": (["503", "reset", "short", "shifted"], None, 5),
    **{each: ([each], None, 2) for each in ("408", "500", "501", "502", "504")},
    **{f"{each} four times": ([each] * 4, None, 5) for each in LASTING},
    **{f"{each} for good": ([each] * 9, SourceUnreachableError, 5) for each in LASTING},
    **{each: ([each], SourceDeniedError, 1) for each in ("401", "403")},
    **{each: ([each], SourceNotFoundError, 1) for each in ("404", "410")},
    "400": (["400"], SourceError, 1),
    **{each: ([each], SourceChangedError, 1) for each in ("416", "412", "other")},  # as if If-Match were ignored
}


@pytest.mark.parametrize(("faults", "error", "requests"), FAULTS.values(), ids=FAULTS)
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
