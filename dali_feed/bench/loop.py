"""The bare loop that the host engine is measured by: its decoder and resize on a thread pool, and nothing else.

A task is a whole batch, out of bytes in memory; batches come in their order. No reading, no screen, no bad image,
no state: what an engine has beyond this may cost something, and what it does better may win it back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia import nvimgcodec
from torch.nn.functional import interpolate

from dali_feed.bench.contract import Job, Steps
from dali_feed.bench.facts import version
from dali_feed.bench.held import payloads_of
from dali_feed.bench.turns import Make
from dali_feed.bench.work import CROP, Memory, one_torch_thread, to_float, transform
from dali_feed.compiler.host import compile_host
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower

__all__ = ["Loop", "loop"]


class _Loop(Steps):
    def __init__(self, payloads: list[bytes], batch: int, threads: int, crop: int) -> None:
        self._crop = crop
        self._bytes = [np.frombuffer(payload, np.uint8) for payload in payloads]
        self._program, self._memory, self._batch = compile_host(lower(transform(crop))), Memory(batch, crop), batch
        self._rng, self._number = np.random.default_rng(0), 0
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(threads, "bench-loop", self._begin)
        self._flying: deque[Future[torch.Tensor]] = deque()
        for _ in range(threads + 1):
            self._submit()

    def _begin(self) -> None:
        self._local.decoder = nvimgcodec.Decoder(
            device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=1,
            backends=[nvimgcodec.Backend(nvimgcodec.CPU_ONLY)],
            options=":fancy_upsampling=1",
        )

    def _submit(self) -> None:
        rows = self._rng.integers(0, len(self._bytes), self._batch)
        self._flying.append(self._pool.submit(self._run, rows, self._number))
        self._number += 1

    def _run(self, rows: NDArray[np.int64], number: int) -> torch.Tensor:
        streams = [nvimgcodec.CodeStream(self._bytes[k]) for k in rows.tolist()]
        sizes = np.array([(stream.height, stream.width) for stream in streams], np.int32)
        drawn = self._program.parameters(sizes, rows, 0, number).arrays
        regions = [
            stream.get_sub_code_stream(nvimgcodec.CodeStreamView(region=nvimgcodec.Region(y, x, y + h, x + w)))
            for stream, (y, x, h, w) in zip(streams, drawn[Key("window")].tolist(), strict=True)
        ]
        images, out = self._local.decoder.decode(regions), self._memory.take()
        for image, mirrored, to in zip(images, drawn[Key("flip1")].tolist(), out, strict=True):
            pixels = torch.from_numpy(np.asarray(image))[None].permute(0, 3, 1, 2)
            scaled = interpolate(pixels, size=(self._crop, self._crop), mode="bilinear", antialias=True)[0]
            to_float(scaled.flip(-1) if mirrored else scaled, to)
        return out

    def __next__(self) -> int:
        images = self._flying.popleft().result()
        self._submit()
        return len(images)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def loop(payloads: Callable[[], list[bytes]], batch: int, threads: int, crop: int = CROP) -> Make:
    """`threads` threads, and one batch more in flight than they are."""

    @contextmanager
    def make() -> Iterator[Steps]:
        with one_torch_thread():
            steps = _Loop(payloads(), batch, threads, crop)
            try:
                yield steps
            finally:
                steps.close()

    return make


@dataclass(frozen=True, slots=True)
class Loop:
    """The bare loop as a contestant."""

    name: str = "loop"

    @property
    def version(self) -> str:
        """Of its decoder."""
        return version("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")

    def missing(self, job: Job) -> str | None:
        """It works on the CPU alone."""
        return None if job.device == "cpu" else "decodes on the CPU; measured with --device cpu"

    def ways(self, job: Job) -> Sequence[str]:
        """One."""
        return ("",)

    def turn(self, job: Job, way: str) -> AbstractContextManager[Steps]:
        """New threads."""
        return loop(lambda: payloads_of(job.data), job.batch, job.threads, job.crop)()
