"""WebDataset over the job's tars: shards drawn again and again, a buffer shuffled, batches made in its workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._peer import Batches, Peer
from dali_feed.bench.peers._workers import SUFFIXES, ToPixels, from_workers, worker_ways

__all__ = ["WebDataset"]

BUFFER = 1000


class _Image(ToPixels):
    """Of a sample, its image."""

    def __call__(self, sample: dict[str, Any]) -> torch.Tensor:  # type: ignore[override]
        """One sample."""
        return super().__call__(next(sample[suffix] for suffix in SUFFIXES if suffix in sample))


class WebDataset(Peer):
    """As its users run it: resampled shards, so that an epoch has no end, and batches made in the workers."""

    name, package, modules = "webdataset", "webdataset", ("webdataset",)

    def unable(self, job: Job) -> str | None:
        """It reads tars alone."""
        return None if job.data.shards else "it reads tar shards, and the data has none; `dali-feed pack` makes them"

    def ways(self, job: Job) -> Sequence[str]:
        """Workers, and who makes floats."""
        return [*worker_ways(job)]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Batches]:
        """Workers that each read shards."""
        import webdataset as wds  # type: ignore[import-untyped]

        workers, paths = worker_ways(job)[way], list(map(str, job.data.shards))
        made = wds.WebDataset(paths, resampled=True, shardshuffle=False, seed=job.seed).shuffle(BUFFER)
        made = made.map(_Image(job.crop, floats=workers.floats))
        made = made.batched(job.batch, collation_fn=torch.stack, partial=False)
        with from_workers(workers.loader(made, job, batch_size=None), job, workers) as steps:
            yield steps
