"""The bare loop that the host engine is measured by: its decoder and resize on a thread pool, and nothing else.

A task is a whole batch, out of bytes in memory; batches come in their order. No reading, no screen, no bad image,
no state: what an engine has beyond this may cost something, and what it does better may win it back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from _contestants import CROP, Make, Memory, one_torch_thread, to_float, transform
from _harness import Steps
from numpy.typing import NDArray
from nvidia import nvimgcodec
from torch.nn.functional import interpolate

from dali_feed.compiler.host import compile_host
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower

__all__ = ["loop"]


class _Loop(Steps):
    def __init__(self, payloads: list[bytes], batch: int, threads: int) -> None:
        super().__init__()
        self._bytes = [np.frombuffer(payload, np.uint8) for payload in payloads]
        self._program, self._memory, self._batch = compile_host(lower(transform())), Memory(batch), batch
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
            scaled = interpolate(pixels, size=(CROP, CROP), mode="bilinear", antialias=True)[0]
            to_float(scaled.flip(-1) if mirrored else scaled, to)
        return out

    def __next__(self) -> int:
        images = self._flying.popleft().result()
        self._submit()
        return len(images)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def loop(payloads: Callable[[], list[bytes]], batch: int, threads: int) -> Make:
    """`threads` threads, and one batch more in flight than they are."""

    @contextmanager
    def make() -> Iterator[Steps]:
        with one_torch_thread():
            steps = _Loop(payloads(), batch, threads)
            try:
                yield steps
            finally:
                steps.close()

    return make
