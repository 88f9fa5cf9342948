"""The bare loop that the host engine is measured by: its decoder and resize on a thread pool, and nothing else.

A task is a whole batch, out of bytes in memory; batches come in their order. No reading, no screen, no bad image,
no state: what an engine has beyond this may cost something, and what it does better may win it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia import nvimgcodec
from torch.nn.functional import interpolate

from dali_feed.bench.contract import Job, Steps
from dali_feed.bench.facts import version
from dali_feed.bench.held import payloads_of
from dali_feed.bench.one_way import OneWay
from dali_feed.bench.pooled import pooled
from dali_feed.bench.turns import Make
from dali_feed.bench.work import CROP, Memory, one_torch_thread, to_float, transform
from dali_feed.compiler.host import compile_host
from dali_feed.engines.host.decode import new_decoder
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower

__all__ = ["Loop", "loop"]


class _Work:
    """A batch's work, on whichever thread."""

    def __init__(self, payloads: list[bytes], batch: int, crop: int) -> None:
        self._bytes, self._crop = [np.frombuffer(payload, np.uint8) for payload in payloads], crop
        self._program, self._memory = compile_host(lower(transform(crop))), Memory(batch, crop)

    def __call__(self, decoder: Any, rows: NDArray[np.int64], number: int) -> torch.Tensor:
        streams = [nvimgcodec.CodeStream(self._bytes[k]) for k in rows.tolist()]
        sizes = np.array([(stream.height, stream.width) for stream in streams], np.int32)
        drawn = self._program.parameters(sizes, rows, 0, number).arrays
        regions = [
            stream.get_sub_code_stream(nvimgcodec.CodeStreamView(region=nvimgcodec.Region(y, x, y + h, x + w)))
            for stream, (y, x, h, w) in zip(streams, drawn[Key("window")].tolist(), strict=True)
        ]
        images, out = decoder.decode(regions), self._memory.take()
        for image, mirrored, to in zip(images, drawn[Key("flip1")].tolist(), out, strict=True):
            pixels = torch.from_numpy(np.asarray(image))[None].permute(0, 3, 1, 2)
            scaled = interpolate(pixels, size=(self._crop, self._crop), mode="bilinear", antialias=True)[0]
            to_float(scaled.flip(-1) if mirrored else scaled, to)
        return out


def loop(payloads: Callable[[], list[bytes]], batch: int, threads: int, crop: int = CROP) -> Make:
    """`threads` threads, and one batch more in flight than they are."""

    @contextmanager
    def make() -> Iterator[Steps]:
        with one_torch_thread():
            held = payloads()
            with pooled(_Work(held, batch, crop), new_decoder, len(held), batch, threads)() as steps:
                yield steps

    return make


@dataclass(frozen=True, slots=True)
class Loop(OneWay):
    """The bare loop as a contestant."""

    name: str = "loop"

    @property
    def version(self) -> str:
        """Of its decoder."""
        return version("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")

    def missing(self, job: Job) -> str | None:
        """It works on the CPU alone."""
        return None if job.device == "cpu" else "decodes on the CPU; measured with --device cpu"

    def turn(self, job: Job, way: str) -> AbstractContextManager[Steps]:
        """New threads."""
        return loop(lambda: payloads_of(job.data), job.batch, job.threads, job.crop)()
