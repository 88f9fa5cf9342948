"""What is done to each image, alike for all peers: RandomResizedCrop and a flip, then floats, by torchvision and torch.

Peers get what their users would have to think of: memory for floats that is used again, and one thread of torch's.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torchvision.io import decode_image
from torchvision.transforms import v2

from dali_feed.bench.contract import Job
from dali_feed.bench.work import BIAS, SCALE, Memory, one_torch_thread, to_float, transform

__all__ = ["decoded", "finish", "finish_each", "pixels", "quiet_torch", "window"]

AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of RandomResizedCrop


def decoded(file: bytes | memoryview) -> torch.Tensor:
    """An image's bytes as uint8 (3, height, width)."""
    with_bytes = np.frombuffer(file, np.uint8)
    if not with_bytes.flags.writeable:
        with_bytes = with_bytes.copy()  # torch warns of memory that it may not write; copying costs 1 % of decoding
    image: torch.Tensor = decode_image(torch.from_numpy(with_bytes), mode="RGB")
    return image


def pixels(crop: int) -> v2.Compose:
    """The part of everybody's work on uint8 pixels: uint8 (3, height, width) to uint8 (3, crop, crop)."""
    return v2.Compose(transform(crop).transforms[:2])


def finish_each(memory: Memory, images: Iterator[torch.Tensor]) -> torch.Tensor:
    """Images uint8 (3, crop, crop), made floats one by one while their pixels are in the cache."""
    out = memory.take()
    for image, to in zip(images, out, strict=True):
        to_float(image, to)
    return out


def finish(job: Job) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes a batch uint8 (n, 3, crop, crop) of this machine's memory floats on the job's device."""
    device = torch.device(job.device)
    if device.type == "cpu":
        memory = Memory(job.batch, job.crop)
        return lambda images: finish_each(memory, iter(images))
    scale, bias = SCALE.to(device), BIAS.to(device)
    return lambda images: torch.mul(images.to(device, non_blocking=True), scale).add_(bias)


class _Uniform(Protocol):
    def uniform(self, low: float, high: float, /) -> float: ...


def window(draws: _Uniform, height: int, width: int) -> tuple[int, int, int, int]:
    """RandomResizedCrop's (top, left, height, width), where torch's generator cannot be the one that draws."""
    for _ in range(TRIES):
        area = height * width * draws.uniform(*AREA)
        ratio = math.exp(draws.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(draws.uniform(0, height - h + 1)), int(draws.uniform(0, width - w + 1)), h, w
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    return (height - h) // 2, (width - w) // 2, h, w


@contextmanager
def quiet_torch() -> Iterator[None]:
    """One thread of torch's, in this thread and in those that start meanwhile, and none of its advice."""
    with one_torch_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs: a try
        warnings.filterwarnings("ignore", message="The image decoding and encoding")  # another package's is advised
        yield
