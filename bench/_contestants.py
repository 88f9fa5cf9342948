"""Our loader, the ceiling above it, and what contestants share. All crop, flip and normalize alike.

The ceiling is the same engine fed from memory, with the same program and threads, given prepared batches in turn. No
reading, no screen, no draws, no second thread; what a loader loses beside it is the loader's.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import thread_time
from typing import Any

import numpy as np
import torch
from _harness import Steps
from numpy.typing import NDArray
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Shuffle, Tuning
from dali_feed.compiler.program import Program
from dali_feed.engines.choose import make_engine
from dali_feed.engines.compiling import compile_for
from dali_feed.engines.engine import Result, Work
from dali_feed.engines.gpu.handover import tensor_of
from dali_feed.records.source import Source
from dali_feed.screen.screen import screen
from dali_feed.transforms.lower import lower
from dali_feed.transforms.rules import Decoding

__all__ = ["Make", "Memory", "ceiling", "one_torch_thread", "ours", "to_float", "transform"]

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SCALE = 1 / (255 * torch.tensor(STD).view(3, 1, 1))
BIAS = -torch.tensor(MEAN).view(3, 1, 1) / torch.tensor(STD).view(3, 1, 1)
CROP = 224
PREPARED = 64

Make = Callable[[], Any]


def transform() -> v2.Compose:
    """What everybody does to each image."""
    pixels = [v2.RandomResizedCrop(CROP, antialias=True), v2.RandomHorizontalFlip()]
    return v2.Compose([*pixels, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def cuda_index(device: torch.device) -> int | None:
    """The number that engines know a device by."""
    return None if device.type == "cpu" else device.index or 0


def to_float(pixels: torch.Tensor, out: torch.Tensor) -> None:
    """uint8 (3, height, width), normalized into `out`."""
    torch.mul(pixels, SCALE, out=out).add_(BIAS)


class _Watched(np.ndarray[Any, Any]):
    """A view whose death can be watched."""


class Memory:
    """Batches of floats in memory that is used again once the last tensor over it has died.

    Fresh memory of this size costs a page fault every 4 KB, more than all that is done to its pixels. Whoever would
    pay that gets this one, so that the contestants differ in their own work.
    """

    def __init__(self, batch: int) -> None:
        self._shape = (batch, 3, CROP, CROP)
        self._idle: deque[NDArray[np.float32]] = deque()

    def take(self) -> torch.Tensor:
        """A batch that is nobody else's; any thread may take one."""
        try:
            raw = self._idle.pop()
        except IndexError:
            raw = np.empty(self._shape, np.float32)
        view = raw.view(_Watched)
        weakref.finalize(view, self._idle.append, raw).atexit = False
        return torch.from_numpy(view)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch computes with one thread, in this thread and in those that start meanwhile.

    With more, the threads of one operation wait for each other in busy loops, on the cores that others decode on.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Timed:
    """DALI's pipeline object, with the CPU time that its own Run and Outputs take of the thread that calls them."""

    def __init__(self, pipe: Any) -> None:
        self._pipe, self.spent = pipe, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def _counted(self, call: Callable[..., Any], *args: object) -> Any:
        begun = thread_time()
        try:
            return call(*args)
        finally:
            self.spent += thread_time() - begun

    def Run(self) -> None:  # noqa: N802  DALI's name
        """Start a batch."""
        self._counted(self._pipe.Run)

    def Outputs(self, stream: object) -> Any:  # noqa: N802  DALI's name
        """Wait for a batch."""
        return self._counted(self._pipe.Outputs, stream)


class _Ours(Steps):
    def __init__(self, loader: DataLoader, beside: int | None) -> None:
        super().__init__(beside)
        self._loader = loader
        self._batches: Iterator[Any] = iter(loader)
        feed: Any = loader._feed
        main = getattr(feed._machine.engine, "_main", None)
        self._timed = None if main is None else _Timed(main._pipe)
        if main is not None:
            main._pipe = self._timed

    def __next__(self) -> int:
        try:
            images, _ = next(self._batches)
        except StopIteration:
            self._batches = iter(self._loader)
            images, _ = next(self._batches)
        return self.kept(images)

    def close(self) -> None:
        self._loader.close()  # the feed thread's time is added when it ends
        stats = self._loader.stats()
        waits = {"read": stats.read_wait, "engine": stats.engine_wait, "trainer": stats.trainer_wait}
        per_sample = 1e6 / stats.samples
        notes = {"feed_us": stats.feed_cpu * per_sample, "slab_peak": stats.slab_peak}
        notes["own_us"] = (stats.feed_cpu - (self._timed.spent if self._timed else 0)) * per_sample
        self.notes = notes | {f"{name}_wait": wait / sum(waits.values()) for name, wait in waits.items()}


def ours(
    source: Callable[[], Source],
    batch: int,
    tuning: Tuning,
    device: torch.device,
    engine: str,
    *,
    shuffle: bool | Shuffle = True,
    beside: int | None = None,
) -> Make:
    """Our loader; `beside` is the broker's process, where it is on this machine."""

    @contextmanager
    def make() -> Iterator[Steps]:
        loader = DataLoader(
            source(),
            batch,
            shuffle=shuffle,
            drop_last=True,
            transform=transform(),
            device=device,
            engine=engine,
            bad=BadRecords(limit=0),
            tuning=tuning,
        )
        steps = _Ours(loader, beside)
        try:
            yield steps
        finally:
            steps.close()

    return make


def _prepared(payloads: list[bytes], compiled: Program, batch: int, count: int) -> list[Work]:
    rng, works = np.random.default_rng(0), list[Work]()
    views = [memoryview(payload) for payload in payloads]
    sizes = screen(views).sizes
    for _ in range(count):
        rows = rng.integers(0, len(views), batch)
        works.append(Work([views[k] for k in rows], compiled.parameters(sizes[rows], rows, 0, 0).arrays))
    return works


def result_tensor(result: Result, device: torch.device) -> torch.Tensor:
    """A batch as the loader gives it: as it is, or with the finish step on the device."""
    if result.tail is None:
        return tensor_of(result.images)
    from dali_feed.engines.gpu.finish import finished  # CuPy, which only a GPU needs

    return finished(result.images, result.tail, device)


class _Ceiling(Steps):
    def __init__(
        self,
        payloads: list[bytes],
        batch: int,
        tuning: Tuning,
        device: torch.device,
        engine: str,
        prepared: int,
        decode: Decoding,
        hw_decoder_load: float,
    ) -> None:
        super().__init__()
        self._device, index = device, cuda_index(device)
        recipe = replace(lower(transform()), decode=decode, hw_decoder_load=hw_decoder_load)
        program = compile_for(engine, recipe, index, tuning)
        works = _prepared(payloads, program, batch, prepared)
        self._engine = make_engine(engine, program, batch_size=batch, device=index, tuning=tuning)
        self._works = [Work(self._engine.prepare(work.payloads), work.arrays) for work in works]
        self._at = 0
        for _ in range(self._engine.depth):
            self._submit()

    def _submit(self) -> None:
        self._engine.submit(self._works[self._at % len(self._works)])
        self._at += 1

    def __next__(self) -> int:
        result = self._engine.take()
        assert not result.bad
        images = result_tensor(result, self._device)
        self._submit()
        return len(images)

    def close(self) -> None:
        for _ in range(self._engine.depth):
            self._engine.discard()
        self._engine.close()


def ceiling(
    payloads: Callable[[], list[bytes]],
    batch: int,
    tuning: Tuning,
    device: torch.device,
    engine: str,
    prepared: int = PREPARED,
    decode: Decoding = "exact",
    hw_decoder_load: float = 0.0,
) -> Make:
    """The engine fed from memory."""
    held: list[bytes] = []  # the same bytes objects in every turn

    @contextmanager
    def make() -> Iterator[Steps]:
        if not held:
            held.extend(payloads())
        steps = _Ceiling(held, batch, tuning, device, engine, prepared, decode, hw_decoder_load)
        try:
            yield steps
        finally:
            steps.close()

    return make
