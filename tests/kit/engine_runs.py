"""Batches of an engine by itself, on the CPU: the engine, its work, and what comes out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dali_feed.engines.choose import make_engine
from dali_feed.engines.engine import Engine, Work
from dali_feed.options import Tuning
from dali_feed.screen.screen import screen
from dali_feed.transforms.program import ImageProgram, Output, Program


def whole(name: str, program: Program | ImageProgram) -> Program:
    """The program whose one output that engine makes by it."""
    return program if isinstance(program, Program) else Program((Output(name, program),))


def engine_of(name: str, program: Program | ImageProgram, batch_size: int = 1, **tuning: Any) -> Engine:
    """An engine, of two threads unless `tuning` says otherwise."""
    tuned = Tuning(**({"threads": 2} | tuning))
    return make_engine(whole(name, program), batch_size=batch_size, device=None, tuning=tuned)


def maker_of(engine: Engine) -> Any:
    """What makes the images of its only column."""
    (maker,) = engine._images.values()
    return maker


def work_for(
    program: Program | ImageProgram,
    payloads: Sequence[Any],
    ids: int | Sequence[int] = 0,
    seed: int = 0,
    epoch: int = 0,
) -> Work:
    """A batch of samples with these ids, or from that one on."""
    views = [memoryview(payload) for payload in payloads]
    numbers = np.array(range(ids, ids + len(views)) if isinstance(ids, int) else ids, np.int64)
    sizes = np.maximum(screen(views).sizes, 1)
    made = whole("", program)
    return Work(numbers, dict.fromkeys(made.columns, views), made.draw(sizes, numbers, seed, epoch)[0])


def submit(engine: Engine, work: Work) -> Work:
    """Start it, of a pass that never ends."""
    engine.submit(work, threading.Event())
    return work


def result_of(name: str, program: Program | ImageProgram, payloads: Sequence[Any], seed: int = 0) -> Work:
    """All payloads in one batch, by an engine of its own, with ids from 0 on."""
    engine = engine_of(name, program, len(payloads))
    work = engine.take(submit(engine, work_for(program, payloads, seed=seed)))
    engine.close()
    assert not work.bad
    return work


def images_of(work: Work) -> Any:
    """The images of its first output, as the engine gave them."""
    assert not work.bad
    return work.outputs[0].images


def each(
    name: str, program: Program | ImageProgram, payloads: Sequence[bytes], ids: Sequence[int]
) -> list[torch.Tensor]:
    """The images of all payloads, each a batch of its own, since they may come out in several sizes."""
    engine, out = engine_of(name, program), []
    for sample, payload in zip(ids, payloads, strict=True):
        work = engine.take(submit(engine, work_for(program, [payload], [sample])))
        out.append(torch.utils.dlpack.from_dlpack(images_of(work))[0].clone())
    engine.close()
    return out
