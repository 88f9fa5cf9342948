"""Who is measured: our loader, the ceiling above it, and torch's own loader. All crop, flip and normalize alike.

The ceiling is the same DALI graph fed from memory: the same engine with the same program and threads, given prepared
batches in turn. No reading, no screen, no draws, no second thread; what a loader loses beside it is the loader's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import Steps
from torchvision.datasets import ImageFolder
from torchvision.io import decode_image
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Shuffle, Tuning
from dali_feed.engines import Work, decodes_regions, make_engine
from dali_feed.program import Program, compile_recipe
from dali_feed.records import Source
from dali_feed.screen import screen
from dali_feed.transforms import lower

__all__ = ["Make", "ceiling", "ours", "program", "torch_loader", "transform"]

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CROP = 224
PREPARED = 64
TORCH_EPOCHS = 12  # so that the end of an epoch is not what is measured

Make = Callable[[], Any]


def transform() -> v2.Compose:
    """What everybody does to each image."""
    pixels = [v2.RandomResizedCrop(CROP, antialias=True), v2.RandomHorizontalFlip()]
    return v2.Compose([*pixels, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def program() -> Program:
    """The same as the DALI engine runs it on the CPU."""
    return compile_recipe(lower(transform()), region_decode=decodes_regions("dali", None))


class _Ours(Steps):
    def __init__(self, loader: DataLoader, beside: int | None) -> None:
        super().__init__(beside)
        self._loader = loader
        self._batches: Iterator[Any] = iter(loader)

    def __next__(self) -> int:
        try:
            images, _ = next(self._batches)
        except StopIteration:
            self._batches = iter(self._loader)
            images, _ = next(self._batches)
        return len(images)

    def close(self) -> None:
        self._loader.close()  # the feed thread's time is added when it ends
        stats = self._loader.stats()
        waits = {"read": stats.read_wait, "engine": stats.engine_wait, "trainer": stats.trainer_wait}
        notes = {"feed_us": stats.feed_cpu / stats.samples * 1e6, "slab_peak": stats.slab_peak}
        self.notes = notes | {f"{name}_wait": wait / sum(waits.values()) for name, wait in waits.items()}


def ours(
    source: Callable[[], Source],
    batch: int,
    tuning: Tuning,
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
            device="cpu",
            bad=BadRecords(limit=0),
            tuning=tuning,
        )
        steps = _Ours(loader, beside)
        try:
            yield steps
        finally:
            steps.close()

    return make


def _prepared(payloads: list[bytes], batch: int, count: int) -> list[Work]:
    rng, compiled, works = np.random.default_rng(0), program(), []
    views = [memoryview(payload) for payload in payloads]
    sizes = screen(views).sizes
    for _ in range(count):
        rows = rng.integers(0, len(views), batch)
        works.append(Work([views[k] for k in rows], compiled.parameters(sizes[rows], rows, 0, 0).arrays))
    return works


class _Ceiling(Steps):
    def __init__(self, works: list[Work], batch: int, tuning: Tuning) -> None:
        super().__init__()
        self._engine = make_engine("dali", program(), batch_size=batch, device=None, tuning=tuning)
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
        images = torch.utils.dlpack.from_dlpack(result.images)
        self._submit()
        return len(images)

    def close(self) -> None:
        for _ in range(self._engine.depth):
            self._engine.discard()
        self._engine.close()


def ceiling(payloads: Callable[[], list[bytes]], batch: int, tuning: Tuning, prepared: int = PREPARED) -> Make:
    """The DALI graph fed from memory."""
    held: list[bytes] = []  # the same bytes objects in every turn

    @contextmanager
    def make() -> Iterator[Steps]:
        if not held:
            held.extend(payloads())
        steps = _Ceiling(_prepared(held, batch, prepared), batch, tuning)
        try:
            yield steps
        finally:
            steps.close()

    return make


def _decoded(path: str) -> torch.Tensor:
    image: torch.Tensor = decode_image(path, mode="RGB")
    return image


class _Torch(Steps):
    def __init__(self, loader: Any, finish: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        super().__init__()
        self._loader, self._finish = loader, finish
        self._batches: Any = iter(loader)

    def __next__(self) -> int:
        try:
            images, _ = next(self._batches)
        except StopIteration:
            self._batches = iter(self._loader)
            images, _ = next(self._batches)
        if self._finish is not None:
            images = self._finish(images)
        return len(images)


def torch_loader(root: Path, batch: int, workers: int, *, uint8: bool) -> Make:
    """The DataLoader of torch over an ImageFolder; `uint8`: workers send uint8, this process normalizes the batch."""
    whole = transform().transforms
    inside, outside = (v2.Compose(whole[:2]), v2.Compose(whole[2:])) if uint8 else (v2.Compose(whole), None)

    @contextmanager
    def make() -> Iterator[Steps]:
        folder = ImageFolder(str(root), inside, loader=_decoded)
        loader: Any = torch.utils.data.DataLoader(
            torch.utils.data.ConcatDataset([folder] * TORCH_EPOCHS),
            batch,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            prefetch_factor=4,
        )
        steps = _Torch(loader, outside)
        try:
            yield steps
        finally:
            steps._batches._shutdown_workers()

    return make
