"""SPDL over files: FFmpeg decodes, crops, scales and mirrors, in threads; CPU alone.

Its users write the crop as FFmpeg's filters. "scale" with bilinear flags is antialiased, as torchvision's resize is.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._floats import finish_each, quiet_torch, window
from dali_feed.bench.peers._peer import Batches, Peer, image_files
from dali_feed.bench.work import Memory

__all__ = ["Spdl"]

READY = 3  # batches that wait for whoever takes them
JPEG = (".jpg", ".jpeg")


@dataclass(frozen=True, slots=True)
class _Way:
    threads: int
    whole: bool  # a task makes a batch; else an image

    def __str__(self) -> str:
        return f"{'batches' if self.whole else 'images'} x{self.threads}"


def _ways(job: Job) -> dict[str, _Way]:
    counts = sorted({job.threads, job.threads + 1, 2 * job.threads})
    made = [*(_Way(count, whole=True) for count in counts), _Way(2 * job.threads, whole=False)]
    return {str(way): way for way in made}


class _Stages:
    """The stages of the pipeline: an image decoded, and a batch of them made floats while they are in the cache."""

    def __init__(self, job: Job) -> None:
        import spdl.io

        self._io, self._crop, self._memory = spdl.io, job.crop, Memory(job.batch, job.crop)
        self._jpeg = spdl.io.demux_config(format="jpeg_pipe")  # else FFmpeg finds out by reading
        self._draws = random.Random(job.seed)

    def decode(self, file: str) -> Any:
        """One image, cropped."""
        jpeg = self._jpeg if file.lower().endswith(JPEG) else None
        packets, crop = self._io.demux_image(file, demux_config=jpeg), self._crop
        y, x, h, w = window(self._draws, packets.height, packets.width)
        filters = f"crop={w}:{h}:{x}:{y}:exact=1,scale={crop}:{crop}:flags=bilinear,format=rgb24"
        mirrored = ",hflip" if self._draws.random() < 0.5 else ""
        return self._io.decode_packets(packets, filter_desc=filters + mirrored)

    def batch(self, frames: Iterator[Any]) -> torch.Tensor:
        """All images of a batch."""
        buffers = map(self._io.convert_frames, frames)
        return finish_each(self._memory, (self._io.to_torch(buffer).permute(2, 0, 1) for buffer in buffers))

    def whole(self, files: list[str]) -> torch.Tensor:
        """A batch, from files to floats."""
        return self.batch(map(self.decode, files))


def _lists(files: list[str], job: Job) -> Iterator[list[str]]:
    """Files in random order, epoch after epoch, a batch at a time."""
    draws = random.Random(job.seed)
    line = itertools.chain.from_iterable(draws.sample(files, len(files)) for _ in itertools.count())
    while True:
        yield list(itertools.islice(line, job.batch))


class Spdl(Peer):
    """SPDL's pipeline, a task per batch or per image, in the order they are done."""

    name, package, modules = "spdl", "spdl-io", ("spdl.io", "spdl.pipeline")

    def unable(self, job: Job) -> str | None:
        """FFmpeg's libraries are found when an image is decoded."""
        if job.device != "cpu":
            return "on a GPU it cannot be measured: SPDL's wheels have no nvJPEG, and decode on the CPU only"
        import spdl.io

        try:
            spdl.io.load_image(image_files(job.data.files)[0])
        except (RuntimeError, OSError) as error:
            return f"spdl needs FFmpeg's shared libraries; on Debian: apt install ffmpeg ({str(error)[:200]})"
        return None

    def ways(self, job: Job) -> Sequence[str]:
        """Threads, and what a task is."""
        return [*_ways(job)]

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Batches]:
        """Threads, which end with the pipeline."""
        from spdl.pipeline import PipelineBuilder

        chosen, stages, builder = _ways(job)[way], _Stages(job), PipelineBuilder()
        builder.add_source(_lists(image_files(job.data.files), job))
        if chosen.whole:
            builder.pipe(stages.whole, concurrency=chosen.threads)
        else:
            images = builder.disaggregate().pipe(stages.decode, concurrency=chosen.threads)
            images.aggregate(job.batch).pipe(stages.batch)
        builder.add_sink(READY)
        with quiet_torch():
            pipeline = builder.build(num_threads=chosen.threads, max_failures=0)
            with pipeline.auto_stop():
                yield Batches(lambda: iter(pipeline), lambda batch: batch)
