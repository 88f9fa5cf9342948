"""The endpoint of a run: what it says, what it costs, and that nothing which happens to it reaches the run."""

from __future__ import annotations

import gc
import logging
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from images import QUICK, labelled
from prometheus_client.parser import text_string_to_metric_families
from watched_run import Counting, get, look, series

from dali_feed import BadRecords, DataLoader, watching
from dali_feed.errors import ConfigError
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


def test_names_are_as_prometheus_wants_them() -> None:
    """Counters alone end in _total, units are whole words at the end, each metric has its line of help."""
    with Counting() as feed, watching.serve(feed) as at:
        list(feed)
        _, text = get(f"{at.url}/metrics")
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert re.fullmatch(r"dali_feed_[a-z][a-z0-9_]*", family.name)
        assert family.documentation.endswith(".")
        assert (family.type == "counter") == family.samples[0].name.endswith("_total")
        assert not re.search(r"_(ms|s|mb|kb|percent)(_|$)", family.name)


def test_nothing_is_done_between_two_requests() -> None:
    """A run of several epochs is not looked at once; a request looks once, at each page."""
    with Counting() as feed, watching.serve(feed) as at:
        for _ in range(3):
            list(feed)
        assert feed.looks == 0
        get(f"{at.url}/metrics")
        assert feed.looks == 1
        get(f"{at.url}/healthz")
        get(f"{at.url}/")
        assert feed.looks == 1
        get(f"{at.url}/stats.json")
        assert feed.looks == 2


def test_requests_while_the_loader_runs_and_closes() -> None:
    """Several who ask without a pause get whole answers; the run gets its batches, and its end."""
    feed, stop, answers = Counting(64), threading.Event(), list[int]()
    with watching.serve(feed) as at:

        def ask() -> None:
            while not stop.is_set():
                answers.append(get(f"{at.url}/metrics")[0])

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for each in threads:
            each.start()
        for _ in range(4):
            assert len(list(feed)) == 16
        feed.close()
        assert series(at.url)["dali_feed_batches_total", RANK] == 64
        stop.set()
        for each in threads:
            each.join()
    assert set(answers) == {200}


def test_a_look_that_fails_is_the_askers_business() -> None:
    """The answer says that the loader could not be looked at, and why; nothing is raised anywhere."""

    class Failing(Counting):
        def stats(self) -> Any:
            msg = "no figures today"
            raise RuntimeError(msg)

    with Failing() as feed, watching.serve(feed) as at:
        assert series(at.url) == {("dali_feed_up", RANK): 0}
        assert look(at.url)[0]["error"] == "RuntimeError: no figures today"
        assert len(list(feed)) == 4


def test_a_loader_that_is_gone() -> None:
    """The endpoint keeps no loader alive, and says that it has none."""
    loader = loader_of(labelled(4))
    with watching.serve(loader) as at:
        assert get(f"{at.url}/healthz") == (200, "ok\n")
        del loader
        gc.collect()
        assert get(f"{at.url}/healthz") == (503, "no loader\n")
        assert series(at.url) == {}
        assert get(f"{at.url}/elsewhere")[0] == 404


def test_several_loaders_are_told_apart() -> None:
    """By the names that they are given, under the job's."""
    with Counting() as a, Counting() as b, watching.serve({"train": a, "val": b}, job="r50") as at:
        list(b)
        found = series(at.url)
    labels = [("job", "r50"), ("rank", "0")]
    assert found["dali_feed_samples_total", tuple(sorted([*labels, ("loader", "train")]))] == 0
    assert found["dali_feed_samples_total", tuple(sorted([*labels, ("loader", "val")]))] == 16


def test_a_stream_is_watched_as_well() -> None:
    """A LiveFeed before its first batch has its zeros."""
    stream = KafkaStream("t", "127.0.0.1:9", timeout=1)
    with LiveFeed(stream, 4) as feed, watching.serve(feed) as at:
        assert series(at.url)["dali_feed_samples_total", RANK] == 0


@pytest.mark.parametrize("text", ['a"b\nc\\d', "\udcff", "é"])
def test_any_text_may_be_a_label(text: str) -> None:
    """Quotes, ends of lines, and a name that is no UTF-8, in which alone a letter is replaced."""
    with Counting() as feed, watching.serve({text: feed}, job=text) as at:
        (labels,) = [dict(labels) for name, labels in series(at.url) if name == "dali_feed_up"]
    assert labels == {"job": text.replace("\udcff", "?"), "loader": text.replace("\udcff", "?"), "rank": "0"}


@pytest.mark.parametrize("version", ["abc", '"2.0.0"', "1.0.0"])
def test_any_header_is_answered(version: str) -> None:
    """A version of the text that nobody has is answered with the plain one."""
    with Counting() as feed, watching.serve(feed) as at:
        asked = {"Accept": f"application/openmetrics-text; version={version}"}
        request = urllib.request.Request(f"{at.url}/metrics", headers=asked)  # noqa: S310  our own endpoint
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            assert b"dali_feed_up{" in answer.read()


def test_an_error_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong while an answer is made is said to who asked, and the connection is not just cut."""

    def fails(_: object) -> str:
        msg = "no JSON today"
        raise RuntimeError(msg)

    monkeypatch.setattr(endpoint, "as_json", fails)
    with Counting() as feed, watching.serve(feed) as at:
        assert get(f"{at.url}/stats.json") == (500, "RuntimeError: no JSON today\n")


def test_what_cannot_be_served_is_refused() -> None:
    """An object without stats, no object, a name that is no text, and ports and addresses that are none."""
    for wrong in ({}, {1: Counting()}):
        with pytest.raises(ConfigError, match="must be"):
            watching.serve(wrong)  # type: ignore[arg-type]
    for address in ("", None):
        with pytest.raises(ConfigError, match="address: must be the address of a network interface"):
            watching.serve(Counting(), address=address)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="loader: must be a DataLoader, a Feed or a LiveFeed; found int"):
        watching.serve(3)  # type: ignore[arg-type]
    with Counting() as feed, watching.serve(feed) as at:
        with pytest.raises(ConfigError, match=r"port: must be an int in 0\.\.65535; found 70000"):
            watching.serve(feed, 70_000)
        with pytest.raises(ConfigError, match=f"127.0.0.1:{at.port}: must be an address of this machine"):
            watching.serve(feed, at.port)
    at.close()


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


def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error where the loader is made, as any option is."""
    monkeypatch.setenv("DALI_FEED_METRICS", "yes")
    with pytest.raises(ConfigError, match="DALI_FEED_METRICS: must be host:port, such as 127.0.0.1:9400; found 'yes'"):
        loader_of(labelled(4))
