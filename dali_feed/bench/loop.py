"""The bare loops that the host engine is measured by: its decoder and resize on a thread pool, and nothing else.

A task is a whole batch; batches come in their order. No screen, no bad image, no state: what an engine has beyond this
may cost something, and what it does better may win it back. `loop` has the bytes in memory and reads nothing;
`loop-read` reads each image from the tar shards first, in the same task: the work that a loader over them has too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
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
from dali_feed.bench.tar_reads import TarReads
from dali_feed.bench.turns import Make
from dali_feed.bench.work import CROP, Memory, one_torch_thread, to_float, transform
from dali_feed.compiler.host import compile_host
from dali_feed.engines.host.decode import new_decoder
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower

__all__ = ["Loop", "LoopRead", "loop"]

Encoded = Callable[[NDArray[np.int64]], list[NDArray[np.uint8]]]  # rows -> their images' bytes


class _Work:
    """A batch's work, on whichever thread."""

    def __init__(self, encoded: Encoded, batch: int, crop: int) -> None:
        self._encoded, self._crop = encoded, crop
        self._program, self._memory = compile_host(lower(transform(crop))), Memory(batch, crop)

    def __call__(self, decoder: Any, rows: NDArray[np.int64], number: int) -> torch.Tensor:
        streams = [nvimgcodec.CodeStream(encoded) for encoded in self._encoded(rows)]
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


def loop(encoded: Encoded, count: int, batch: int, threads: int, crop: int = CROP) -> Make:
    """`threads` threads, and one batch more in flight than they are, of `count` images drawn at random."""

    @contextmanager
    def make() -> Iterator[Steps]:
        with one_torch_thread(), pooled(_Work(encoded, batch, crop), new_decoder, count, batch, threads)() as steps:
            yield steps

    return make


@dataclass(frozen=True, slots=True)
class Loop(OneWay):
    """The bare loop over bytes in memory, as a contestant."""

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
        held = [np.frombuffer(payload, np.uint8) for payload in payloads_of(job.data)]
        return loop(lambda rows: [held[k] for k in rows.tolist()], len(held), job.batch, job.threads, job.crop)()


@dataclass(frozen=True, slots=True)
class LoopRead(Loop):
    """The bare loop that reads, as a contestant."""

    name: str = "loop-read"

    @contextmanager
    def turn(self, job: Job, way: str) -> Iterator[Steps]:
        """New threads, over the shards opened anew."""
        with (
            closing(TarReads(job.data.shards)) as reads,
            loop(reads, len(reads), job.batch, job.threads, job.crop)() as steps,
        ):
            yield steps
