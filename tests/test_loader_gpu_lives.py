"""Loaders on a GPU over their lives: nothing leaks, two live together, memory returns, a captured step is fed."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pynvml
import pytest
import torch
from images import jpeg
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.testing.scripted import ScriptedSource

pytestmark = pytest.mark.gpu

EPOCHS = 200
LEAK = 32 << 20  # less than a tenth of a batch of 16 per epoch would be


@pytest.fixture(params=["dali", "host"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine before a GPU."""
    return str(request.param)


def loader(engine: str, count: int = 32, **options: Any) -> DataLoader:
    """Batches of 16 pictures of 64 x 64."""
    transform = v2.Compose([v2.Resize((64, 64)), v2.ToDtype(torch.float32, scale=True)])
    source = ScriptedSource([(jpeg(n, 70, 90), n) for n in range(count)])
    return DataLoader(source, 16, transform=transform, device="cuda", engine=engine, **options)


def held() -> int:
    """Bytes of the GPU that are taken, once everything that can be given back has been."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def test_epochs_that_end_in_any_way_leak_nothing(engine: str) -> None:
    """Whole ones, ones left early and ones ended by an exception, 200 of them."""

    def epoch(n: int) -> None:
        for images, _ in each:
            assert images.is_cuda
            if n % 3 == 1:
                break
            if n % 3 == 2:
                raise RuntimeError

    with loader(engine) as each:
        before = 0
        for n in range(EPOCHS):
            with contextlib.suppress(RuntimeError):
                epoch(n)
            if n == 20:
                before = held()
        assert held() - before < LEAK


def test_memory_returns_when_a_loader_closes(engine: str) -> None:
    """Loaders made and closed, twenty of them, leave what one leaves."""

    def one() -> None:
        with loader(engine) as each:
            assert len(list(each)) == 2

    for _ in range(3):
        one()
    before = held()
    for _ in range(20):
        one()
    assert held() - before < LEAK


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
