"""Hugging Face datasets: the folder as a table of files, or the tars as a stream, in torch's DataLoader."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._peer import Batches, Peer
from dali_feed.bench.peers._workers import SUFFIXES, ToPixels, Workers, from_workers, worker_ways

__all__ = ["Datasets"]

REPEATS = 12  # of the images in an epoch, so that its end is not what is measured
BUFFER = 1000


class _Rows(ToPixels):
    """A transform as `with_transform` and `map` take it: of a batch of rows, the images."""

    def __init__(self, column: str, crop: int, *, floats: bool) -> None:
        super().__init__(crop, floats=floats)
        self._column = column

    def __call__(self, rows: dict[str, list[Any]]) -> dict[str, list[torch.Tensor]]:  # type: ignore[override]
        """Rows of undecoded images: each has its bytes, or a path."""
        files = (each["bytes"] or Path(each["path"]).read_bytes() for each in rows[self._column])
        return {"pixels": [super(_Rows, self).__call__(file) for file in files]}


@dataclass(frozen=True, slots=True)
class _Way:
    workers: Workers
    tars: bool

    def __str__(self) -> str:
        return f"{'tars' if self.tars else 'files'} {self.workers}"


def _ways(job: Job) -> dict[str, _Way]:
    tars = (False, True) if job.data.shards else (False,)
    made = []
    for streamed, workers in itertools.product(tars, worker_ways(job).values()):
        if not streamed or workers.count <= len(job.data.shards):  # each worker streams shards of its own
            made.append(_Way(workers, streamed))
    return {str(way): way for way in made}


def _files(job: Job, *, floats: bool) -> Any:
    """A table of paths; images are decoded as they are asked for."""
    import datasets

    options = {"data_dir": str(job.data.files), "cache_dir": str(job.scratch / "datasets")}
    table = datasets.load_dataset("imagefolder", split="train", **options)
    table = table.cast_column("image", datasets.Image(decode=False))
    return table.repeat(REPEATS).with_transform(_Rows("image", job.crop, floats=floats))


def _tars(job: Job, *, floats: bool) -> Any:
    """A stream of the tars' samples."""
    import datasets

    options = {"data_files": [*map(str, job.data.shards)], "cache_dir": str(job.scratch / "datasets")}
    stream = datasets.load_dataset("webdataset", split="train", streaming=True, **options)
    column = next(name for name in SUFFIXES if name in stream.features)
    stream = stream.cast_column(column, datasets.Image(decode=False)).repeat(None)
    stream = stream.shuffle(seed=job.seed, buffer_size=BUFFER)
    rows = _Rows(column, job.crop, floats=floats)
    return stream.map(rows, batched=True, batch_size=8, remove_columns=stream.column_names)


def _images(batch: Any) -> torch.Tensor:
    images: torch.Tensor = batch["pixels"]
    return images


class Datasets(Peer):
    """`imagefolder` and `webdataset`, the two of its builders that read images as they lie there."""

    name, package, modules = "datasets", "datasets", ("datasets",)

    def ways(self, job: Job) -> Sequence[str]:
        """Which builder, workers, and who makes floats."""
        return [*_ways(job)]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Batches]:
        """Workers of torch's DataLoader."""
        chosen = _ways(job)[way]
        import datasets

        datasets.disable_progress_bars()
        make = _tars if chosen.tars else _files
        options: dict[str, Any] = {} if chosen.tars else {"shuffle": True}
        loader = chosen.workers.loader(
            make(job, floats=chosen.workers.floats), job, batch_size=job.batch, drop_last=True, **options
        )
        with from_workers(loader, job, chosen.workers, _images) as steps:
            yield steps
