"""Our loader as a contestant: over tar shards, over a folder of files, over a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import thread_time
from typing import Any, Literal

import torch

from dali_feed.bench.contract import Data, Job, Steps
from dali_feed.bench.one_way import OneWay
from dali_feed.bench.since import since
from dali_feed.bench.told import told_of
from dali_feed.bench.turns import Make
from dali_feed.bench.work import CROP, transform
from dali_feed.external_sources import FileList, KafkaTopic, ShardSet
from dali_feed.loader import DataLoader
from dali_feed.options import BadRecords, Decode, Tuning
from dali_feed.plan import Shuffle
from dali_feed.records.source import Source

__all__ = ["Ours", "ours"]

KAFKA_SHUFFLE = Shuffle(window=2)  # 64 MB read at a time: with the usual 256 a turn sees too few windows


class _Timed:
    """DALI's pipeline object, with the CPU time that its own Run and Outputs take of the thread that calls them."""

    def __init__(self, pipe: Any) -> None:
        self._pipe, self.spent = pipe, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def _counted(self, call: Callable[..., Any], *args: object) -> Any:
        begun = thread_time()
        try:
            return call(*args)
        finally:
            self.spent += thread_time() - begun

    def Run(self) -> None:  # noqa: N802  DALI's name
        """Start a batch."""
        self._counted(self._pipe.Run)

    def Outputs(self, stream: object) -> Any:  # noqa: N802  DALI's name
        """Wait for a batch."""
        return self._counted(self._pipe.Outputs, stream)


class _Ours(Steps):
    def __init__(self, loader: DataLoader, beside: int | None) -> None:
        self.beside, self._loader, self._before = beside, loader, loader.stats()
        self._batches: Iterator[Any] = iter(loader)
        feed: Any = loader._feed
        main = getattr(feed._machine.engine, "_main", None)
        self._timed = None if main is None else _Timed(main._pipe)
        if main is not None:
            main._pipe = self._timed

    def begins(self) -> None:
        self._before = self._loader.stats()

    def __next__(self) -> int:
        try:
            images, _ = next(self._batches)
        except StopIteration:
            self._batches = iter(self._loader)
            images, _ = next(self._batches)
        return self.kept(images)

    def close(self) -> None:
        self._loader.close()  # the feed thread's time is added when it ends
        stats = self._loader.stats()
        per_sample = 1e6 / max(1, stats.samples)
        notes = {"feed_us": stats.feed_cpu * per_sample, "slab_peak": stats.slab_peak}
        notes["own_us"] = (stats.feed_cpu - (self._timed.spent if self._timed else 0)) * per_sample
        notes |= {"read_wait": stats.read_wait, "engine_wait": stats.engine_wait, "trainer_wait": stats.trainer_wait}
        self.notes, self.told = notes, told_of(since(self._before, stats))


def ours(
    source: Callable[[], Source],
    batch: int,
    tuning: Tuning,
    device: torch.device,
    engine: str | None,
    *,
    shuffle: bool | Shuffle = True,
    beside: int | None = None,
    crop: int = CROP,
) -> Make:
    """Our loader; `beside` is the broker's process, where it is on this machine."""

    @contextmanager
    def make() -> Iterator[Steps]:
        loader = DataLoader(
            source(),
            batch,
            shuffle=shuffle,
            drop_last=True,
            transform=transform(crop),
            device=device,
            decode=Decode(engine=engine),
            bad=BadRecords(limit=0),
            tuning=tuning,
        )
        steps = _Ours(loader, beside)
        try:
            yield steps
        finally:
            steps.close()

    return make


@dataclass(frozen=True, slots=True)
class Ours(OneWay):
    """Our loader. `reads`: "tar", "folder" or "kafka"; it is the contestant's name too."""

    reads: Literal["tar", "folder", "kafka"]
    engine: str | None = None

    @property
    def name(self) -> str:
        """As a table says it."""
        return self.reads

    def missing(self, job: Job) -> str | None:
        """Why the data is not there in this form."""
        if self.reads == "kafka" and job.data.topic is None:
            return "this data is not in a topic; `dali-feed bench kafka` measures one"
        return None

    def turn(self, job: Job, way: str) -> AbstractContextManager[Steps]:
        """A new loader."""
        topic, shuffle = job.data.topic, KAFKA_SHUFFLE if self.reads == "kafka" else True
        make = ours(
            lambda: self._source(job.data),
            job.batch,
            Tuning(threads=job.threads),
            torch.device(job.device),
            self.engine,
            shuffle=shuffle,
            beside=topic.pid if topic and self.reads == "kafka" else None,
            crop=job.crop,
        )
        return make()

    def _source(self, data: Data) -> Source:
        if self.reads == "kafka" and data.topic is not None:
            return KafkaTopic(data.topic.name, data.topic.servers)
        if self.reads == "folder":
            return FileList.from_folder(data.files)
        return ShardSet([str(path) for path in data.linked or data.shards])
