"""Loaders on a GPU over their lives: nothing leaks, two live together, memory returns, a captured step is fed."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from typing import Any

import pynvml
import pytest
import torch
from kit.images import jpeg
from kit.limits import LONG
from kit.twin import Machine
from nvidia.dali import backend
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.device

EPOCHS = 200
GROWTH = 64 << 20  # bytes by which a pool of DALI's grows, whatever it lacks
LEAK = GROWTH + (8 << 20)  # one such step is no leak
BATCH = 16 * 3 * 64 * 64 * 4
assert LEAK < (EPOCHS - 21) * BATCH  # a batch left behind in each epoch is one


@pytest.fixture(params=["dali", "host"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine before a GPU."""
    return str(request.param)


def loader(engine: str, count: int = 32, **options: Any) -> DataLoader:
    """Batches of 16 pictures of 64 x 64."""
    transform = v2.Compose([v2.Resize((64, 64)), v2.ToDtype(torch.float32, scale=True)])
    source = ScriptedSource([(jpeg(n, 70, 90), n) for n in range(count)])
    return DataLoader(source, 16, transform=transform, device="cuda", decode=Decode(engine=engine), **options)


def held(twin: Machine | None) -> int:
    """Bytes of the GPU that are taken, once everything that can be given back has been."""
    backend.ReleaseUnusedMemory()
    return taken(twin)


def taken(twin: Machine | None = None) -> int:
    """Bytes of the GPU that are taken, torch's pool given back and DALI's left as it is."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if twin is not None:
        return twin.taken[0] + twin.cached[0]
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def test_epochs_that_end_in_any_way_leak_nothing(engine: str, on_device: Machine | None) -> None:
    """Whole ones, ones left early and ones ended by an exception, 200 of them; 20 where nothing else takes memory.

    A pass that was left may have a batch on its way at either count, which is no leak.
    """

    def epoch(n: int) -> None:
        for images, _ in each:
            assert images.is_cuda
            if n % 3 == 1:
                break
            if n % 3 == 2:
                raise RuntimeError

    with loader(engine) as each:
        before, (settled, epochs) = 0, (20, EPOCHS) if on_device is None else (5, 20)
        for n in range(epochs):
            with contextlib.suppress(RuntimeError):
                epoch(n)
            if n == settled:
                before = held(on_device)
        assert held(on_device) - before < (LEAK if on_device is None else 4 * BATCH)


def test_memory_returns_when_a_loader_closes(engine: str, on_device: Machine | None) -> None:
    """Loaders made and closed, twenty of them, leave what one leaves."""

    def one() -> None:
        with loader(engine) as each:
            assert len(list(each)) == 2

    for _ in range(3):
        one()
    before = held(on_device)
    for _ in range(20 if on_device is None else 2):
        one()
    assert held(on_device) - before < (LEAK if on_device is None else 1)


@pytest.mark.gpu
def test_closing_gives_back_what_dali_keeps() -> None:
    """Half a gigabyte of decoded photographs, in DALI's own pool, is the machine's again."""
    photographs = [(jpeg(n % 4, 1500, 2000), n) for n in range(64)]

    def one(items: list[Any]) -> None:
        with DataLoader(
            ScriptedSource(items), 64, transform=v2.Resize((64, 64)), device="cuda", decode=Decode(engine="dali")
        ) as each:
            assert len(list(each)) == 1

    one(photographs[:1])
    before = taken()
    one(photographs)
    assert taken() - before < 64 * 3 * 1500 * 2000 // 2


_IN_ITS_OWN = """
import contextlib, os, sys, torch
from kit.images import jpeg
from dali_feed.errors import EngineError
from kit.inside import Feed

from dali_feed import Decode
from dali_feed.testing import ScriptedSource
from torchvision.transforms import v2

def told(feed, before=lambda: None):
    try:
        batches = iter(feed)
        next(batches)
        before()
        for _ in batches:
            pass
        print("nothing was wrong")
    except EngineError as error:
        print("told:", error)
    sys.stdout.flush()
    os._exit(0)  # a GPU that has failed lets nothing end well
"""


def _told(script: str) -> str:
    """What a process of its own prints."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder)}
    command = [sys.executable, "-P", "-c", _IN_ITS_OWN + script]
    done = subprocess.run(command, check=True, env=env, timeout=LONG, capture_output=True, text=True)
    return done.stdout


@pytest.mark.gpu
def test_a_cuda_error_that_stays_ends_the_run_as_that() -> None:
    """A kernel of the trainer's goes wrong: the next batch says that the GPU is lost, and marks no sample."""
    script = """
source = ScriptedSource([(jpeg(n, 70, 90), n) for n in range(512)])
def broken():
    torch.zeros(4, device="cuda")[torch.tensor([1 << 30], device="cuda")]
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize()
told(Feed(source, 8, transform=v2.Resize((64, 64)), device=0, decode=Decode(engine="dali")), broken)
"""
    assert "a CUDA error on cuda:0 after which nothing more can run" in _told(script)


@pytest.mark.gpu
def test_exhausted_memory_ends_the_run_as_that() -> None:
    """A batch that does not fit: the error says so, and how much is free; no image is called bad."""
    script = """
source = ScriptedSource([(jpeg(n % 2, 3000, 4000), n) for n in range(256)])
torch.cuda.init()
free, _ = torch.cuda.mem_get_info(0)
hog = torch.empty(free - (2 << 30), dtype=torch.uint8, device="cuda")
told(Feed(source, 128, transform=v2.Resize((64, 64)), device=0, decode=Decode(engine="dali")))
"""
    assert "out of memory on cuda:0 (" in _told(script)


def test_two_loaders_live_together(engine: str) -> None:
    """Training and validation in turns, each with its own batches."""
    with loader(engine, 64) as train, loader(engine, 32) as valid:
        alone = [labels.tolist() for _, labels in valid]
        for n, (_, labels) in enumerate(train):
            assert labels.tolist() == list(range(16 * n, 16 * n + 16))
            assert [labels.tolist() for _, labels in valid] == alone


def test_a_captured_step_is_fed(engine: str) -> None:
    """A step captured as a CUDA graph while the loader works, replayed on its batches, gives what eager code does."""
    with loader(engine, 64) as each:
        batches = iter(each)
        first, _ = next(batches)
        still, sums = first.clone(), torch.zeros(3, device="cuda")
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            still.mean(dim=(0, 2, 3))
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads of ours go on meanwhile
            sums.copy_(still.mean(dim=(0, 2, 3)))
        for images, _ in batches:
            still.copy_(images)
            graph.replay()
            assert torch.equal(sums, images.mean(dim=(0, 2, 3)))
