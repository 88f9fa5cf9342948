"""Shards, sets and claims behind HTTP and in buckets: the bytes that were stored, or the error by its name."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.blocks import Reads, pictures
from kit.blocks import rows as rows_of
from kit.broker.handle import Kafka, payloads
from kit.claimed import claim_headers
from kit.packed_images import plain, striped
from kit.produced import block_of
from kit.resumes import assert_resumes_in_turn
from kit.web import Web

from dali_feed import DataLoader, Shuffle
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
    StateError,
    WaitError,
)
from dali_feed.external_sources import KafkaTopic, Secret, ShardSet
from dali_feed.external_sources import tar as tar_index
from dali_feed.external_sources.kafka.claims import ClaimHeaders, Claims
from dali_feed.packing.sinks import write_shard
from dali_feed.records.extents import Extents
from dali_feed.records.gauges import storage_of
from dali_feed.records.slabs import SlabPool
from dali_feed.storage import remote
from dali_feed.testing import Message

__all__ = ["plain"]  # a fixture

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


@pytest.fixture(params=["http", "private", "s3"])
def source(request: pytest.FixtureRequest, tars: dict[str, bytes]) -> Iterator[tuple[ShardSet, Web]]:
    """Three shards of known indexes: by an address, the same with a header of one's own, and as a bucket of S3."""
    with Web({f"train/{name}": data for name, data in tars.items()}) as web:
        if request.param != "s3":
            options = {"client_options": {"default_headers": {"X-Api-Key": "5ecret"}}}
            private = options if request.param == "private" else None
            found = ShardSet(f"{web.url}/train/{{0..2}}.tar", storage_options=private)
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


@pytest.mark.parametrize("shuffle", [False, Shuffle(extent=7, window=2)], ids=["in order", "one Shuffle for both"])
@pytest.mark.parametrize("begins", ["on a disk", "in a store"])
def test_a_state_of_the_same_files_elsewhere_fits(web: Web, tmp_path: Path, shuffle: Any, begins: str) -> None:
    """A run that began on a disk goes on in a store, and the other way round; by itself each shuffles as it reads."""
    local, store = ShardSet(str(tmp_path / "[0-2].tar")), shards(web)
    columns = {"label": Number("cls")}

    def loader(source: ShardSet, how: Any = shuffle) -> DataLoader:
        return DataLoader(source, 8, shuffle=how, columns=columns, device="cpu", seed=3)

    first, second = (local, store) if begins == "on a disk" else (store, local)
    with loader(first) as made, loader(second) as other:
        batches = iter(made)
        before = [next(batches)["label"].tolist() for _ in range(3)]
        state = made.state_dict()
        rest = [batch["label"].tolist() for batch in batches]
        other.load_state_dict(state)
        assert [batch["label"].tolist() for batch in other] == rest
        assert sorted(label for batch in before + rest for label in batch) == sorted(label for _, label in EVERY)
    with loader(first, True) as made, loader(second, True) as other:
        next(iter(made))
        with pytest.raises(StateError, match="extent"):
            other.load_state_dict(made.state_dict())


def test_a_run_resumes_anywhere_without_etags(tars: dict[str, bytes]) -> None:
    """The law of resume, over HTTP, with faults on the way; `test_all_at_once.py` holds it where there are tags."""
    with Web(tars, tags=False) as web:
        source = shards(web)
        source.snapshot()
        for name in web.files:
            web.faults[name].extend(["503", "reset", "short"])
        columns = {"label": Number("cls"), "bytes": Bytes("jpg")}
        assert_resumes_in_turn(source, batch_size=40, positions=[1], columns=columns)
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


@pytest.mark.parametrize(("tags", "left"), [(True, 1.0), (False, 0.9), (False, 0.1)])
def test_an_object_that_was_replaced_gives_no_bytes(tars: dict[str, bytes], tags: bool, left: float) -> None:
    """Another object under the same name, perhaps shorter, is seen by the request itself, and by the next snapshot."""
    with Web(tars, tags=tags) as web:
        source = shards(web)
        found = source.snapshot()
        reader = Reads(source)
        reader.first(1, 1).lease.release()
        web.files["1.tar"] = bytes(int(len(web.files["1.tar"]) * left))
        before = len(web.requests)
        with pytest.raises(SourceChangedError, match=r"1\.tar"):
            reader.read(Extents.one(1, 0, int(found.stops[1])))
        assert len(web.requests) == before + 1
        with pytest.raises(SourceChangedError, match=r"1\.tar"):
            source.snapshot()


def test_a_server_that_hangs_holds_up_nobody(
    web: Web, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stop event ends the wait for an answer, of which the log speaks; a limit makes it a try that failed."""
    monkeypatch.setattr(remote, "SILENT_S", 0.3)
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
    while not any("0.tar: no answer for 0 s; a request has 5 tries" in each for each in caplog.messages):
        assert thread.is_alive()
        thread.join(0.01)
    begun = time.monotonic()
    stop.set()
    thread.join(30)
    assert len(told) == 1
    assert time.monotonic() - begun < 5
    web.faults["0.tar"].append("hang")
    monkeypatch.setattr(remote, "LIMIT_S", 0.3)
    assert rows(shards(web)) == EVERY


@pytest.mark.parametrize("fault", ["look hang", "trickle"])
def test_a_loaders_timeout_holds_for_an_index(web: Web, tmp_path: Path, fault: str) -> None:
    """Whether the server gives no answer or one that never ends; and the loader can be closed."""
    tar_index.load(str(tmp_path / "0.tar"))
    web.files["0.tar.dfidx"] = (tmp_path / "0.tar.dfidx").read_bytes()
    web.faults["0.tar.dfidx"].append(fault)
    columns = {"label": Number("label")}
    with DataLoader(ShardSet(f"{web.url}/0.tar"), 8, device="cpu", columns=columns, timeout=0.5) as loader:
        said = r"^DataLoader timed out after 0.5 seconds; source: ShardSet.*its lists, indexes or footers.*timeout="
        for _ in range(2):
            with pytest.raises(WaitError, match=said):
                next(iter(loader))
        with pytest.raises(WaitError, match=r"^source: .* after 0.5 s; timeout= gives it more time"):
            len(loader)
    web.__exit__()
    for thread in [each for each in threading.enumerate() if each.name == "dali_feed-snapshot"]:
        thread.join(60)


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


def test_a_name_that_cannot_be_listed_is_told_as_one(tars: dict[str, bytes]) -> None:
    """One with an empty part: it is no fault of the network, and the shards beside it can be named."""
    with Web({f"b/set/{name}": data for name, data in tars.items()} | {"b/set//x.tar": b""}) as web:
        options = s3_options(web.url)
        with pytest.raises(SourceError, match=r"a//b; found .*\"set//.*; rename that object, or name") as told:
            ShardSet("s3://b/set/*.tar", storage_options=options)
        assert not isinstance(told.value, SourceUnreachableError)
        assert rows(ShardSet("s3://b/set/{0..2}.tar", storage_options=options)) == EVERY


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
# A header of one's own changes nothing but what is sent: each kind of answer to it, and all of them in the long form.
OF_EACH_KIND = ("none", "one after the other", "503 for good", "401", "404", "400", "412")
LONG_FORM = pytest.mark.long(form="test_a_fault_of_a_server")


@pytest.mark.parametrize(
    ("source", "faults", "error", "requests"),
    [
        pytest.param(
            *(kind, *fault), id=f"{kind}-{name}", marks=[LONG_FORM] * (kind == "private" and name not in OF_EACH_KIND)
        )
        for kind in ("http", "private", "s3")
        for name, fault in FAULTS.items()
    ],
    indirect=["source"],
)
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


# Redirects.


WHO = {"X-Api-Key": "5ecret-key", "Authorization": "Bearer 5ecret", "Cookie": "id=5ecret", "Private-Token": "5ecret"}


@pytest.mark.parametrize("headers", [WHO, {"Authorization": "Bearer 5ecret"}, {}], ids=["all", "obstore's", "signed"])
def test_credentials_stay_with_the_host_that_they_were_given_for(
    web: Web, tmp_path: Path, headers: dict[str, str]
) -> None:
    """Headers and what signs an address: one that redirects to another port has them, and the other has none."""
    sign = "" if headers else "?X-Amz-Signature=5ecret"
    with Web({}) as home:
        for name in web.files:
            home.moved[name] = f"{web.url}/{name}"
        options = {"client_options": {"default_headers": {"Accept-Language": "da", **headers}}}
        source = ShardSet([f"{home.url}/{k}.tar{sign}" for k in range(3)], storage_options=options)
        assert rows(source) == rows(ShardSet(str(tmp_path / "*.tar")))
        assert all(headers.items() <= {name.title(): it for name, it in each.items()}.items() for each in home.headers)
        assert all(query == sign[1:] for query in home.queries)
    assert {name.title(): it for each in web.headers for name, it in each.items()}["Accept-Language"] == "da"
    assert [each for each in web.headers if "5ecret" in str(each)] == []
    assert not any(web.queries)


def test_a_redirect_within_a_host_keeps_its_credentials(web: Web, tmp_path: Path) -> None:
    """So does one that leads to a name beside it."""
    for name in list(web.files):
        web.files[f"real/{name}"] = web.files.pop(name)
        web.moved[name] = f"/real/{name}"
    options = {"client_options": {"default_headers": {"X-Api-Key": "5ecret"}}}
    source = ShardSet(f"{web.url}/{{0..2}}.tar", storage_options=options)
    assert rows(source) == rows(ShardSet(str(tmp_path / "*.tar")))
    assert {each["X-Api-Key"] for each in web.headers} == {"5ecret"}


def test_redirects_that_lead_nowhere_or_to_another_kind_of_address_are_errors(web: Web, tmp_path: Path) -> None:
    """A circle, a file of this machine, and FTP: by name, at once, with nothing of the header."""
    options = {"client_options": {"default_headers": {"X-Api-Key": "5ecret"}}}
    for to in ("0.tar", f"file://{tmp_path / '1.tar'}", "ftp://127.0.0.1/0.tar"):
        web.moved["0.tar"] = to
        with pytest.raises(SourceError, match=r"/0\.tar: a shard must be readable") as caught:
            ShardSet(f"{web.url}/0.tar", storage_options=options).snapshot()
        assert "5ecret" not in repr(caught.value)


@pytest.mark.parametrize(
    ("address", "headers", "more", "words"),
    [
        ("s3://bucket/0.tar", {"X-Api-Key": "a"}, {}, r"must not follow a redirect of s3://.*found X-Api-Key"),
        ("{url}/0.tar", {"X-Api-Key": "a"}, {"http2_only": True}, r"there is no client_options\['http2_only'\]"),
        ("{url}/0.tar", {"X-Api-Key": "a"}, {"timeout": "soon"}, r"'soon' is no time"),
        ("{url}/0.tar?sig=1", {}, {"randomize_addresses": True}, r"an address with a query goes to its own host alone"),
        (
            "{url}/0.tar?sig=1",
            {},
            {"proxy_url": "socks5://me:5ecret@h.example"},
            r"of http:// alone; found socks5://; name",
        ),
        (
            "https://h.example/0.tar?sig=1",
            {},
            {"proxy_url": "https://h.example"},
            r"proxy_url'\]: an address with a query goes by",
        ),
        ("http://h.example/0.tar?sig=1", {}, {"root_certificate": "none"}, r"must be as obstore takes them"),
    ],
)
def test_what_cannot_be_kept_to_its_host_is_refused(
    web: Web, address: str, headers: dict[str, str], more: dict[str, Any], words: str
) -> None:
    """A header of a store whose library follows redirects, and options that only that library has."""
    options = {"client_options": {"default_headers": headers, **more}}
    with pytest.raises(ConfigError, match=words):
        ShardSet(address.format(url=web.url), storage_options=options).snapshot()
    assert not web.requests


# Sets.


@pytest.fixture
def set_web(plain: Path) -> Iterator[Web]:
    """A server of a set's files, and of nothing else."""
    with Web({path.name: path.read_bytes() for path in plain.parent.iterdir()}) as server:
        yield server


def test_a_set_behind_an_address_is_what_the_files_are(set_web: Web, plain: Path) -> None:
    """Records, names, fingerprint; no header of a tar is read; some of its shards by a pattern; by pickle too."""
    web, source, local = set_web, ShardSet(f"{set_web.url}/x.dfset"), ShardSet(plain)
    wanted = rows_of(local)
    assert source.snapshot().fingerprint == local.snapshot().fingerprint
    assert not [name for name in web.files if name.endswith(".tar") and web.ranges(name)]
    assert rows_of(source) == rows_of(pickle.loads(pickle.dumps(source))) == wanted
    assert source.snapshot().names == local.snapshot().names
    assert len(wanted) == 12
    first = local.snapshot().names[0]
    for inside in (first, first.replace("0.tar", "[0].tar")):
        assert ShardSet(f"{web.url}/x.dfset/{inside}").paths == (f"{web.url}/x.dfset/{first}",)


def test_what_is_not_as_the_manifest_says_is_an_error(set_web: Web) -> None:
    """A shard or an index that is gone, cut or another; a manifest too; but not a server that refuses or rests."""
    web = set_web
    tar = next(name for name in sorted(web.files) if name.endswith(".tar"))
    index, manifest, whole = f"{tar}.dfidx", "x.dfset", dict(web.files)
    cases: list[tuple[str, bytes | None, type[Exception], str]] = [
        (tar, None, DataLostError, "the manifest names it, and http.* is not there"),
        (tar, whole[tar][:-512], DataLostError, "the manifest says .* bytes"),
        (index, None, DataLostError, "the manifest names it"),
        (index, whole[index][:-1] + b"x", DataLostError, "the index of a set's shard must be what"),
        (manifest, None, SourceNotFoundError, "/x.dfset: no such set"),
        (manifest, whole[manifest][:-40], DataLostError, "a manifest must be what `dali-feed pack` wrote"),
        (manifest, whole[manifest].replace(b'"size": ', b'"size": 1', 1), DataLostError, "SHA-256"),
    ]
    for name, data, kind, match in cases:
        web.files = {**whole, name: data or b""}
        if data is None:
            del web.files[name]
        with pytest.raises(kind, match=match):
            ShardSet(f"{web.url}/x.dfset").snapshot()
    web.files = whole
    for name in (manifest, index):
        for fault, kind in ((["503"] * 5, SourceUnreachableError), (["403"], SourceDeniedError)):
            web.faults[name].extend(fault)
            with pytest.raises(kind, match=name):
                ShardSet(f"{web.url}/x.dfset").snapshot()


def test_a_striped_set_and_a_pattern_of_sets_are_refused(plain: Path, tmp_path: Path) -> None:
    """By name, with the cure."""
    path = striped(plain, tmp_path / "striped")
    with Web({"x.dfset": path.read_bytes()}) as web:
        with pytest.raises(ConfigError, match=r"/x\.dfset: a remote set must be of whole files; found one striped ov"):
            ShardSet(f"{web.url}/x.dfset")
        with pytest.raises(ConfigError, match="a remote set is named by its address"):
            ShardSet(f"{web.url}/*.dfset")


# Claims.


PAYLOADS = [bytes([k]) * 3000 for k in range(4)]
SECRET = b"not for readers of claims"


@pytest.fixture
def claimed() -> Iterator[Web]:
    """A server of objects under /base, and of one beside it."""
    with Web({f"base/{k}": payload for k, payload in enumerate(PAYLOADS)} | {"secret": SECRET}) as server:
        yield server


def claim_gives(address: str, uri: str, payload: bytes) -> bytes | str:
    """What such a claim gives."""
    claim = ClaimHeaders(uri, len(payload), hashlib.sha256(payload).hexdigest())
    payload_or_reason = Claims.of(address).payload(claim, SlabPool().lease())
    return payload_or_reason if isinstance(payload_or_reason, str) else bytes(payload_or_reason)


def test_a_topic_whose_payloads_are_on_a_web_server(embedded: Kafka, claimed: Web) -> None:
    """Payloads as if they were in the topic, with tries on the way; what is gone, or is another, costs its record."""
    records = [
        Message(b"", None, (("label", b"7"), *claim_headers(payload, f"{k}")), 0) for k, payload in enumerate(PAYLOADS)
    ]
    embedded.publish(embedded.topic, records, 1)
    del claimed.files["base/3"]
    claimed.faults["base/1"].extend(["503", "short"])
    base = f"{claimed.url}/base"
    block = block_of(pickle.loads(pickle.dumps(KafkaTopic(embedded.topic, embedded.servers, claims=f"{base}/"))), 0)
    assert payloads(block)[:3] == PAYLOADS[:3]
    assert list(block.faults) == [3]
    assert f"claim '3': the object is not under {base}" in block.faults[3].reason
    assert claim_gives(base, f"{base}/2", PAYLOADS[2]) == PAYLOADS[2]
    assert "must have 3001 bytes; found 3000" in str(claim_gives(base, "2", PAYLOADS[2] + b"x"))
    assert "it was changed" in str(claim_gives(base, "2", PAYLOADS[3]))


@pytest.mark.parametrize(
    "uri",
    [
        "../secret", "a/../../secret", "%2e%2e/secret", "%252e%252e/secret", "/secret", "..\\secret", "./../secret",
        "{url}/secret", "{url}/base/../secret", "{url}/based", "http://elsewhere/base/2", "file:///etc/passwd", "2?a",
        "",
    ],
)  # fmt: skip
def test_no_record_leads_out_of_the_address(claimed: Web, uri: str) -> None:
    """Nothing is asked for, whatever the record says."""
    assert "leads out of it" in str(claim_gives(f"{claimed.url}/base", uri.format(url=claimed.url), SECRET))
    assert not claimed.requests


def test_a_store_that_does_not_give_is_no_records_fault(claimed: Web) -> None:
    """An error that names the address."""
    for faults, error in ((["503"] * 5, SourceUnreachableError), (["403"], SourceDeniedError)):
        claimed.faults["base/2"].extend(faults)
        with pytest.raises(error, match=f"claims='{claimed.url}/base': .*base/2"):
            claim_gives(f"{claimed.url}/base", "2", PAYLOADS[2])


def test_an_address_that_is_empty_is_no_records_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the store can list; where other payloads are there it is the record's. A password is refused."""
    with Web({"bucket/folder/in/7": b"7"}) as web:
        for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "REGION": "us-east-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", web.url)
        assert "the object is not under s3://bucket/folder" in str(claim_gives("s3://bucket/folder", "2", PAYLOADS[2]))
        with pytest.raises(SourceNotFoundError, match="s3://bucket/nothing.*it is empty"):
            claim_gives("s3://bucket/nothing", "2", PAYLOADS[2])
    with pytest.raises(ConfigError, match="an address must hold no user or password"):
        Claims.of("s3://me:word@bucket/folder")
    with pytest.raises(ConfigError, match=r"found a query in 'http://host/base\?\*\*\*'"):
        Claims.of("http://host/base?sig=5igNature")


# Processes.


FORKED_READS = Path(__file__).parents[1] / "kit" / "forked_reads.py"


@pytest.mark.usefixtures("warm_children")
@pytest.mark.slow
def test_workers_of_torch_have_batches_or_say_what_to_do(web: Web) -> None:
    """Forked before the first read and spawned they read; forked after it they fail by name, and wait for nothing."""
    command = [sys.executable, str(FORKED_READS), f"{web.url}/0.tar"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    ways = {name: (labels, said, seconds) for name, labels, said, seconds in map(json.loads, done.stdout.splitlines())}
    for name in ("before", "other data", "spawned", "parent"):
        assert ways[name][:2] == (list(range(12)), ""), name
    for name in ("after", "ours, after"):
        labels, said, seconds = ways[name]
        assert labels == []
        assert "ClosedError" in said
        assert "forked from one that had read from a remote store" in said
        assert "start it by spawn" in said
        assert seconds < 60  # on a machine that does much else


READS_AND_ENDS = """
import contextlib, sys, threading
from dali_feed.columns.request import open_reader
from dali_feed.errors import ClosedError
from dali_feed.external_sources import ShardSet
from dali_feed.records.extents import Extents
from dali_feed.records.slabs import SlabPool

def read():
    with contextlib.suppress(ClosedError):
        open_reader(source, ["jpg"]).read(Extents.one(0, 0, 12), SlabPool().lease())

source = ShardSet(sys.argv[1])
source.snapshot()
threading.Thread(target=read, daemon=True).start()
sys.stdin.readline()
"""


def test_a_process_ends_while_a_server_hangs(web: Web) -> None:
    """At once, with its own exit status: an answer that came meanwhile would abort it."""
    ShardSet(f"{web.url}/0.tar").snapshot()  # whose index the process finds
    web.faults["0.tar"].append("hang")
    command = [sys.executable, "-c", READS_AND_ENDS, f"{web.url}/0.tar"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert web.hanging.wait(60)
    begun = time.monotonic()
    _, said = process.communicate("\n", timeout=60)
    assert (process.returncode, said) == (0, "")
    assert time.monotonic() - begun < 10
