"""Several processes on a machine: each its part of the CPUs, its own GPU, a small twin; threads on a timeline."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from kit.images import QUICK, broken_png, labelled
from kit.limits import LONG

from dali_feed import DataLoader
from dali_feed.engines.dali.images import twin_threads
from dali_feed.engines.device import ranges
from dali_feed.engines.engine import Engine
from dali_feed.errors import ConfigError
from dali_feed.feed import Feed
from dali_feed.options import BadRecords, Decode, Tuning
from dali_feed.testing.scripted import ScriptedSource


def machine(monkeypatch: pytest.MonkeyPatch, cpus: int, processes: str | None) -> None:
    """Let this one have so many CPUs and so many processes of a run."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if processes is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)


@pytest.mark.parametrize(
    ("cpus", "processes", "cpu_threads", "gpu_threads"),
    [
        (8, None, 8, 8),
        (8, "", 8, 8),
        (8, "1", 8, 8),
        (96, None, 96, 16),
        (96, "4", 24, 16),
        (96, "8", 12, 12),
        (13, "4", 3, 3),
        (2, "8", 1, 1),
    ],
)
def test_cpus_are_shared_by_a_machines_processes(
    monkeypatch: pytest.MonkeyPatch, cpus: int, processes: str | None, cpu_threads: int, gpu_threads: int
) -> None:
    """One decoder thread per CPU and process in all, never none; 16 at most before a GPU decoder."""
    machine(monkeypatch, cpus, processes)
    assert (Tuning().cpu_threads, Tuning().gpu_threads) == (cpu_threads, gpu_threads)
    assert (Tuning(threads=40).cpu_threads, Tuning(threads=40).gpu_threads) == (40, 40)  # those that are given


def test_a_twin_is_small() -> None:
    """It runs one batch now and then: two threads at least and four at most, of as many as the other has."""
    assert [twin_threads(threads) for threads in (1, 3, 9)] == [2, 3, 4]


@pytest.mark.parametrize("wrong", ["0", "-1", "two", "1.5"])
def test_a_local_world_size_that_cannot_be(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """A ConfigError that names it; not asked where threads are given."""
    machine(monkeypatch, 8, wrong)
    with pytest.raises(ConfigError, match=f"^LOCAL_WORLD_SIZE: .*found '{wrong}'"):
        Tuning().cpu_threads  # noqa: B018  reading it raises
    assert Tuning(threads=3).cpu_threads == 3


@pytest.mark.parametrize("name", ["host", "dali"])
def test_the_thread_that_drives_an_engine_takes_its_device_first(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Once in a pass, by the thread of that pass, before a batch is begun: each thread begins with the first GPU."""
    seen: list[tuple[str, str, int | None]] = []
    enter, begin = Engine.enter, Engine.submit

    def entered(engine: Engine) -> None:
        seen.append(("use", threading.current_thread().name, None if engine.device is None else engine.device.number))
        enter(engine)

    def submitted(engine: Engine, *given: Any) -> None:
        seen.append(("submit", threading.current_thread().name, None))
        begin(engine, *given)

    monkeypatch.setattr(Engine, "enter", entered)
    monkeypatch.setattr(Engine, "submit", submitted)
    items: list[Any] = labelled(12)
    items[5] = (broken_png(), 5)
    with Feed(ScriptedSource(items), 4, decode=Decode(engine=name), bad=BadRecords(limit=None), tuning=QUICK) as feed:
        for _ in range(2):
            list(feed)
    assert {thread for _, thread, _ in seen} == {"dali_feed-feed"}
    assert [what for what, _, _ in seen] == ["use", "submit", "submit", "submit"] * 2


_RANK_1 = """
import pynvml, torch
from kit.engine_runs import engine_of, work_for
from kit.images import broken_png, jpeg
from torchvision.transforms import v2
from dali_feed import BadRecords, DataLoader, Decode
from dali_feed.testing.scripted import ScriptedSource

def taken():
    return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used

pynvml.nvmlInit()
before = taken()
torch.cuda.set_device(1)  # as a rank does
items = [(jpeg(n, 60, 80), n) for n in range(64)]
items[9] = (broken_png(), 9)
transform = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
for engine in ("host", "dali"):
    with DataLoader(ScriptedSource(items), 8, transform=transform, device="cuda:1", decode=Decode(engine=engine),
                    bad=BadRecords(limit=None)) as loader:
        assert all(images.device.index == 1 for images, _ in loader)
        torch.cuda.synchronize(1)
        assert taken() - before < 64 << 20  # a context alone takes more
"""


@pytest.mark.gpu
def test_a_loader_of_the_second_gpu_takes_nothing_of_the_first() -> None:
    """Its threads least of all, which begin with the first one, whatever the trainer's has chosen."""
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder)}
    subprocess.run([sys.executable, "-P", "-c", _RANK_1], check=True, env=env, timeout=LONG)


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
    assert found["dali_feed-work-"] == {"decode"}
    assert {"wait for the source", "wait for the engine", "wait for the trainer"} <= found["dali_feed-feed"]
    assert found["MainThread"] == {"next batch"}
    assert not any(stacks.values())
