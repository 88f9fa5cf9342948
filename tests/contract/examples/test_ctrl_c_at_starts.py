"""Ctrl-C while threads are being started: none of them stays behind, and what is begun again is whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kit.images import jpeg, labelled
from kit.inside import Pace
from kit.limits import LONG
from kit.packed_images import packed_images

from dali_feed import DataLoader, Decode, Tuning
from dali_feed.external_sources import FileList
from dali_feed.metrics import Endpoint
from dali_feed.packing import pack
from dali_feed.testing import ScriptedSource, ScriptedStream


class Interrupts:
    """Ctrl-C at the `at`-th thread that the main thread starts: when it runs (`late`), or before it ever does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.late = -1, True
        start = threading.Thread.start

        def interrupted(thread: threading.Thread) -> None:
            mine = threading.current_thread() is threading.main_thread() and self.at >= 0
            self.at -= mine
            hit = mine and self.at < 0
            if not hit or self.late:
                start(thread)
            if hit:
                raise KeyboardInterrupt

        monkeypatch.setattr(threading.Thread, "start", interrupted)

    def everywhere(self, run: Callable[[], object]) -> int:
        """Run it with Ctrl-C at each thread in turn; at how many. None of the threads is left then."""
        before, count = set(threading.enumerate()), 0
        for self.late in (True, False):
            for at in range(100):
                self.at = at
                try:
                    run()
                except KeyboardInterrupt:
                    count += 1
                else:
                    assert self.at >= 0, "an interrupt was swallowed"
                    self.at = -1
                    break
                ends = time.monotonic() + LONG
                while left := set(threading.enumerate()) - before:
                    assert time.monotonic() < ends, f"at thread {at} {left} stayed"
        return count


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> Interrupts:
    """Ctrl-C at starts."""
    return Interrupts(monkeypatch)


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_of_a_loader(interrupts: Interrupts, engine: str) -> None:
    """Its feed thread; readers, and the threads of the engine, are begun by that one, which hears no Ctrl-C."""
    tuning = Tuning(threads=2, readers=3)

    def run() -> None:
        with DataLoader(
            ScriptedSource(labelled(8)), 4, device="cpu", decode=Decode(engine=engine), tuning=tuning
        ) as loader:
            try:
                list(loader)
            except KeyboardInterrupt:
                assert [labels.tolist() for _, labels in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
                raise

    assert interrupts.everywhere(run) == 2


def test_of_a_stream(interrupts: Interrupts) -> None:
    """The thread that reads it and the one that feeds: nobody reads on for a loop that is gone."""
    source = ScriptedStream([(jpeg(n), n) for n in range(4)], pace=Pace(timeout=0.01))

    def run() -> None:
        with DataLoader(source, 4, device="cpu", tuning=Tuning(threads=1)) as loader:
            try:
                next(iter(loader))
            except KeyboardInterrupt:
                assert next(iter(loader))[1].tolist() == [0, 1, 2, 3]
                raise

    assert interrupts.everywhere(run) == 2 * 2


def test_of_the_packer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While it hands out shards: its threads end, and those that were not begun are not written any more."""
    packed_images(tmp_path, tmp_path / "first", 40, 2)
    source, submit, left = FileList.from_folder(tmp_path / "source"), ThreadPoolExecutor.submit, iter(range(40))

    def interrupted(*arguments: Any) -> Any:
        if next(left) == 39:
            raise KeyboardInterrupt
        return submit(*arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack(source, tmp_path / "some.dfset", shard_bytes=1, workers=2)
    monkeypatch.undo()
    assert not [each for each in threading.enumerate() if each.name.startswith("dali-feed-pack")]
    assert pack(source, tmp_path / "some.dfset", shard_bytes=1, workers=2).done == 40


def test_of_an_endpoint(interrupts: Interrupts) -> None:
    """Its port is free again."""
    with Endpoint() as free:
        port = free.port

    def run() -> None:
        Endpoint(port=port).close()

    assert interrupts.everywhere(run) == 2
