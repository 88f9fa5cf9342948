"""Insides that contract/watching/test_endpoint.py needs not: they go with what they test."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from kit.images import QUICK, labelled
from kit.watched_run import Counting, get, look, series

from dali_feed import BadRecords, DataLoader, watching
from dali_feed.external_sources import KafkaStream
from dali_feed.live import LiveFeed
from dali_feed.testing import ScriptedSource
from dali_feed.testing.scripted import Corrupt
from dali_feed.watching import endpoint, environment
from dali_feed.watching.figures import figures

RANK = (("rank", "0"),)


def loader_of(items: list[Any], **options: Any) -> DataLoader:
    """Of a source in memory."""
    return DataLoader(ScriptedSource(items), 4, device="cpu", tuning=QUICK, **options)


def test_a_scrape_says_what_stats_say() -> None:
    """All numbers of stats(), at the moment of the request, under the loader's rank."""
    with loader_of([*labelled(30), Corrupt(), Corrupt()], bad=BadRecords()) as loader, watching.serve(loader) as at:
        assert series(at.url)["dali_feed_samples_total", RANK] == 0
        assert sum(1 for _ in loader) == 8
        found, stats = series(at.url), loader.stats()
    assert found["dali_feed_samples_total", RANK] == stats.samples == 32
    assert found["dali_feed_bad_records_total", RANK] == stats.bad == 2
    assert found["dali_feed_up", RANK] == 1
    assert found["dali_feed_bottleneck_info", (("bottleneck", stats.bottleneck), *RANK)] == 1
    told = {figure.metric.name for figure in figures(stats)}
    assert told <= {name for name, _ in found}


def test_a_stream_is_watched_as_well() -> None:
    """A LiveFeed before its first batch has its zeros."""
    stream = KafkaStream("t", "127.0.0.1:9", timeout=1)
    with LiveFeed(stream, 4) as feed, watching.serve(feed) as at:
        assert series(at.url)["dali_feed_samples_total", RANK] == 0


def test_an_error_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong while an answer is made is said to who asked, and the connection is not just cut."""

    def fails(_: object) -> str:
        msg = "no JSON today"
        raise RuntimeError(msg)

    monkeypatch.setattr(endpoint, "as_json", fails)
    with Counting() as feed, watching.serve(feed) as at:
        assert get(f"{at.url}/stats.json") == (500, "RuntimeError: no JSON today\n")


@pytest.fixture
def _own_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's endpoint begins anew, and is closed."""
    shared = environment._Shared()
    monkeypatch.setattr(environment, "_shared", shared)
    yield
    if shared.endpoint is not None:
        shared.endpoint.close()


@pytest.mark.usefixtures("_own_endpoint")
def test_by_environment(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """DALI_FEED_METRICS serves every DataLoader of the process, numbered; without it no port is opened."""
    loader_of(labelled(4)).close()
    assert environment._shared.endpoint is None
    monkeypatch.setenv("DALI_FEED_METRICS", "127.0.0.1:0")
    with caplog.at_level(logging.INFO, "dali_feed"), loader_of(labelled(4)) as train, loader_of(labelled(8)) as val:
        url = re.search(r"metrics at (\S+)/metrics", caplog.text)
        assert url
        list(val)
        assert [(each["loader"], each["stats"]["samples"]) for each in look(url[1])] == [("0", 0), ("1", 8)]
        assert train.rank == 0


@pytest.mark.usefixtures("_own_endpoint")
def test_each_rank_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank is added to the port; one that is taken costs a warning, and the run goes on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("DALI_FEED_METRICS", f"127.0.0.1:{port - 1}")
        with loader_of(labelled(8), rank=1, world_size=2, lanes=2) as loader:
            assert environment._shared.endpoint is None
            assert len(list(loader)) == 1
