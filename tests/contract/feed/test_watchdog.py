"""The watchdog: where no batch comes, a warning and the TimeoutError name the stage that is stuck, and on what."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kit.broker.handle import Kafka
from kit.images import QUICK, jpeg, labelled
from kit.inside import Item, Stall
from kit.watchdog import Lines, said_of

from dali_feed import DataLoader, Tuning
from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import ScriptedSource


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """What the stuck stage waits for; set at the end, so that no thread is left waiting."""
    event = threading.Event()
    yield event
    event.set()


def _stalled(go_on: threading.Event) -> ScriptedSource:
    items: list[Item] = [*labelled(32)]
    items[18] = Stall(go_on, then=(jpeg(18), 18))
    return ScriptedSource(items, extent=8)


def test_a_read_that_hangs_is_named_and_the_run_goes_on(go_on: threading.Event) -> None:
    """The records being read and for how long; nothing is lost when they come after all."""
    line = said_of(_stalled(go_on), go_on)[0]
    assert "source: " in line
    assert "32 records from scripted[0]@0 (0 s)" in line


def test_a_timeout_names_the_stage_too(go_on: threading.Event) -> None:
    """What TimeoutError says is what the watchdog would."""
    with DataLoader(_stalled(go_on), 4, device="cpu", timeout=0.1, tuning=QUICK) as loader:
        with pytest.raises(TimeoutError, match=r"timed out after 0\.1 seconds; source: .*from scripted\[0\]@0"):
            list(loader)
        go_on.set()


def test_a_broker_that_is_down_is_named_with_what_it_said(embedded: Kafka) -> None:
    """The offsets waited for, and librdkafka's complaint; the run goes on when the broker is back."""
    embedded.publish(embedded.topic, [(jpeg(n), n) for n in range(32)], partitions=1)
    source = KafkaTopic(embedded.topic, embedded.servers)
    source.snapshot()
    cluster: Any = embedded.cluster
    lines = Lines(lambda: cluster.up(1))
    logging.getLogger("dali_feed").addHandler(lines)
    with DataLoader(source, 4, device="cpu", tuning=Tuning(threads=1, readers=1, watchdog=0.5)) as loader:
        len(loader)
        cluster.down(1)
        assert sum(len(labels) for _, labels in loader) == 32
    logging.getLogger("dali_feed").removeHandler(lines)
    assert f"32 records from {embedded.topic}[0]@0 (" in lines.lines[0]
    assert embedded.servers in lines.lines[0]


@pytest.mark.parametrize("seconds", [0, -1.0, True, "30", math.nan])
def test_watchdog_must_be_seconds_above_0(seconds: Any) -> None:
    """Everything else is a ConfigError; infinity is never."""
    with pytest.raises(ConfigError, match=r"Tuning\(watchdog=\.\.\.\)"):
        Tuning(watchdog=seconds)
    assert Tuning(watchdog=math.inf).watchdog == math.inf


@pytest.mark.parametrize(("watchdog", "timeout"), [(1e12, 0), (math.inf, 1e12), (math.inf, 0)])
def test_waits_longer_than_the_system_knows(watchdog: float, timeout: float) -> None:
    """A limit beyond what can be waited for is none, and no error."""
    tuning = Tuning(threads=1, watchdog=watchdog)
    with DataLoader(ScriptedSource(labelled(4)), 4, device="cpu", tuning=tuning, timeout=timeout) as loader:
        assert len(list(loader)) == 1
