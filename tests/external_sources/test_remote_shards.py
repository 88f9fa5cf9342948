"""Shards behind HTTP and other protocols of fsspec: the bytes that were stored, or the named error."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import fsspec
import numpy as np
import pytest
from kit.blocks import taken
from kit.web import Web

from dali_feed.columns import Bytes, Number
from dali_feed.errors import (
    ClosedError,
    ConfigError,
    DaliFeedError,
    MissingPackageError,
    SourceChangedError,
    SourceDeniedError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.external_sources import FromEnv, ShardSet, tar_index
from dali_feed.records.extents import Extents
from dali_feed.records.storage_stats import Stored
from dali_feed.storage.asking import stamp_of
from dali_feed.storage.faults import Patience
from dali_feed.storage.remote import RemoteStore
from dali_feed.testing import assert_resumes_anywhere
from dali_feed.testing.shards import write_shard

RECORDS = [[(os.urandom(900 + 7 * k), 40 * shard + k) for k in range(40)] for shard in range(3)]
EVERY = [record for shard in RECORDS for record in shard]
QUICK = Patience(base=0.01, cap=0.01)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Indexes are kept here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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


def shards(web: Web, **options: object) -> ShardSet:
    """All of the server's, with tries that follow each other at once."""
    source = ShardSet(f"{web.url}/{{0..2}}.tar", storage_options=options)
    hurried(source)
    return source


def hurried(source: ShardSet) -> None:
    """Its store waits less between tries than people want."""
    source._store = RemoteStore(source.paths[0], patience=QUICK)


def rows(source: ShardSet, stop: threading.Event | None = None) -> list[tuple[bytes, int]]:
    """Payload and label of every record."""
    found = source.snapshot()
    reader = source.reader(stop=stop)
    block = reader.read(Extents(np.arange(len(found.names)), found.starts, found.stops))
    result = list(zip(map(taken, block.payloads), block.fields["label"].tolist(), strict=True))
    block.lease.release()
    reader.close()
    return result


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
    source.reader().read(Extents(np.arange(3), remote.starts, remote.stops)).lease.release()
    assert [method for method, *_ in web.requests] == ["GET"] * 3  # what they are was asked, and each asks for that


def test_a_remote_run_resumes_anywhere(web: Web) -> None:
    """The law of resume, over HTTP, with faults on the way."""
    source = shards(web)
    source.snapshot()
    for name in web.files:
        web.faults[name].extend(["503", "reset"])
    columns = {"label": Number("cls"), "bytes": Bytes("jpg")}
    assert_resumes_anywhere(source, batch_size=40, positions=[1], columns=columns)


@pytest.mark.parametrize("fault", ["503", "429", "reset", "short", "whole", "shifted"])
def test_what_may_pass_is_tried_again(web: Web, fault: str) -> None:
    """After faults that pass the records are the same, and the tries are counted; after five the error says so."""
    source = shards(web)
    source.snapshot()
    web.faults["1.tar"].extend([fault] * 4)
    assert rows(source) == EVERY
    assert source._store.retries == 4  # type: ignore[attr-defined]
    web.faults["1.tar"].extend([fault] * 5)
    with pytest.raises(SourceUnreachableError, match=r"/1\.tar: a shard must be readable; 5 tries failed"):
        rows(source)


def test_what_a_reader_measures(web: Web) -> None:
    """Requests, bytes, tries and failures are its own; opening a file is no read."""
    source = shards(web)
    source.snapshot()
    reader, other = source.reader(), source.reader()
    web.faults["0.tar"].extend(["503", "short"])
    reader.read(Extents.one(0, 0, 40)).lease.release()
    assert isinstance(reader, Stored)
    (found,) = reader.storage()
    assert (found.store, found.reads, found.retries, found.failures, found.queued) == (web.url, 1, 2, 0, 0)
    assert found.bytes > sum(len(payload) for payload, _ in RECORDS[0])
    web.faults["0.tar"].append("403")
    with pytest.raises(SourceDeniedError):
        reader.read(Extents.one(0, 0, 40))
    assert [(each.reads, each.failures) for each in reader.storage()] == [(2, 1)]
    assert isinstance(other, Stored)
    assert [each.reads for each in other.storage()] == [0]


@pytest.mark.parametrize(("fault", "error"), [("403", SourceDeniedError), ("404", SourceNotFoundError)])
def test_what_will_not_pass_is_told_at_once(web: Web, fault: str, error: type[DaliFeedError]) -> None:
    """A refusal and a missing object cost one request."""
    source = shards(web)
    source.snapshot()
    web.requests.clear()
    web.faults["2.tar"].append(fault)
    with pytest.raises(error, match="2.tar"):
        rows(source)
    assert len(web.ranges("2.tar")) == 1


@pytest.mark.parametrize("way", ["replaced", "other"])
def test_an_object_that_changed_gives_no_bytes(web: Web, way: str) -> None:
    """Another object of the same size under the same name is seen by the request itself."""
    source = shards(web)
    found = source.snapshot()
    reader = source.reader()
    reader.read(Extents.one(1, 0, 1)).lease.release()
    if way == "replaced":  # the server knows If-Match
        web.files["1.tar"] = bytes(len(web.files["1.tar"]))
    else:  # it does not, and its answer has the ETag of another
        web.faults["1.tar"].append("other")
    with pytest.raises(SourceChangedError, match=r"1\.tar"):
        reader.read(Extents.one(1, 0, int(found.stops[1])))
    if way == "replaced":
        with pytest.raises(SourceChangedError, match=r"1\.tar"):
            source.snapshot()


def test_a_server_that_hangs_holds_up_nobody(web: Web) -> None:
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
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert len(told) == 1
    web.faults["0.tar"].append("hang")
    source._store = RemoteStore(source.paths[0], patience=Patience(limit=0.3, base=0.01))
    assert rows(source) == EVERY


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
    read = [found for found in web.ranges("0.tar") if found]
    web.requests.clear()
    rows(shards(web))
    assert not web.ranges("0.tar.dfidx")  # it is kept here now
    assert len(read) > len(web.ranges("0.tar")) == 1


def test_patterns_of_addresses(web: Web) -> None:
    """Ranges are spelled out; what a web server cannot list, a mix of stores and a password are told."""
    with pytest.raises(ConfigError, match="lists no files"):
        ShardSet(f"{web.url}/*.tar")
    with pytest.raises(ConfigError, match="one store"):
        ShardSet([f"{web.url}/0.tar", "/data/1.tar"])
    with pytest.raises(ConfigError, match="no user or password") as told:
        ShardSet("https://me:hunter2@host/0.tar")
    assert "hunter2" not in str(told.value)
    with pytest.raises(ConfigError, match="storage_options"):
        ShardSet(__file__, storage_options={"key": "x"})
    with pytest.raises(SourceNotFoundError, match=r"7\.tar: no such shard"):
        ShardSet(f"{web.url}/7.tar").snapshot()
    assert not web.ranges("7.tar")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(MissingPackageError, match="pip install gcsfs"):
        ShardSet("gs://bucket/0.tar").snapshot()
    with pytest.raises(ConfigError, match="nosuch://"):
        ShardSet("nosuch://bucket/0.tar").snapshot()


def test_a_synchronous_file_system_can_list(tars: dict[str, bytes]) -> None:
    """Any protocol of fsspec; a file that is written anew is seen."""
    memory = fsspec.filesystem("memory")
    for name, data in tars.items():
        memory.pipe_file(f"/set/{name}", data)
    memory.pipe_file("/set/0.tar.dfidx", b"no index of ours")
    source = ShardSet("memory://set/*.tar")
    assert rows(source) == EVERY
    reader = source.reader()
    reader.read(Extents.one(0, 0, 1)).lease.release()
    memory.pipe_file("/set/0.tar", tars["0.tar"])
    with pytest.raises(SourceChangedError, match=r"0\.tar"):
        reader.read(Extents.one(0, 1, 2))
    with pytest.raises(SourceNotFoundError, match="found no match"):
        ShardSet("memory://set/*.gone")


def test_options_are_shown_nowhere_and_travel(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in the options is sent, is read where it is needed, and is in no text; a pickled set reads the same."""
    monkeypatch.setenv("SHARDS_TOKEN", "Bearer hunter2")
    source = ShardSet(
        f"{web.url}/{{0..2}}.tar", storage_options={"headers": {"Authorization": FromEnv("SHARDS_TOKEN")}}
    )
    web.faults["0.tar"].append("403")
    with pytest.raises(SourceDeniedError) as told:
        rows(source)
    assert {headers["Authorization"] for headers in web.headers} == {"Bearer hunter2"}
    wire = pickle.dumps(source)
    assert not any("hunter2" in text for text in (str(told.value), repr(source), repr(source._store), repr(wire)))
    assert rows(pickle.loads(wire)) == EVERY
    monkeypatch.delenv("SHARDS_TOKEN")
    with pytest.raises(ConfigError, match="SHARDS_TOKEN must be set"):
        pickle.loads(wire).snapshot()


def _in_child(source: ShardSet, result: Connection) -> None:
    result.send(rows(source) == EVERY)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # what forking with threads deserves
def test_a_forked_process_has_its_own_connections(web: Web) -> None:
    """A child that a process forks after it has read reads too, and so does its parent then."""
    source = shards(web)
    assert rows(source) == EVERY
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    child = fork.Process(target=_in_child, args=(source, theirs))
    child.start()
    assert ours.poll(60)
    assert ours.recv()
    child.join()
    assert rows(source) == EVERY


def test_a_stamp_of_an_etag() -> None:
    """Another ETag is another stamp, whose change is told; the same one is none."""
    a, b = stamp_of(10, '"a"'), stamp_of(10, '"b"')
    assert a.change(b)
    assert not a.change(stamp_of(10, '"a"'))


def test_what_signs_an_address_is_shown_nowhere(web: Web, tmp_path: Path) -> None:
    """Not in repr, names, paths, states' fingerprints, figures or any error and its causes; and it is sent."""
    secret = "5igNature"

    def signed(time: str) -> ShardSet:
        query = f"X-Amz-Expires={time}&X-Amz-Signature={secret}{time}&part=7"
        source = ShardSet([f"{web.url}/{k}.tar?{query}" for k in range(3)])
        source._store = source._below = replace(source._below, patience=QUICK)  # type: ignore[type-var]
        return source

    source = signed("1")
    assert rows(source) == EVERY
    assert {secret in query for query in web.queries} == {True}
    snapshot, reader = source.snapshot(), source.reader()
    assert isinstance(reader, Stored)
    texts = [
        repr(source),
        repr(source.store),
        repr(snapshot),
        str(source.paths),
        source.where(1, 3),
        str(reader.storage()),
    ]
    kept = {path.name for path in (tmp_path / "cache").rglob("*.dfidx")}
    assert signed("2").snapshot().fingerprint == snapshot.fingerprint
    assert {path.name for path in (tmp_path / "cache").rglob("*.dfidx")} == kept
    assert rows(pickle.loads(pickle.dumps(source))) == EVERY
    for fault in (["403"], ["404"], ["503"] * 5, ["short"] * 5, ["other"]):
        web.faults["1.tar"].extend(fault)
        with pytest.raises(DaliFeedError) as caught:
            rows(source)
        texts += traceback.format_exception(caught.value)
    web.files["1.tar"] = web.files["0.tar"]
    with pytest.raises(DaliFeedError) as caught:
        rows(source)
    texts += traceback.format_exception(caught.value)
    for wrong in (f"{web.url}/*.tar?sig={secret}", f"{web.url}/{{3..1}}.tar?sig={secret}"):
        with pytest.raises(ConfigError) as refused:
            ShardSet(wrong)
        texts.append(str(refused.value))
    assert not [text for text in texts if secret in text]


def test_a_query_that_signs_nothing_tells_objects_apart(web: Web) -> None:
    """`get?file=1` and `get?file=2` are two; the same one signed twice is named twice."""
    source = ShardSet([f"{web.url}/0.tar?file={k}" for k in (1, 2)])
    assert len(set(source.paths)) == 2
    with pytest.raises(ConfigError, match="each shard may be named once"):
        ShardSet([f"{web.url}/0.tar?sig={k}" for k in (1, 2)])
