"""Records of a topic read by hand: an IterableDataset whose workers share out the partitions, as people write it."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch

from dali_feed.bench.contract import Job, Topic
from dali_feed.bench.peers._peer import Batches, Peer
from dali_feed.bench.peers._workers import ToPixels, from_workers, worker_ways
from dali_feed.errors import ConfigError

__all__ = ["NO_TOPIC", "KafkaPeer", "Records", "topic_of"]

NO_TOPIC = "it reads a topic, and this data is not in one; `dali-feed produce` writes it into one"
BUFFER = 1000  # records that a worker draws from: within a partition they come in their order


def topic_of(job: Job) -> Topic:
    """The job's topic, which `KafkaPeer.unable` has asked for."""
    if job.data.topic is None:
        raise ConfigError(NO_TOPIC)
    return job.data.topic


class Records(torch.utils.data.IterableDataset[torch.Tensor]):
    """Images of a topic without end, from its start again and again, each worker with partitions of its own."""

    def __init__(self, topic: Topic, to_pixels: ToPixels, seed: int) -> None:
        self._topic, self._to_pixels, self._seed = topic, to_pixels, seed

    @abstractmethod
    def values(self, topic: Topic, worker: int, workers: int) -> Iterator[bytes]:
        """The values of the partitions of one worker, from their start again and again; none where it has none."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        draws = random.Random(self._seed * workers + worker)
        return map(self._to_pixels, _shuffled(self.values(self._topic, worker, workers), draws))


def _shuffled(values: Iterable[bytes], draws: random.Random) -> Iterator[bytes]:
    """In an order drawn from a buffer."""
    line = iter(values)
    held = list(islice(line, BUFFER))
    for value in line:
        k = draws.randrange(len(held))
        held[k], value = value, held[k]  # noqa: PLW2901  the one that stood there leaves
        yield value
    draws.shuffle(held)
    yield from held


class KafkaPeer(Peer):
    """A client of Kafka in the workers of torch's DataLoader."""

    records: type[Records]

    def unable(self, job: Job) -> str | None:
        """It reads topics alone."""
        return None if job.data.topic else NO_TOPIC

    def ways(self, job: Job) -> Sequence[str]:
        """Workers, and who makes floats."""
        return [*worker_ways(job)]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Batches]:
        """Workers, each with a consumer."""
        workers = worker_ways(job)[way]
        records = self.records(topic_of(job), ToPixels(job.crop, floats=workers.floats), job.seed)
        with from_workers(workers.loader(records, job, batch_size=job.batch), job, workers) as steps:
            yield steps
