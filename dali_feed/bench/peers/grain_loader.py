"""Grain over files: its MapDataset in threads of this process, or in processes that share memory with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional as F

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._floats import decoded, finish, quiet_torch, window
from dali_feed.bench.peers._peer import Batches, Peer, by_count, image_files

__all__ = ["Grain"]

AHEAD = 4  # batches in its buffer


class _ToPixels:
    """A path to uint8 (3, crop, crop), with draws of the generator that Grain gives each sample."""

    def __init__(self, crop: int) -> None:
        self._size = [crop, crop]

    def __call__(self, path: str, draws: np.random.Generator) -> NDArray[np.uint8]:
        image = decoded(Path(path).read_bytes())
        image = F.resized_crop(image, *window(draws, *image.shape[1:]), self._size, antialias=True)
        image = F.horizontal_flip(image) if draws.random() < 0.5 else image
        pixels: NDArray[np.uint8] = image.numpy()
        return pixels


def _begun(_worker: int, _workers: int) -> None:
    """In a new process: with more threads torch's wait for each other on the cores of the other processes."""
    torch.set_num_threads(1)


class Grain(Peer):
    """Shuffled and repeated without end; batches are uint8, and this process makes them floats."""

    name, package, modules = "grain", "grain", ("grain",)

    def ways(self, job: Job) -> Sequence[str]:
        """Threads or processes."""
        counts = (job.threads, job.threads + 1)
        return [*by_count("threads", counts), *by_count("processes", counts)]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Batches]:
        """Threads, or processes that end with the iterator."""
        import grain

        counts, finished = (job.threads, job.threads + 1), finish(job)
        images = grain.MapDataset.source(image_files(job.data.files)).seed(job.seed).shuffle().repeat()
        images = images.random_map(_ToPixels(job.crop))
        threads, processes = by_count("threads", counts).get(way, 0), by_count("processes", counts).get(way, 0)
        options = grain.ReadOptions(num_threads=threads or 1, prefetch_buffer_size=AHEAD * job.batch)
        batches: Any = images.to_iter_dataset(options).batch(job.batch, drop_remainder=True)
        if processes:
            batches = batches.mp_prefetch(grain.MultiprocessingOptions(processes, AHEAD), _begun)
        with quiet_torch():
            steps = Batches(lambda: iter(batches), lambda batch: finished(torch.from_numpy(batch)))
            try:
                yield steps
            finally:
                steps.epoch.close()
