"""SPDL and LitData beside ours: `dali-feed bench loader --beside examples/other_loaders.py:spdl`, and `:litdata`.

Each function gets the bench's job and gives batches, float32 (n, 3, crop, crop), without end. SPDL needs `pip install
spdl spdl-io` and FFmpeg's shared libraries (on Debian `apt install ffmpeg`), LitData `pip install litdata`.
"""

from __future__ import annotations

import importlib
import io
import itertools
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torchvision.transforms import v2

if TYPE_CHECKING:
    from dali_feed.bench.data import BenchJob

READY = 3  # batches that wait for whoever takes them
CHUNK = "64MB"  # of LitData's files, as its manual has it
NORMALIZE = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]


def files_of(job: BenchJob) -> list[str]:
    """The images, in the order of their names."""
    return sorted(map(str, Path(job.data.files).glob("*/*")))


def spdl(job: BenchJob) -> Iterator[torch.Tensor]:
    """FFmpeg decodes, crops, scales and mirrors: a task makes a batch, in as many threads as the job has."""
    spdl_io: Any = importlib.import_module("spdl.io")
    builder: Any = importlib.import_module("spdl.pipeline").PipelineBuilder()

    draws, finish = random.Random(job.seed), v2.Compose(NORMALIZE)
    files = files_of(job)

    def one(file: str) -> Any:
        packets = spdl_io.demux_image(file)
        y, x, h, w = v2.RandomResizedCrop.get_params(
            torch.empty(3, packets.height, packets.width), (0.08, 1), (3 / 4, 4 / 3)
        )
        mirrored = ",hflip" if draws.random() < 0.5 else ""
        filters = f"crop={w}:{h}:{x}:{y}:exact=1,scale={job.crop}:{job.crop}:flags=bilinear,format=rgb24{mirrored}"
        frames = spdl_io.decode_packets(packets, filter_desc=filters)
        return spdl_io.to_torch(spdl_io.convert_frames(frames)).permute(2, 0, 1)

    def batch(some: list[str]) -> Any:
        return finish(torch.stack([one(file) for file in some]))

    def lists() -> Iterator[list[str]]:
        line = itertools.chain.from_iterable(draws.sample(files, len(files)) for _ in itertools.count())
        while True:
            yield list(itertools.islice(line, job.batch))

    builder.add_source(lists()).pipe(batch, concurrency=job.threads).add_sink(READY)
    pipeline = builder.build(num_threads=job.threads, max_failures=0)
    with pipeline.auto_stop(timeout=60):  # else it waits 6 s for a batch under way, and raises
        yield from pipeline


class _ToFloats:
    """An encoded image to (3, crop, crop)."""

    def __init__(self, crop: int) -> None:
        self._transform = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(crop), v2.RandomHorizontalFlip(), *NORMALIZE])

    def __call__(self, payload: bytes) -> Any:
        return self._transform(Image.open(io.BytesIO(payload)).convert("RGB"))


def litdata(job: BenchJob) -> Iterator[torch.Tensor]:
    """Its `optimize` writes the images into chunks of its own; then its loader reads them, in worker processes."""
    lit: Any = importlib.import_module("litdata")

    with tempfile.TemporaryDirectory() as folder:
        how = {"chunk_bytes": CHUNK, "num_workers": job.threads, "start_method": "fork", "verbose": False}
        lit.optimize(_read, files_of(job), folder, **how)
        images = lit.StreamingDataset(
            folder, shuffle=True, drop_last=True, seed=job.seed, transform=_ToFloats(job.crop)
        )
        while True:
            yield from lit.StreamingDataLoader(images, batch_size=job.batch, num_workers=job.threads)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()
