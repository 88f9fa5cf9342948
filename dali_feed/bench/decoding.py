"""`dali-feed bench decode`: images per second of decoding alone, out of memory: nothing is resized or normalized.

Cases are numbers of threads. Images are decoded "whole", or the "windows" that RandomResizedCrop draws, as the host
engine does; who takes windows stands beside itself with whole images.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.bench.data import BenchJob, payloads_of
from dali_feed.bench.ours import Task, cuda_index, decoders, draw_windows, pooled
from dali_feed.bench.runner import Called, Contestant, Opens, Steps, installed

UNIT = "images"
SHOWN = ["case", "who", "images/s", "least", "most", "of it", "cpu us", "busy"]
BATCHES = 16  # prepared


def _pillow(payloads: Sequence[bytes]) -> Task:
    from PIL import Image

    def task(_: None, rows: NDArray[np.int64], number: int) -> Sized:  # noqa: ARG001
        for row in rows.tolist():
            Image.open(BytesIO(payloads[row])).convert("RGB").load()
        return rows

    return task


def _torchvision(payloads: Sequence[bytes]) -> Task:
    from torchvision.io import ImageReadMode, decode_image

    raw = [torch.frombuffer(bytearray(payload), dtype=torch.uint8) for payload in payloads]

    def task(_: None, rows: NDArray[np.int64], number: int) -> Sized:  # noqa: ARG001
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The image decoding", category=DeprecationWarning)  # to come
            for row in rows.tolist():
                decode_image(raw[row], mode=ImageReadMode.RGB)
        return rows

    return task


def _dali(job: BenchJob, payloads: Sequence[bytes], windows: NDArray[np.int32] | None, threads: int) -> Opens:
    """DALI's decoder, on the CPU or mixed."""
    index = cuda_index(job.device)

    @contextmanager
    def opens(_: str) -> Iterator[Steps]:
        from nvidia.dali import Pipeline, fn, types

        raw = [np.frombuffer(payload, np.uint8) for payload in payloads]
        dealt = np.random.default_rng(0).integers(0, len(raw), (BATCHES, job.batch))
        pipe = Pipeline(job.batch, threads, index, exec_dynamic=True, prefetch_queue_depth=2)
        with pipe:
            fed: dict[str, Any] = {"cycle": "quiet", "no_copy": True, "ndim": 1}
            payload = fn.external_source([[raw[k] for k in rows] for rows in dealt], dtype=types.UINT8, **fed)
            how: dict[str, Any] = {"device": "cpu" if index is None else "mixed", "adjust_orientation": False}
            if windows is None:
                image = fn.decoders.image(payload, **how)
            else:
                window = fn.external_source([windows[rows] for rows in dealt], dtype=types.INT32, **fed)
                how |= {"start": window[0:2], "shape": window[2:4], "axis_names": "HW"}
                image = fn.decoders.image_slice(payload, **how)
            pipe.set_outputs(image)
        pipe.build()

        def step() -> int:
            (out,) = pipe.run()
            if index is not None:
                torch.cuda.synchronize(index)
            return len(out)

        yield Called(step)

    return opens


def contestants(job: BenchJob, threads: int) -> list[Contestant]:
    """Decoders with so many threads: ours, DALI's, Pillow, torchvision."""
    payloads = payloads_of(job.data)
    windows = draw_windows(payloads, job.crop)

    def pool(task: Task, begin: Any = lambda: None) -> Opens:
        return pooled(task, begin, len(payloads), job.batch, threads)

    codec = installed("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")
    dali = installed("nvidia-dali-cuda120", "nvidia-dali-cuda130")
    unable = None if job.device == "cpu" else "some versions of nvImageCodec end the process on windows there"
    return [
        Contestant("host", pool(*decoders(payloads, None)), role="ours", version=codec),
        Contestant(
            "host windows", pool(*decoders(payloads, windows.tolist())), role="ours", beside="host", version=codec
        ),
        Contestant("dali", _dali(job, payloads, None, threads), version=dali),
        Contestant("dali windows", _dali(job, payloads, windows, threads), beside="dali", unable=unable, version=dali),
        Contestant("pillow", pool(_pillow(payloads)), beside="host", version=installed("pillow")),
        Contestant("torchvision", pool(_torchvision(payloads)), beside="host", version=installed("torchvision")),
    ]
