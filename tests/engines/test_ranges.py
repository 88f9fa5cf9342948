"""Ranges: a profiler's timeline shows our stages by name."""

from __future__ import annotations

import threading

import pytest
from kit.images import QUICK, labelled

from dali_feed import DataLoader, Decode
from dali_feed.engines import ranges
from dali_feed.testing.scripted import ScriptedSource


def test_stages_are_named_on_the_timeline_of_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads, decoding, the waits of the feed thread and of the trainer; each range that is opened is closed."""
    opened: dict[str, list[str]] = {}
    stacks: dict[str, list[str]] = {}

    def push(name: str) -> None:
        thread = threading.current_thread().name.rstrip("0123456789")
        opened.setdefault(thread, []).append(name.removeprefix("dali_feed: "))
        stacks.setdefault(threading.current_thread().name, []).append(name)

    def pop() -> None:
        stacks[threading.current_thread().name].pop()

    monkeypatch.setattr(ranges, "_push", push)
    monkeypatch.setattr(ranges, "_pop", pop)
    with DataLoader(
        ScriptedSource(labelled(16)), 4, device="cpu", decode=Decode(engine="host"), tuning=QUICK
    ) as loader:
        assert len(list(loader)) == 4
    found = {thread: set(names) for thread, names in opened.items()}
    assert found["dali_feed-read-"] == {"read"}
    assert found["dali_feed-host-"] == {"decode"}
    assert {"wait for the source", "wait for the engine", "wait for the trainer"} <= found["dali_feed-feed"]
    assert found["MainThread"] == {"next batch"}
    assert not any(stacks.values())
