"""LitData: the images written by its `optimize` into the job's scratch, then its StreamingDataLoader."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._peer import Batches, Peer, image_files
from dali_feed.bench.peers._workers import ToPixels, from_workers, worker_ways
from dali_feed.errors import EngineError

__all__ = ["LitData"]

CHUNK = "64MB"  # its manual's size


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


class _First(ToPixels):
    """Of the samples of several datasets, that of the first."""

    def __call__(self, samples: tuple[bytes, ...]) -> torch.Tensor:  # type: ignore[override]
        """One sample."""
        return super().__call__(samples[0])


def _write(files: list[str], scratch: Path, folder: Path, workers: int) -> None:
    """In a process of its own: `optimize` prints, and leaves threads of its queues behind."""
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(scratch / "litdata.cache")  # else both under /tmp
    os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = str(scratch / "litdata.data")
    import litdata

    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    litdata.optimize(
        _read, files, str(folder), chunk_bytes=CHUNK, num_workers=workers, start_method="fork", verbose=False
    )


def _written(job: Job) -> Path:
    """The folder of its chunks, made by the first turn; whole or not at all."""
    folder = job.scratch / "litdata"
    if not folder.exists():
        work = folder.with_name("litdata.tmp")
        shutil.rmtree(work, ignore_errors=True)
        told = (image_files(job.data.files), job.scratch, work, job.threads)
        process = multiprocessing.get_context("fork").Process(target=_write, args=told)
        process.start()
        process.join()
        if process.exitcode:
            msg = f"litdata.optimize of {job.data.name} into {work} must exit with 0; found {process.exitcode}"
            raise EngineError(msg)
        work.rename(folder)
    return folder


class LitData(Peer):
    """StreamingDataset with chunks on this machine, shuffled."""

    name, package, modules = "litdata", "litdata", ("litdata",)

    def ways(self, job: Job) -> Sequence[str]:
        """Workers, and who makes floats."""
        return [*worker_ways(job)]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Batches]:
        """Workers, each with a thread that fetches chunks."""
        folder, workers = str(_written(job)), worker_ways(job)[way]
        import litdata

        images: Any = litdata.StreamingDataset(folder, shuffle=True, drop_last=True, seed=job.seed)
        images = litdata.ParallelStreamingDataset(
            [images], length=float("inf"), transform=_First(job.crop, floats=workers.floats), seed=job.seed
        )
        loader = workers.loader(images, job, litdata.StreamingDataLoader, batch_size=job.batch)
        with from_workers(loader, job, workers) as steps:
            yield steps
