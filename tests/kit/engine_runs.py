"""Batches of an engine by itself, on the CPU: the engine, its work, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dali_feed.compiler.program import Program
from dali_feed.engines.choose import make_engine
from dali_feed.engines.engine import Result, Work
from dali_feed.options import Tuning
from dali_feed.screen.screen import screen


def engine_of(name: str, program: Program, batch_size: int = 1, **tuning: Any) -> Any:
    """An engine, of two threads unless `tuning` says otherwise."""
    tuned = Tuning(**({"threads": 2} | tuning))
    return make_engine(name, program, batch_size=batch_size, device=None, tuning=tuned)


def work_for(
    engine: Any, program: Program, payloads: Sequence[Any], ids: int | Sequence[int] = 0, seed: int = 0, epoch: int = 0
) -> Work:
    """A batch of samples with these ids, or from that one on; without an engine, as the host engine takes it."""
    views = [memoryview(payload) for payload in payloads]
    numbers = np.array(range(ids, ids + len(views)) if isinstance(ids, int) else ids, np.int64)
    sizes = np.maximum(screen(views).sizes, 1)
    return Work(
        views if engine is None else engine.prepare(views),
        program.parameters(sizes, numbers, seed, epoch).arrays,
        ids=numbers,
    )


def result_of(name: str, program: Program, payloads: Sequence[Any], seed: int = 0) -> Result:
    """All payloads in one batch, by an engine of its own, with ids from 0 on."""
    engine = engine_of(name, program, len(payloads))
    engine.submit(work_for(engine, program, payloads, seed=seed))
    result: Result = engine.take()
    engine.close()
    assert not result.bad
    return result


def each(name: str, program: Program, payloads: Sequence[bytes], ids: Sequence[int]) -> list[torch.Tensor]:
    """The images of all payloads, each a batch of its own, since they may come out in several sizes."""
    engine, out = engine_of(name, program), []
    for sample, payload in zip(ids, payloads, strict=True):
        engine.submit(work_for(engine, program, [payload], [sample]))
        result = engine.take()
        assert not result.bad
        out.append(torch.utils.dlpack.from_dlpack(result.images)[0].clone())
    engine.close()
    return out
