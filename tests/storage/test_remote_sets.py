"""Sets behind HTTP: manifest, sealed indexes and shards, or the named error."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.blocks import Reads, rows
from kit.packed_images import plain, striped
from kit.web import Web

from dali_feed.errors import (
    ConfigError,
    DataLostError,
    SourceDeniedError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.external_sources import ShardSet
from dali_feed.records.gauges import storage_of
from dali_feed.storage import remote
from dali_feed.testing import assert_resumes_anywhere

__all__ = ["plain"]  # a fixture


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes are kept apart; tries follow each other at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
def web(plain: Path) -> Iterator[Web]:
    """A server of the set's files, and of nothing else."""
    with Web({path.name: path.read_bytes() for path in plain.parent.iterdir()}) as server:
        yield server


def test_a_set_behind_an_address_is_what_the_files_are(web: Web, plain: Path) -> None:
    """Records, names, fingerprint; no header of a tar is read; some of its shards by a pattern; by pickle too."""
    source, local = ShardSet(f"{web.url}/x.dfset"), ShardSet(plain)
    wanted = rows(local)
    web.requests.clear()
    assert source.snapshot().fingerprint == local.snapshot().fingerprint
    assert not [name for name in web.files if name.endswith(".tar") and web.ranges(name)]
    assert rows(source) == rows(pickle.loads(pickle.dumps(source))) == wanted
    assert source.snapshot().names == local.snapshot().names
    assert len(wanted) == 12
    first = local.snapshot().names[0]
    for inside in (first, first.replace("0.tar", "[0].tar")):
        assert ShardSet(f"{web.url}/x.dfset/{inside}").paths == (f"{web.url}/x.dfset/{first}",)


def test_a_run_of_a_remote_set_resumes_anywhere(web: Web) -> None:
    """The law of resume, with faults on the way; and the reads are measured."""
    for name in web.files:
        web.faults[name].extend(["503", "reset", "short"])
    source = ShardSet(f"{web.url}/x.dfset")
    assert_resumes_anywhere(source, batch_size=4, positions=[1])
    reads = Reads(source)
    reads.first(2)
    assert [(each.store, each.reads) for each in storage_of([reads.reader])] == [(web.url, 1)]


def test_what_is_not_as_the_manifest_says_is_an_error(web: Web) -> None:
    """A shard or an index that is gone, cut or another; a manifest that is gone, cut or altered."""
    tar = next(name for name in sorted(web.files) if name.endswith(".tar"))
    index, whole = f"{tar}.dfidx", dict(web.files)

    def error_with(changed: dict[str, bytes | None], kind: type[Exception], match: str) -> None:
        web.files = {name: data for name, data in (whole | changed).items() if data is not None}
        with pytest.raises(kind, match=match):
            ShardSet(f"{web.url}/x.dfset").snapshot()

    error_with({tar: None}, DataLostError, "the manifest names it, and http.* is not there")
    error_with({tar: whole[tar][:-512]}, DataLostError, "the manifest says .* bytes")
    error_with({index: None}, DataLostError, "the manifest names it")
    error_with({index: whole[index][:-1] + b"x"}, DataLostError, "the index of a set's shard must be what")
    error_with({"x.dfset": None}, SourceNotFoundError, "/x.dfset: no such set")
    error_with({"x.dfset": whole["x.dfset"][:-40]}, DataLostError, "a manifest must be what `dali-feed pack` wrote")
    error_with({"x.dfset": whole["x.dfset"].replace(b'"size": ', b'"size": 1', 1)}, DataLostError, "SHA-256")


@pytest.mark.parametrize(
    ("faults", "error"), [(["503"] * 5, SourceUnreachableError), (["403"], SourceDeniedError)], ids=["503", "403"]
)
def test_a_server_that_refuses_is_no_lost_data(web: Web, faults: list[str], error: type[Exception]) -> None:
    """Of manifest and index: what the server said, which may pass, and not that the set is damaged."""
    index = next(name for name in sorted(web.files) if name.endswith(".dfidx"))
    for name in ("x.dfset", index):
        web.faults[name].extend(faults)
        with pytest.raises(error, match=name):
            ShardSet(f"{web.url}/x.dfset").snapshot()


def test_a_striped_set_and_a_pattern_of_sets_are_refused(plain: Path, tmp_path: Path) -> None:
    """By name, with the cure."""
    path = striped(plain, tmp_path / "striped")
    with Web({"x.dfset": path.read_bytes()}) as web:
        with pytest.raises(
            ConfigError, match=r"/x\.dfset: a remote set must be of whole files; found one striped over 3"
        ):
            ShardSet(f"{web.url}/x.dfset")
        with pytest.raises(ConfigError, match="a remote set is named by its address"):
            ShardSet(f"{web.url}/*.dfset")
