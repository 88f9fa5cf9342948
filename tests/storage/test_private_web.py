"""Web servers that need a header of the user, or an address that is signed: what a request holds, and where it goes."""

from __future__ import annotations

import socket
import ssl
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from kit.limits import LONG
from kit.web import Web

from dali_feed.errors import ClosedError, SourceUnreachableError
from dali_feed.storage import remote
from dali_feed.storage.store import Stamp
from dali_feed.storage.web import WebStore


@pytest.fixture
def web() -> Iterator[Web]:
    """A server of one file."""
    with Web({"0.tar": bytes(40_000)}) as server:
        yield server


def private(address: str, timeout: str = "9s") -> tuple[remote.RemoteStore, remote.RemoteFile]:
    """A store that takes a header of the user's along and tries once, and its file of 40,000 bytes at this address."""
    client = {"default_headers": {"X-Api-Key": "5ecret"}, "timeout": timeout}
    store = remote.RemoteStore(address, {"client_options": client, "retry_config": {"max_retries": 0}})
    return store, remote.RemoteFile(store, address, Stamp(0, 40_000, 0, 0), "")


@pytest.mark.parametrize("fault", ["hang", "trickle"])
@pytest.mark.parametrize("ends", ["stop", "limit"])
def test_a_request_that_was_given_up_holds_nothing(web: Web, fault: str, ends: str) -> None:
    """Its connection ends, whether its answer never begins or never ends."""
    store, file = private(f"{web.url}/0.tar", "1h" if ends == "stop" else "1s")
    stop = threading.Event()
    web.faults["0.tar"].append(fault)

    def stop_it() -> None:
        web.hanging.wait(LONG)
        stop.set()

    if ends == "stop":
        threading.Thread(target=stop_it).start()
    with pytest.raises(ClosedError if ends == "stop" else SourceUnreachableError):
        store.read([(file, memoryview(bytearray(40_000)), 0)], stop)
    assert web.left.wait(LONG)


def test_a_name_that_nobody_knows_holds_nobody_up(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the reads of other hosts nor the end of the process: each look-up has a daemon of its own."""
    known, over = socket.getaddrinfo, threading.Event()

    def look_up(host: str, *where: Any, **how: Any) -> Any:
        if host == "slow.example":
            over.wait(LONG)
        return known(host, *where, **how)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    store, file = private("http://slow.example/0.tar", "100ms")
    for _ in range(remote.CONCURRENCY):  # more than a pool of asyncio's has threads
        with pytest.raises(SourceUnreachableError, match="no whole answer in 0.1 s"):
            store.read([(file, memoryview(bytearray(1)), 0)], None)
    store, file = private(web.url.replace("127.0.0.1", "localhost") + "/0.tar")
    assert store.read([(file, memoryview(bytearray(9)), 0)], None) == [9]
    threads = [each for each in threading.enumerate() if each.name == "dali-feed-names"]
    assert len(threads) == remote.CONCURRENCY
    assert all(each.daemon for each in threads)
    over.set()


def test_where_private_requests_go(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the environment's proxy, also one without a scheme; and where a server says, in bytes that are no text."""
    web.files["http://far.example/0.tar"] = web.files["caf%E9.tar"] = web.files["0.tar"]
    web.moved["moved.tar"] = "/caf\xe9.tar"
    store, file = private(f"{web.url}/moved.tar")
    assert store.read([(file, memoryview(bytearray(9)), 0)], None) == [9]
    monkeypatch.setenv("http_proxy", web.url.removeprefix("http://"))
    store, file = private("http://far.example/0.tar")
    assert store.read([(file, memoryview(bytearray(9)), 0)], None) == [9]


def test_no_line_of_an_answer_is_in_an_error(web: Web) -> None:
    """Whatever a server sends that is none: a line may be an address that is signed."""
    web.moved["0.tar"] = "/x?X-Amz-Signature=5ecret\0"
    store, file = private(f"{web.url}/0.tar")
    with pytest.raises(SourceUnreachableError) as caught:
        store.read([(file, memoryview(bytearray(9)), 0)], None)
    assert "5ecret" not in "".join(traceback.format_exception(caught.value))


def test_signed_addresses_share_what_tls_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One context for all with the same options, and none where no address is of https."""
    contexts = []

    def create() -> ssl.SSLContext:
        contexts.append(make())
        return contexts[-1]

    make = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", create)
    for k in range(3):
        assert isinstance(remote._store_of(f"http://h{k}.example/0.tar?sig={k}", {}), WebStore)
    assert not contexts
    for k in range(3):
        assert isinstance(remote._store_of(f"https://h{k}.example/0.tar?sig={k}", {}), WebStore)
    assert len(contexts) <= 1  # another test's
