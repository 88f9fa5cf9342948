"""`dali-feed watch`: ranks side by side and summed, endpoints that go away and come back, and what they may print."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest
from command import Cli, assert_one_line, cli
from images import QUICK, labelled
from web import Web

from dali_feed import watching
from dali_feed.cli.watch_state import Site
from dali_feed.cli.watch_view import screen, told
from dali_feed.feed import Feed
from dali_feed.testing import ScriptedSource
from dali_feed.testing.scripted import Corrupt

__all__ = ["cli"]  # a fixture


def feed_of(records: int, *more: Corrupt, **options: Any) -> Feed:
    """Of a source in memory."""
    return Feed(ScriptedSource([*labelled(records), *more]), 4, tuning=QUICK, **options)


def drawn(*seen: object) -> str:
    """What a terminal of 160 columns shows."""
    from rich.console import Console

    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115  closed with the console
    console.print(screen(seen))  # type: ignore[arg-type]
    console.file.close()
    return console.export_text()


def test_ranks_side_by_side_and_summed(cli: Cli) -> None:
    """A line per rank, their sum below, what a bad record was for; in one look that ends."""
    ranks = [feed_of(30, Corrupt(), Corrupt(), rank=rank, world_size=2, lanes=2) for rank in (0, 1)]
    with ranks[0], ranks[1], watching.serve(ranks[0], job="r50") as a, watching.serve(ranks[1], job="r50") as b:
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
    with feed_of(16) as feed, watching.serve(feed) as at:
        site = Site(at.url)
        (first,) = site.look().loaders
        list(feed)
        (then,) = site.look().loaders
        (still,) = site.look().loaders
    assert (first.rates, first.waits()) == ({}, {})
    assert then.rates["samples"] > 0
    assert sum(then.waits().values()) == pytest.approx(1)
    assert still.rates["samples"] == 0


def test_an_endpoint_that_goes_away_and_comes_back() -> None:
    """It is shown as gone with since when, the same moment at each look, and then as if nothing had been."""
    with feed_of(16) as feed:
        with watching.serve(feed) as at:
            site = Site(at.url)
            assert not site.look().gone
        first, second = site.look(), site.look()
        assert "refused" in first.gone
        assert first.since == second.since is not None
        assert len(first.loaders) == 1
        assert "is gone since" in drawn(first)
        assert "0 of 1 loaders" in drawn(first)
        with watching.serve(feed, at.port):
            assert not site.look().gone


def test_json(cli: Cli) -> None:
    """One object: each endpoint with its loaders, and the sums; with one that is gone the exit code is 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    with feed_of(16) as feed, watching.serve(feed) as at:
        list(feed)
        done = cli("watch", at.url, f"127.0.0.1:{nobody}", "--once", "--json", "--every", 0.05)
    assert done.code == 1
    found = json.loads(done.out)
    assert (found["all"]["samples"], found["all"]["loaders"]) == (16, 1)
    assert [bool(each["gone"]) for each in found["endpoints"]] == [False, True]


def test_what_is_no_endpoint(cli: Cli) -> None:
    """Another server's answer, one that is not found, an address that is none: said in words."""
    odd = [b"<html>", b"{}", b'{"loaders": [{"stats": {}, "at": "soon"}]}', b"[1]"]
    for answer in odd:
        with Web({"stats.json": answer}) as web:
            assert Site(web.url).look().gone == "an answer that is not an endpoint's of dali_feed"
    with Web({}) as web:
        assert Site(web.url).look().gone == "HTTP 404"
    assert_one_line(cli("watch", "ftp://here", "--once"), "URL", "host:port", "ftp://here")


def test_a_terminal_obeys_nothing_that_an_endpoint_says() -> None:
    """Reasons of bad records come from data: control characters are blanks, markup is text."""
    stats = {"samples": 1, "recent_bad": [["a\x1b[2J", "[red]\x07why\n"]], "bottleneck": "\x1b]0;x"}
    said = {"job": "", "loader": "\x1b[1m", "rank": 0, "at": 1.0, "epoch": 0, "error": "", "verdict": ""}
    with Web({"stats.json": json.dumps({"loaders": [{**said, "stats": stats, "gpu": None}]}).encode()}) as web:
        seen = Site(web.url).look()
    text = drawn(seen)
    assert "[red] why" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    assert told([seen])["all"]["samples"] == 1
