"""DALI's graph from encoded images to floats, which its reader and its external source share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._peer import Batches, Peer, version_of
from dali_feed.bench.work import MEAN, STD, cuda_index

__all__ = ["DaliPeer", "Graph", "graph_ways", "pipeline", "run_graph"]


@dataclass(frozen=True, slots=True)
class Graph:
    """A way: DALI's threads; `whole`: whole images are decoded and cropped then, else the crop's window alone."""

    threads: int
    whole: bool = False

    def __str__(self) -> str:
        return f"{'whole ' if self.whole else ''}x{self.threads}"

    def made(self, encoded: Any, job: Job) -> Any:
        """Encoded images to floats, as DALI's examples write it."""
        from nvidia.dali import fn, types

        device = "cpu" if job.device == "cpu" else "mixed"
        crop: dict[str, Any] = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3]}
        resize: dict[str, Any] = {"size": [job.crop] * 2, "interp_type": types.INTERP_LINEAR, "antialias": True}
        if self.whole:
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


def graph_ways(job: Job) -> dict[str, Graph]:
    """Threads; on a GPU whole images, as its decoder may end the process on windows of JPEGs."""
    whole = cuda_index(torch.device(job.device)) is not None
    made = (Graph(job.threads + more, whole) for more in (0, 1))
    return {str(graph): graph for graph in made}


@contextmanager
def run_graph(pipe: Any, output: Any, job: Job) -> Iterator[Batches]:
    """Steps over what the pipeline gives, which is handed over without a copy."""
    device = torch.device(job.device)
    on_gpu = device.type == "cuda"

    def batches() -> Iterator[torch.Tensor]:
        while True:
            (images,) = pipe.run(cuda_stream=torch.cuda.current_stream(device)) if on_gpu else pipe.run()
            yield torch.utils.dlpack.from_dlpack(images.as_tensor())

    pipe.set_outputs(output)
    pipe.build()
    steps = Batches(batches, lambda batch: batch)
    try:
        yield steps
    finally:
        steps.epoch.close()
        pipe._shutdown()  # its threads end now, whoever holds it


def pipeline(job: Job, threads: int, **options: Any) -> Any:
    """DALI's pipeline, empty."""
    from nvidia.dali import Pipeline

    return Pipeline(
        batch_size=job.batch,
        num_threads=threads,
        device_id=cuda_index(torch.device(job.device)),
        prefetch_queue_depth=2,
        exec_dynamic=True,  # its outputs are the taker's, so nothing is copied
        seed=job.seed,
        **options,
    )


class DaliPeer(Peer):
    """One of DALI's own ways in; its package is another for each CUDA."""

    package, modules, install = "nvidia-dali-cuda120", ("nvidia.dali",), "pip install 'dali-feed[cuda12]'"

    @property
    def version(self) -> str:
        """Of DALI for CUDA 12, or 13."""
        return super().version or version_of("nvidia-dali-cuda130")
