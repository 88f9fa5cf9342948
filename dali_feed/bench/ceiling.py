"""The ceiling above our loader: the same engine fed from memory, with the same program and threads, given prepared
batches in turn.

The law: no reading, no screen, no draws, no second thread; what a loader loses beside it is the loader's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from dali_feed.bench.contract import Job, Steps
from dali_feed.bench.held import payloads_of
from dali_feed.bench.one_way import OneWay
from dali_feed.bench.turns import Make
from dali_feed.bench.work import CROP, cuda_index, transform
from dali_feed.compiler.program import Program
from dali_feed.engines.choose import choose_engine, make_engine
from dali_feed.engines.compiling import compile_for
from dali_feed.engines.engine import Engine, Result, Work
from dali_feed.engines.gpu.handover import tensor_of
from dali_feed.errors import EngineError
from dali_feed.options import Tuning
from dali_feed.screen.screen import screen
from dali_feed.transforms.lower import lower
from dali_feed.transforms.recipe import Recipe

__all__ = ["Ceiling", "ceiling", "recipe_of"]

PREPARED = 64  # batches


def _prepared(payloads: list[bytes], compiled: Program, batch: int, count: int) -> list[Work]:
    rng, works = np.random.default_rng(0), list[Work]()
    views = [memoryview(payload) for payload in payloads]
    sizes = screen(views).sizes
    for _ in range(count):
        rows = rng.integers(0, len(views), batch)
        works.append(Work([views[k] for k in rows], compiled.parameters(sizes[rows], rows, 0, 0).arrays))
    return works


def _result_tensor(result: Result, device: torch.device) -> torch.Tensor:
    """A batch as the loader gives it: as it is, or with the finish step on the device."""
    if result.tail is None:
        return tensor_of(result.images)
    from dali_feed.engines.gpu.finish import finished  # CuPy, which only a GPU needs

    return finished(result.images, result.tail, device)


class _Ceiling(Steps):
    def __init__(self, works: list[Work], engine: Engine, device: torch.device) -> None:
        self._engine, self._device = engine, device
        self._works = [Work(engine.prepare(work.payloads), work.arrays) for work in works]
        self._at = 0
        for _ in range(engine.depth):
            self._submit()

    def _submit(self) -> None:
        self._engine.submit(self._works[self._at % len(self._works)])
        self._at += 1

    def __next__(self) -> int:
        result = self._engine.take()
        if result.bad:
            msg = f"ceiling: every image must be decodable; one is not: {next(iter(result.bad.values()))}; leave it out"
            raise EngineError(msg)
        images = _result_tensor(result, self._device)
        self._submit()
        return len(images)

    def close(self) -> None:
        for _ in range(self._engine.depth):
            self._engine.discard()
        self._engine.close()


def recipe_of(crop: int = CROP, hardware: float = 0.0) -> Recipe:
    """What everybody does, with the share of a GPU's JPEG engine."""
    return replace(lower(transform(crop)), hardware=hardware)


def ceiling(
    payloads: Callable[[], list[bytes]],
    batch: int,
    tuning: Tuning,
    device: torch.device,
    engine: str,
    *,
    prepared: int = PREPARED,
    recipe: Recipe | None = None,
) -> Make:
    """The engine fed from memory with `prepared` batches in turn."""
    held: list[bytes] = []  # the same bytes objects in every turn

    @contextmanager
    def make() -> Iterator[Steps]:
        if not held:
            held.extend(payloads())
        index = cuda_index(device)
        program = compile_for(engine, recipe or recipe_of(), index)
        works = _prepared(held, program, batch, prepared)
        made = make_engine(engine, program, batch_size=batch, device=index, tuning=tuning)
        steps = _Ceiling(works, made, device)
        try:
            yield steps
        finally:
            steps.close()

    return make


@dataclass(frozen=True, slots=True)
class Ceiling(OneWay):
    """The engine fed from memory as a contestant. The others are compared with it."""

    engine: str | None = None
    name: str = "ceiling"

    def turn(self, job: Job, way: str) -> AbstractContextManager[Steps]:
        """A new engine."""
        device = torch.device(job.device)
        engine = choose_engine(self.engine, cuda_index(device), graph=False)
        tuning, recipe = Tuning(threads=job.threads), recipe_of(job.crop)
        return ceiling(lambda: payloads_of(job.data), job.batch, tuning, device, engine, recipe=recipe)()
