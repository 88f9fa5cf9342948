"""Mosaic Streaming: the images written as MDS into the job's scratch, then its dataset in torch's DataLoader."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._peer import Batches, Peer, image_files
from dali_feed.bench.peers._workers import ToPixels, from_workers, worker_ways

__all__ = ["Mosaic"]

REPEATS = 12  # of the images in an epoch, so that its end is not what is measured
COLUMN = "image"


def _written(job: Job) -> Path:
    """The folder of MDS shards, made by the first turn; whole or not at all."""
    from streaming import MDSWriter

    folder = job.scratch / "mds"
    if not folder.exists():
        work = folder.with_name("mds.tmp")
        shutil.rmtree(work, ignore_errors=True)
        with MDSWriter(out=str(work), columns={COLUMN: "bytes"}) as out:
            for path in image_files(job.data.files):
                out.write({COLUMN: Path(path).read_bytes()})
        work.rename(folder)
    return folder


def _dataset(job: Job, *, floats: bool) -> Any:
    from streaming import Stream, StreamingDataset

    class Images(StreamingDataset):  # type: ignore[misc]  # its package has no types
        """The samples as its manual makes them pixels: in __getitem__, in the workers."""

        to_pixels = ToPixels(job.crop, floats=floats)

        def __getitem__(self, at: int) -> torch.Tensor:
            return self.to_pixels(super().__getitem__(at)[COLUMN])

    stream = Stream(local=str(_written(job)), repeat=REPEATS)
    return Images(streams=[stream], shuffle=True, shuffle_seed=job.seed, batch_size=job.batch)


class Mosaic(Peer):
    """StreamingDataset with shards on this machine, shuffled as it does unless told."""

    name, package, modules = "mosaic", "mosaicml-streaming", ("streaming",)

    def ways(self, job: Job) -> Sequence[str]:
        """Workers, and who makes floats."""
        return [*worker_ways(job)]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Batches]:
        """Workers, and memory that they share."""
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()  # of a turn that was ended
        workers = worker_ways(job)[way]
        dataset = _dataset(job, floats=workers.floats)
        loader = workers.loader(dataset, job, batch_size=job.batch, drop_last=True)
        try:
            with from_workers(loader, job, workers) as steps:
                yield steps
        finally:
            del loader, dataset
            clean_stale_shared_memory()
