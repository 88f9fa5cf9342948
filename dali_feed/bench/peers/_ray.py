"""Ray Data on this machine alone: blocks of encoded images decoded by actors, batches shuffled in a buffer here."""

from __future__ import annotations

import logging
import os
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._floats import finish
from dali_feed.bench.peers._peer import Batches, Peer, by_count
from dali_feed.bench.peers._workers import ToPixels

__all__ = ["REPEATS", "TAKES_PART", "RayPeer"]

TAKES_PART = "DALI_FEED_BENCH_RAY"  # an environment variable: 1 where Ray may end this process

REPEATS = 12  # of the images in an epoch, so that its end, which takes seconds, is not what is measured
BUFFER = 1000  # images that batches are drawn from
AHEAD = 2  # batches made before they are asked for


class _Decode:
    """A block of records to one of uint8 pixels (n, 3, crop, crop)."""

    def __init__(self, column: str, crop: int) -> None:
        torch.set_num_threads(1)
        self._column, self._to_pixels = column, ToPixels(crop, floats=False)

    def __call__(self, block: dict[str, Any]) -> dict[str, NDArray[np.uint8]]:
        return {"pixels": np.stack([self._to_pixels(value).numpy() for value in block[self._column]])}


class RayPeer(Peer):
    """A Ray of this machine, begun for the turn; each epoch reads its images `REPEATS` times.

    column  of the dataset, with an encoded image in each row
    """

    package, slow = "ray", True
    column: ClassVar[str]

    def missing(self, job: Job) -> str | None:
        """As others; and not unless it was asked for, as a Ray that is begun again may end the process it runs in."""
        found = super().missing(job)
        if found is None and os.environ.get(TAKES_PART) != "1":
            return (
                f"starting Ray for each turn may end this process and lose what was measured; {TAKES_PART}=1 allows it"
            )
        return found

    @abstractmethod
    def rows(self, job: Job) -> Any:
        """A dataset of encoded images. Raises ConfigError where the job has none for it, before Ray is begun."""

    def ready(self, job: Job) -> None:
        """Raise ConfigError where the job has no images for it."""

    def ways(self, job: Job) -> Sequence[str]:
        """Processes that decode."""
        return [*by_count("actors", (job.threads, job.threads + 1))]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Batches]:
        """A cluster of one machine, which is ended."""
        self.ready(job)
        import ray

        actors = by_count("actors", (job.threads, job.threads + 1))[way]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of settings of its own
            ray.init(
                num_cpus=actors + 2,  # that read: what decodes keeps a CPU to itself
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            steps = None
            try:
                steps = self._steps(job, actors)
                yield steps
            finally:
                if steps is not None:
                    steps.epoch.close()  # while there is a Ray that hears of it
                ray.shutdown()

    def _steps(self, job: Job, actors: int) -> Batches:
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)  # it tells of each epoch
        finished, decode = finish(job), (self.column, job.crop)
        images = self.rows(job).map_batches(
            _Decode, fn_constructor_args=decode, batch_size=job.batch, compute=ray.data.ActorPoolStrategy(size=actors)
        )

        def again() -> Iterator[dict[str, NDArray[np.uint8]]]:
            batches: Any = images.iter_batches(
                batch_size=job.batch,
                drop_last=True,
                prefetch_batches=AHEAD,
                local_shuffle_buffer_size=BUFFER,
                local_shuffle_seed=job.seed,
            )
            return iter(batches)

        return Batches(again, lambda batch: finished(torch.from_numpy(batch["pixels"])))
