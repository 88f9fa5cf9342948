"""DALI_FEED_METRICS, whose endpoint is one for a process: the tests begin it anew."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from kit.images import QUICK, labelled
from kit.watched_run import look

from dali_feed import DataLoader, endpoint
from dali_feed.testing import ScriptedSource


def loader_of(items: list[Any], **options: Any) -> DataLoader:
    """Of a source in memory."""
    return DataLoader(ScriptedSource(items), 4, device="cpu", tuning=QUICK, **options)


@pytest.fixture
def _own_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's endpoint begins anew, and is closed."""
    shared = endpoint._Shared()
    monkeypatch.setattr(endpoint, "_shared", shared)
    yield
    if shared.endpoint is not None:
        shared.endpoint.close()


@pytest.mark.usefixtures("_own_endpoint")
def test_by_environment(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """DALI_FEED_METRICS serves every DataLoader of the process, numbered; without it no port is opened."""
    loader_of(labelled(4)).close()
    assert endpoint._shared.endpoint is None
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
            assert endpoint._shared.endpoint is None
            assert len(list(loader)) == 1
