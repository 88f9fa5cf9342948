"""Loaders whose batches come from torch's DataLoader: how many workers, and who makes floats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._floats import decoded, finish, pixels, quiet_torch
from dali_feed.bench.peers._peer import Batches
from dali_feed.bench.work import transform

__all__ = ["SUFFIXES", "ToPixels", "Workers", "from_workers", "worker_ways"]

SUFFIXES = ("jpg", "jpeg", "png", "webp", "JPEG", "JPG")  # of images in tars
AHEAD = 4  # batches that each worker has made before they are asked for


@dataclass(frozen=True, slots=True)
class Workers:
    """A way: `count` processes; with `floats` they do all, else they send uint8 and this process normalizes."""

    count: int
    floats: bool

    def __str__(self) -> str:
        return f"{'all' if self.floats else 'uint8'} x{self.count}"

    def loader(self, dataset: Any, job: Job, made_by: Any = None, **options: Any) -> Any:
        """Torch's DataLoader, or one derived from it, with what is best for all."""
        asked: dict[str, Any] = {
            "prefetch_factor": AHEAD,
            "persistent_workers": True,
            "multiprocessing_context": "fork",
        } | options
        kind = made_by or torch.utils.data.DataLoader
        with quiet_torch():
            return kind(dataset, num_workers=self.count, pin_memory=job.device != "cpu", **asked)


def worker_ways(job: Job) -> dict[str, Workers]:
    """As many workers as the job has threads, or one more; where workers make floats, which seldom pays, as many."""
    made = [
        Workers(job.threads, floats=False),
        Workers(job.threads + 1, floats=False),
        Workers(job.threads, floats=True),
    ]
    return {str(way): way for way in made}


class ToPixels:
    """A worker's part: an encoded image to uint8 (3, crop, crop), or to normalized floats; made in any process."""

    def __init__(self, crop: int, *, floats: bool) -> None:
        self._transform = transform(crop) if floats else pixels(crop)

    def __call__(self, file: bytes) -> torch.Tensor:
        """One image."""
        image: torch.Tensor = self._transform(decoded(file))
        return image


@contextmanager
def from_workers(
    loader: Any, job: Job, way: Workers, images: Callable[[Any], torch.Tensor] = lambda batch: batch
) -> Iterator[Batches]:
    """Steps over the loader's epochs; `images` finds the images in one of its batches."""
    device, finished = torch.device(job.device), finish(job)

    def made(batch: Any) -> torch.Tensor:
        found = images(batch)
        return found.to(device, non_blocking=True) if way.floats else finished(found)

    with quiet_torch():
        steps = Batches(lambda: iter(loader), made)
        try:
            yield steps
        finally:
            workers: tuple[Any, ...] = (getattr(loader, "_iterator", None), steps.epoch)
            for each in workers:  # workers that last belong to the first
                if hasattr(each, "_shutdown_workers"):
                    each._shutdown_workers()
