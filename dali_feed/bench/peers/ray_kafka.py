"""Ray Data's read_kafka: a task for each partition, decoding mapped over blocks, batches shuffled in a buffer here."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._floats import finish
from dali_feed.bench.peers._kafka import NO_TOPIC, topic_of
from dali_feed.bench.peers._peer import Batches, Peer, by_count
from dali_feed.bench.peers._workers import ToPixels

__all__ = ["RayKafka"]

TIMEOUT = 60_000  # milliseconds that a read task may take
BUFFER = 1000  # images that batches are drawn from
AHEAD = 2  # batches made before they are asked for


class _Decode:
    """A block of records to one of uint8 pixels (n, 3, crop, crop)."""

    def __init__(self, crop: int) -> None:
        torch.set_num_threads(1)
        self._to_pixels = ToPixels(crop, floats=False)

    def __call__(self, block: dict[str, Any]) -> dict[str, NDArray[np.uint8]]:
        return {"pixels": np.stack([self._to_pixels(value).numpy() for value in block["value"]])}


def _steps(job: Job, actors: int) -> Batches:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    topic, finished = topic_of(job), finish(job)
    records = ray.data.read_kafka(topic.name, bootstrap_servers=topic.servers, timeout_ms=TIMEOUT)
    images = records.map_batches(_Decode, fn_constructor_args=(job.crop,), batch_size=job.batch, concurrency=actors)

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


class RayKafka(Peer):
    """A Ray of this machine alone, begun for the turn; each epoch reads the topic once."""

    name, package, modules = "ray-data", "ray", ("ray.data", "confluent_kafka")

    def unable(self, job: Job) -> str | None:
        """It reads topics alone."""
        return None if job.data.topic else NO_TOPIC

    def ways(self, job: Job) -> Sequence[str]:
        """Processes that decode."""
        return [*by_count("actors", (job.threads, job.threads + 1))]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Batches]:
        """A cluster of one machine, which is ended."""
        topic_of(job)  # before anything is begun
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
            try:
                steps = _steps(job, actors)
                try:
                    yield steps
                finally:
                    steps.epoch.close()  # it has a thread, which must end before what it asks for batches
            finally:
                ray.shutdown()
