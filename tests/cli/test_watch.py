"""`dali-feed watch`: ranks side by side and summed, endpoints that go away and come back, and what they may print."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import socket
import threading
from typing import Any

import pytest
from kit.command import Cli, assert_one_line, cli
from kit.images import QUICK, labelled
from kit.web import Web

from dali_feed import metrics
from dali_feed.cli import watch
from dali_feed.cli.view import show
from dali_feed.cli.watch import WatchedEndpoint, report_of
from dali_feed.feed import Feed
from dali_feed.testing import ScriptedSource
from dali_feed.testing.scripted import Corrupt

__all__ = ["cli"]  # a fixture


def feed_of(records: int, *more: Corrupt, **options: Any) -> Feed:
    """Of a source in memory."""
    return Feed(ScriptedSource([*labelled(records), *more]), 4, tuning=QUICK, **options)


def drawn(*seen: WatchedEndpoint) -> str:
    """What is printed of a look."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show(report_of(seen))
    return out.getvalue()


def _said(**other: object) -> bytes:
    """What an endpoint says of one loader, with some of it otherwise."""
    said = {"job": "", "loader": "", "rank": 0, "at": 1.0, "epoch": 0, "error": "", "verdict": "", "gpu": None}
    return json.dumps({"version": 1, "loaders": [{**said, "stats": {"samples": 1}, **other}]}).encode()


def test_ranks_side_by_side_and_summed(cli: Cli) -> None:
    """A line per rank, their sum below, what a bad record was for; in one look that ends."""
    ranks = [feed_of(30, Corrupt(), Corrupt(), rank=rank, world_size=2, lanes=2) for rank in (0, 1)]
    with ranks[0], ranks[1], metrics.serve(ranks[0], job="r50") as a, metrics.serve(ranks[1], job="r50") as b:
        for each in ranks:
            list(each)
        done = cli("watch", a.url, f"127.0.0.1:{b.port}", "--once", "--every", 0.05)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "dali_feed r50, 2 of 2 loaders"
    assert lines[1].split()[:4] == ["rank", "epoch", "samples", "samples/s"]
    assert [line.split()[0] for line in lines[2:5]] == ["0", "1", "all"]
    assert lines[4].split()[1] == "32"
    assert lines[4].split()[-1] == "2"
    assert re.search(r"^  bad  rank [01]  script\S*: .+$", done.out, re.MULTILINE)


def test_rates_are_between_looks() -> None:
    """A first look has no rate; a second has what the counts grew by, over the endpoint's own clock."""
    with feed_of(16) as feed, metrics.serve(feed) as at:
        endpoint = WatchedEndpoint(at.url)
        (first,) = endpoint.look().loaders
        list(feed)
        (then,) = endpoint.look().loaders
        (still,) = endpoint.look().loaders
    assert (first.rates, first.waits()) == ({}, {})
    assert then.rates["samples"] > 0
    assert sum(then.waits().values()) == pytest.approx(1)
    assert still.rates["samples"] == 0


def test_an_endpoint_that_goes_away_and_comes_back() -> None:
    """It is shown as gone with since when, the same moment at each look, and then as if nothing had been."""
    with feed_of(16) as feed:
        with metrics.serve(feed) as at:
            endpoint = WatchedEndpoint(at.url)
            assert not endpoint.look().gone
        since = endpoint.look().since
        assert "refused" in endpoint.gone
        assert endpoint.look().since == since > 0
        assert len(endpoint.loaders) == 1
        assert "has been gone since" in drawn(endpoint)
        assert "0 of 1 loaders" in drawn(endpoint)
        with metrics.serve(feed, at.port):
            assert not endpoint.look().gone


def test_json(cli: Cli) -> None:
    """One object: each endpoint with its loaders, and the sums; with one that is gone the exit code is 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    with feed_of(16) as feed, metrics.serve(feed) as at:
        list(feed)
        done = cli("watch", at.url, f"127.0.0.1:{nobody}", "--once", "--json", "--every", 0.05)
    assert done.code == 1
    found = json.loads(done.out)
    assert (found["all"]["samples"], found["all"]["loaders"]) == (16, 1)
    assert [bool(each["gone"]) for each in found["endpoints"]] == [False, True]


def test_what_is_no_endpoint(cli: Cli) -> None:
    """Another server's answer, one that is not found, an address that is none: said in words."""
    odd = [b"<html>", b"{}", _said(at="soon"), b"[1]", b'{"loaders": ' + b"[" * 100_000]
    odd += [_said(stats=[1]), _said(gpu="x"), _said(stats={"kafka": 5}), _said(stats={"storage": [1]})]
    odd += [_said(stats={"recent_bad": [1]}), _said(epoch=10**400), _said(stats={"samples": math.nan})]
    with Web({}) as web:
        for answer in odd:
            web.files["stats.json"] = answer
            assert WatchedEndpoint(web.url).look().gone == "an answer that is not from an endpoint of dali_feed"
        web.files["stats.json"] = b'{"version": 2, "loaders": []}'
        assert (
            "must answer in version 1, which this dali-feed reads; found version 2"
            in WatchedEndpoint(web.url).look().gone
        )
        web.files.clear()
        assert WatchedEndpoint(web.url).look().gone == "HTTP 404"
    for address in ("ftp://here", "here:port", "here:99999", "http://[::1"):
        assert_one_line(cli("watch", address, "--once"), "URL", "host:port", address)


def test_an_answer_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that goes on sending holds up a look no longer than one that is silent."""
    monkeypatch.setattr(watch, "PATIENCE", 0.2)
    ended = threading.Event()

    def drip(server: socket.socket) -> None:
        with server.accept()[0] as client, contextlib.suppress(OSError):
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not ended.wait(0.05):
                client.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,), daemon=True)
        thread.start()
        assert WatchedEndpoint(f"127.0.0.1:{server.getsockname()[1]}").look().gone == "an answer that did not end"
        ended.set()
        thread.join()


def test_a_terminal_obeys_nothing_that_an_endpoint_says() -> None:
    """Reasons of bad records come from data: control characters are blanks, markup is text."""
    stats = {"samples": 1, "recent_bad": [["a\x1b[2J", "[red]\x07why\n"]], "bottleneck": "\x1b]0;x"}
    with Web({"stats.json": _said(loader="\x1b[1m", stats=stats)}) as web:
        seen = WatchedEndpoint(web.url).look()
    text = drawn(seen)
    assert "[red] why" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    assert report_of([seen]).data["all"]["samples"] == 1
