"""Payloads that lie behind an address, and processes that fork or end while remote reads are under way."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.broker.handle import Kafka, payloads
from kit.claimed import claim_headers
from kit.produced import block_of
from kit.web import Web

from dali_feed.errors import ConfigError, SourceDeniedError, SourceNotFoundError, SourceUnreachableError
from dali_feed.external_sources import KafkaTopic, ShardSet
from dali_feed.external_sources.kafka.claims import ClaimHeaders, Claims
from dali_feed.records.slabs import SlabPool
from dali_feed.storage import remote
from dali_feed.testing import Message
from dali_feed.testing.shards import write_shard

PAYLOADS = [bytes([k]) * 3000 for k in range(4)]
SECRET = b"not for readers of claims"


@pytest.fixture
def web() -> Iterator[Web]:
    """A server of objects under /base, and of one beside it."""
    with Web({f"base/{k}": payload for k, payload in enumerate(PAYLOADS)} | {"secret": SECRET}) as server:
        yield server


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other sooner than people want."""
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.01)


def found(address: str, uri: str, payload: bytes) -> bytes | str:
    """What such a claim gives."""
    claim = ClaimHeaders(uri, len(payload), hashlib.sha256(payload).hexdigest())
    got = Claims.of(address).payload(claim, SlabPool().lease())
    return got if isinstance(got, str) else bytes(got)


def test_a_topic_whose_payloads_are_on_a_web_server(embedded: Kafka, web: Web) -> None:
    """Payloads and labels as if they were in the topic, with tries on the way; what is gone costs its record."""
    records = [
        Message(b"", None, (("label", b"7"), *claim_headers(payload, f"{k}")), 0) for k, payload in enumerate(PAYLOADS)
    ]
    embedded.publish(embedded.topic, records, 1)
    del web.files["base/3"]
    web.faults["base/1"].extend(["503", "short"])
    source = KafkaTopic(embedded.topic, embedded.servers, claims=f"{web.url}/base/")
    block = block_of(pickle.loads(pickle.dumps(source)), 0)
    assert payloads(block)[:3] == PAYLOADS[:3]
    assert list(block.faults) == [3]
    assert f"claim '3': the object is not under {web.url}/base" in block.faults[3].reason


def test_what_is_not_as_its_record_says_is_that_records_fault(web: Web) -> None:
    """Another size, another hash."""
    assert found(f"{web.url}/base", f"{web.url}/base/2", PAYLOADS[2]) == PAYLOADS[2]
    assert "must have 3001 bytes; found 3000" in str(found(f"{web.url}/base", "2", PAYLOADS[2] + b"x"))
    assert "it was changed" in str(found(f"{web.url}/base", "2", PAYLOADS[3]))


@pytest.mark.parametrize(
    "uri",
    [
        "../secret",
        "a/../../secret",
        "%2e%2e/secret",
        "%252e%252e/secret",
        "/secret",
        "..\\secret",
        "./../secret",
        "{url}/secret",
        "{url}/base/../secret",
        "{url}/based",
        "http://elsewhere/base/2",
        "file:///etc/passwd",
        "2?a",
        "",
    ],
)
def test_no_record_leads_out_of_the_address(web: Web, uri: str) -> None:
    """Nothing is asked for, whatever the record says."""
    assert "leads out of it" in str(found(f"{web.url}/base", uri.format(url=web.url), SECRET))
    assert not web.requests


@pytest.mark.parametrize(
    ("faults", "error"), [(["503"] * 5, SourceUnreachableError), (["403"], SourceDeniedError)], ids=["503", "403"]
)
def test_a_store_that_does_not_give_is_no_records_fault(web: Web, faults: list[str], error: type[Exception]) -> None:
    """An error that names the address."""
    web.faults["base/2"].extend(faults)
    with pytest.raises(error, match=f"claims='{web.url}/base': .*base/2"):
        found(f"{web.url}/base", "2", PAYLOADS[2])


def test_an_address_that_is_empty_is_no_records_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the store can list; where other payloads are there it is the record's. A password is refused."""
    with Web({"bucket/folder/in/7": b"7"}) as web:
        for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "REGION": "us-east-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", web.url)
        assert "the object is not under s3://bucket/folder" in str(found("s3://bucket/folder", "2", PAYLOADS[2]))
        with pytest.raises(SourceNotFoundError, match="s3://bucket/nothing.*it is empty"):
            found("s3://bucket/nothing", "2", PAYLOADS[2])
    with pytest.raises(ConfigError, match="an address must hold no user or password"):
        Claims.of("s3://me:word@bucket/folder")
    with pytest.raises(ConfigError, match=r"found a query in 'http://host/base\?\*\*\*'"):
        Claims.of("http://host/base?sig=5igNature")


SCRIPT = Path(__file__).parents[1] / "kit" / "forked_reads.py"


@pytest.mark.slow
def test_workers_of_torch_have_batches_or_say_what_to_do(tmp_path: Path) -> None:
    """Forked before the first read and spawned they read; forked after it they fail in ten seconds, by name."""
    write_shard(tmp_path / "0.tar", [(os.urandom(900), k) for k in range(12)])
    with Web({"0.tar": (tmp_path / "0.tar").read_bytes()}) as web:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), f"{web.url}/0.tar"],
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    ways = {name: (labels, said, seconds) for name, labels, said, seconds in map(json.loads, done.stdout.splitlines())}
    every = list(range(12))
    for name in ("before", "other data", "spawned", "parent"):
        assert ways[name][:2] == (every, ""), name
    for name in ("after", "ours, after"):
        labels, said, seconds = ways[name]
        assert labels == []
        assert "ClosedError" in said
        assert "forked from one that had read from a remote store" in said
        assert "start it by spawn" in said
        assert seconds < 10


_READS_AND_ENDS = """
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


def test_a_process_ends_while_a_server_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, with its own exit status: an answer that came meanwhile would abort it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_shard(tmp_path / "0.tar", [(os.urandom(900), k) for k in range(12)])
    with Web({"0.tar": (tmp_path / "0.tar").read_bytes()}) as web:
        ShardSet(f"{web.url}/0.tar").snapshot()  # whose index the process finds
        web.faults["0.tar"].append("hang")
        command = [sys.executable, "-c", _READS_AND_ENDS, f"{web.url}/0.tar"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert web.hanging.wait(60)
        begun = time.monotonic()
        _, said = process.communicate("\n", timeout=60)
    assert (process.returncode, said) == (0, "")
    assert time.monotonic() - begun < 10
