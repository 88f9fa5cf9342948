"""Other loaders over the same images as files, each at its best on the CPU: SPDL, DALI's reader.

Who is best at what differs by machine, so each has ways (threads, who makes floats), and the bench keeps the fastest.
All crop, flip and normalize as we do, with the pixels of their own decoders and antialiased resizes. SPDL gets
`Memory` for its floats and one thread for torch's operations, which a user would have to think of. LOG.md has what else
was tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvidia.dali import Pipeline, fn, types

from dali_feed.bench.contract import Steps
from dali_feed.bench.photos import HEIGHT, WIDTH
from dali_feed.bench.turns import Make
from dali_feed.bench.work import CROP, MEAN, STD, Memory, cuda_index, one_torch_thread, to_float, transform
from dali_feed.compiler.host import compile_host
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower

__all__ = ["dali_reader", "spdl_loader", "spdl_missing"]

SPDL_READY = 3  # batches that wait for whoever takes them

Job = tuple[str, str]  # a file, and FFmpeg's filters for it


def spdl_missing(file: str) -> str | None:
    """Why SPDL cannot be measured, found out by loading `file`."""
    try:
        import spdl.io
        import spdl.pipeline

        spdl.io.load_image(file)
    except ImportError as error:
        return f"no SPDL ({error}); pip install 'spdl>=0.8'"
    except RuntimeError as error:
        return f"SPDL needs FFmpeg's shared libraries (Debian: apt install ffmpeg): {str(error)[:200]}"
    return None


def _jobs(files: list[str]) -> Iterator[Job]:
    """Files in random order, epoch after epoch, each with a window of RandomResizedCrop drawn anew."""
    program, rng = compile_host(lower(transform())), np.random.default_rng(0)
    sizes = np.tile(np.array([[HEIGHT, WIDTH]], np.int32), (len(files), 1))
    for epoch in itertools.count():
        order = rng.permutation(len(files))
        drawn = program.parameters(sizes, order, 0, epoch).arrays
        lines = zip(order.tolist(), drawn[Key("window")].tolist(), drawn[Key("flip1")].tolist(), strict=True)
        for k, (y, x, h, w), mirrored in lines:
            filters = f"crop={w}:{h}:{x}:{y}:exact=1,scale={CROP}:{CROP}:flags=bilinear,format=rgb24"
            yield files[k], filters + (",hflip" if mirrored else "")


def _in_batches(jobs: Iterator[Job], batch: int) -> Iterator[list[Job]]:
    while True:
        yield list(itertools.islice(jobs, batch))


class _Spdl:
    """The stages: FFmpeg decodes, crops, scales and mirrors; the pixels go to floats while they are in the cache."""

    def __init__(self, batch: int) -> None:
        import spdl.io

        self._io, self._memory = spdl.io, Memory(batch)
        self._format = spdl.io.demux_config(format="jpeg_pipe")  # else FFmpeg finds out by reading

    def decode(self, job: Job) -> Any:
        """One image."""
        file, filters = job
        return self._io.decode_packets(self._io.demux_image(file, demux_config=self._format), filter_desc=filters)

    def batch(self, frames: Iterator[Any]) -> torch.Tensor:
        """All images of a batch, made floats."""
        out = self._memory.take()
        for frame, to in zip(frames, out, strict=True):
            to_float(self._io.to_torch(self._io.convert_frames(frame)).permute(2, 0, 1), to)
        return out

    def whole(self, jobs: list[Job]) -> torch.Tensor:
        """A batch, from file to floats."""
        return self.batch(map(self.decode, jobs))


class _Iterated(Steps):
    def __init__(self, batches: Iterator[torch.Tensor]) -> None:
        self._batches = batches

    def __next__(self) -> int:
        return len(next(self._batches))


def spdl_loader(files: list[str], batch: int, threads: int, *, whole: bool) -> Make:
    """SPDL's pipeline, a task per image or (`whole`) per batch, in the order they are done."""

    @contextmanager
    def make() -> Iterator[Steps]:
        from spdl.pipeline import PipelineBuilder

        stages, builder = _Spdl(batch), PipelineBuilder()
        builder.add_source(_in_batches(_jobs(files), batch))
        if whole:
            builder.pipe(stages.whole, concurrency=threads)
        else:
            builder.disaggregate().pipe(stages.decode, concurrency=threads).aggregate(batch).pipe(stages.batch)
        builder.add_sink(SPDL_READY)
        with one_torch_thread():
            pipeline = builder.build(num_threads=threads, max_failures=0)
            with pipeline.auto_stop():
                yield _Iterated(iter(pipeline))

    return make


def _read_by_dali(root: Path, device: str, *, whole: bool) -> Any:
    encoded, _ = fn.readers.file(file_root=str(root), random_shuffle=True)
    crop: dict[str, Any] = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3]}
    resize: dict[str, Any] = {"size": [CROP, CROP], "interp_type": types.INTERP_LINEAR, "antialias": True}
    if whole:
        images = fn.random_resized_crop(fn.decoders.image(encoded, device=device), **crop, **resize)
    else:
        images = fn.resize(fn.decoders.image_random_crop(encoded, device=device, **crop), **resize)
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[255 * mean for mean in MEAN],
        std=[255 * std for std in STD],
        mirror=fn.random.coin_flip(probability=0.5),
    )


def dali_reader(root: Path, batch: int, threads: int, device: torch.device, *, whole: bool = False) -> Make:
    """DALI's own graph from files to floats, on the CPU or with its mixed decoder; `whole`: of whole images."""
    on_gpu = device.type == "cuda"

    def batches(pipe: Any) -> Iterator[torch.Tensor]:
        while True:
            (images,) = pipe.run(cuda_stream=torch.cuda.current_stream(device)) if on_gpu else pipe.run()
            yield torch.utils.dlpack.from_dlpack(images.as_tensor())

    @contextmanager
    def make() -> Iterator[Steps]:
        pipe = Pipeline(
            batch_size=batch,
            num_threads=threads,
            device_id=cuda_index(device),
            prefetch_queue_depth=2,
            exec_dynamic=True,  # its outputs are the taker's, so nothing is copied
            seed=0,
        )
        with pipe:
            pipe.set_outputs(_read_by_dali(root, "mixed" if on_gpu else "cpu", whole=whole))
        pipe.build()
        yield _Iterated(batches(pipe))

    return make
