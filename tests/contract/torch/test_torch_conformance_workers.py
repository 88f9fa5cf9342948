"""torch's worker processes, where torch's loader runs the dataset: seeds, start-up functions, contexts, timeouts."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import threading
from typing import Any

import numpy as np
import pytest
import torch
from kit.both_loaders import CPU_WARNING, OURS_BY_TORCH, Numbers, Stream, both_loaders, let_go
from kit.dali_pipelines import plain
from kit.images import png
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import get_worker_info

from dali_feed import DataLoader

pytestmark = [OURS_BY_TORCH, CPU_WARNING]


class Seeds(Numbers):
    """Gives the seed of the process that it is asked in."""

    def __getitem__(self, index: int) -> int:
        return torch.initial_seed()


class Workers(Numbers):
    """Gives the number of the worker that it is asked in, and its process."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        assert info.num_workers == 2
        assert info.seed == torch.initial_seed()
        return torch.tensor([info.id, os.getpid()])


class Shared(Stream):
    """As torch's page on iterable-style datasets has it: each worker gives its own part."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        return iter(range(info.id, self.count, info.num_workers))


class Hangs(Numbers):
    """Never gives number 1."""

    def __getitem__(self, index: int) -> int:
        if index == 1:
            threading.Event().wait()
        return index


def seeds_of(made: Any) -> list[int]:
    """One per batch."""
    return [int(batch) for batch in made]


@both_loaders
def test_workers_have_seeds_of_their_own(loader: Any) -> None:
    """Batches go round the workers; equal generators give equal seeds, the next epoch others."""

    def seeds(seed: int) -> list[list[int]]:
        made = loader(Seeds(4), num_workers=2, generator=torch.Generator().manual_seed(seed))
        return [seeds_of(made) for _ in range(2)]

    first, second = seeds(1)
    assert first[:2] == first[2:]
    assert len({*first, *second}) == 4
    assert seeds(1) == [first, second] != seeds(2)


@both_loaders
def test_worker_init_fn_is_called_in_each_worker(loader: Any) -> None:
    """With its number, after seeding; what it raises comes through."""

    def start(worker: int) -> None:
        torch.manual_seed(100 + worker)

    assert seeds_of(loader(Seeds(4), num_workers=2, worker_init_fn=start)) == [100, 101, 100, 101]

    def fail(worker: int) -> None:
        message = "cannot start"
        raise LookupError(message)

    run = iter(loader(Seeds(4), num_workers=2, worker_init_fn=fail))
    with pytest.raises(LookupError, match="cannot start"):
        next(run)
    let_go(run)


@both_loaders
def test_batches_go_round_the_workers(loader: Any) -> None:
    """A worker knows its number, and this process is none."""
    for _ in range(2):
        batches = torch.cat(list(loader(Workers(8), 2, num_workers=2)))
        assert batches[:, 0].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
        assert len(set(batches[:, 1].tolist())) == 2
        assert os.getpid() not in batches[:, 1].tolist()
    assert get_worker_info() is None


@both_loaders
@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_stream_that_workers_share(loader: Any, batch_size: int | None, prefetch: int) -> None:
    """Each gives its part, in batches of its own; nothing comes twice."""
    made = loader(Shared(11), batch_size, num_workers=2, prefetch_factor=prefetch)
    items = [batch.tolist() if batch_size else [batch] for batch in made]
    assert sorted(number for item in items for number in item) == list(range(11))
    if batch_size:
        assert sorted(map(tuple, items)) == [(0, 2, 4), (1, 3, 5), (6, 8, 10), (7, 9)]


class Collects(Numbers):
    """Collects the garbage of its process."""

    def __getitem__(self, index: int) -> int:
        gc.collect()
        return index


def test_a_pipeline_that_nobody_has_any_more_does_workers_no_harm() -> None:
    """DALI's destructors join threads, which a forked process has not: garbage from before the fork stays there."""
    gc.disable()
    try:
        left = plain(num_threads=8)
        left.feed_input("image", [np.frombuffer(png(n), np.uint8) for n in range(4)])
        left.feed_input("label", [np.zeros(1, np.int32)] * 4)
        left.run()
        left.itself = left
        del left
        batches = DataLoader(Collects(4), 2, num_workers=2, timeout=60, device="cpu")
        assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]
    finally:
        gc.enable()


@both_loaders
def test_workers_that_persist(loader: Any) -> None:
    """The same processes serve every pass, after one that was left early too; otherwise each pass has its own."""
    for persistent in (True, False):
        made = loader(Workers(8), 2, num_workers=2, persistent_workers=persistent)
        first = set(torch.cat(list(made))[:, 1].tolist())
        next(iter(made))
        second = torch.cat(list(made))
        assert second[:, 0].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
        assert (first == set(second[:, 1].tolist())) is persistent


CONTEXTS = ["fork", multiprocessing.get_context("fork"), "spawn"]  # of the last each worker imports torch anew


@pytest.mark.parametrize(
    ("loader", "context"),
    [
        *((functools.partial(DataLoader, device="cpu"), each) for each in CONTEXTS),
        *((TorchLoader, each) for each in CONTEXTS[:-1]),
        pytest.param(TorchLoader, "spawn", marks=pytest.mark.long),
    ],
)
def test_contexts_that_workers_start_in(loader: Any, context: Any) -> None:
    """By name or as an object; the batches are the same."""
    made = loader(range(7), 3, num_workers=1, multiprocessing_context=context)
    assert [batch.tolist() for batch in made] == [[0, 1, 2], [3, 4, 5], [6]]


@both_loaders
def test_batches_of_the_users_own_with_workers(loader: Any) -> None:
    """Batches and samples of a sampler keep their order over the workers."""
    batches = [[0, 1], [2, 3, 4], [5]]
    assert [batch.tolist() for batch in loader(range(9), batch_sampler=batches, num_workers=2)] == batches
    assert [batch.tolist() for batch in loader(range(9), 2, sampler=[8, 1, 7], num_workers=2)] == [[8, 1], [7]]


@both_loaders
def test_pinned_memory_without_an_accelerator(loader: Any) -> None:
    """Torch's warning, and the batches as they are."""
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no accelerator is found"):
        assert [batch.tolist() for batch in loader(range(4), 2, pin_memory=True)] == [[0, 1], [2, 3]]


@both_loaders
def test_more_workers_than_cpus(loader: Any) -> None:
    """Torch's warning, from torch."""
    with pytest.warns(UserWarning, match="excessive worker creation might get DataLoader running slow"):
        loader(Numbers(), num_workers=4096)


@pytest.mark.waits
@both_loaders
def test_a_worker_that_hangs(loader: Any) -> None:
    """After `timeout` seconds without a batch a RuntimeError says so."""
    run = iter(loader(Hangs(), num_workers=1, timeout=1))
    assert next(run).tolist() == [0]
    with pytest.raises(RuntimeError, match="^DataLoader timed out after 1 seconds"):
        next(run)
