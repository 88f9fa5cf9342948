"""torch's own DataLoader over an ImageFolder, in the three ways people use it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from dali_feed.bench.contract import Job, Steps
from dali_feed.bench.facts import version
from dali_feed.bench.work import CROP, Memory, one_torch_thread, to_float, transform

__all__ = ["Torch", "torch_loader"]

EPOCH = 36_000  # images at least, so that the end of an epoch is not what is measured
Way = Literal["pil", "all", "uint8"]


def _decoded(path: str) -> torch.Tensor:
    image: torch.Tensor = decode_image(path, mode=ImageReadMode.RGB)
    return image


def _finish_into(memory: Memory) -> Callable[[torch.Tensor], torch.Tensor]:
    def finish(images: torch.Tensor) -> torch.Tensor:
        out = memory.take()
        for pixels, to in zip(images, out, strict=True):
            to_float(pixels, to)
        return out

    return finish


class _Torch(Steps):
    def __init__(
        self, loader: Any, finish: Callable[[torch.Tensor], torch.Tensor] | None, device: torch.device
    ) -> None:
        self._loader, self._finish, self._device = loader, finish, device
        self.batches: Any = iter(loader)

    def __next__(self) -> int:
        try:
            images, _ = next(self.batches)
        except StopIteration:
            self.batches = iter(self._loader)
            images, _ = next(self.batches)
        images = images.to(self._device, non_blocking=True)
        if self._finish is not None:
            images = self._finish(images)
        return self.kept(images)


@contextmanager
def torch_loader(
    root: Path, batch: int, workers: int, device: torch.device, *, way: Way, crop: int = CROP
) -> Iterator[Steps]:
    """The DataLoader of torch over an ImageFolder.

    way  "pil": workers open with PIL, as torchvision's examples do, and do all; "all": they decode to tensors and do
         all; "uint8": they send uint8, and this process normalizes the batch
    """
    whole = transform(crop).transforms
    inside: Any = v2.Compose(whole)
    outside: Callable[[torch.Tensor], torch.Tensor] | None = None
    if way == "uint8":
        inside = v2.Compose(whole[:2])
        outside = _finish_into(Memory(batch, crop)) if device.type == "cpu" else v2.Compose(whole[2:])
    elif way == "pil":
        inside = v2.Compose([*whole[:2], v2.ToImage(), *whole[2:]])
    folder = ImageFolder(str(root), inside) if way == "pil" else ImageFolder(str(root), inside, loader=_decoded)
    with one_torch_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs: a try
        loader: Any = torch.utils.data.DataLoader(
            torch.utils.data.ConcatDataset([folder] * max(1, EPOCH // len(folder))),
            batch,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            prefetch_factor=4,
        )
        steps = _Torch(loader, outside, device)
        try:
            yield steps
        finally:
            steps.batches._shutdown_workers()


@dataclass(frozen=True, slots=True)
class Torch:
    """torch's DataLoader; `workers`: processes, beside which one more is tried (None: the job's threads)."""

    workers: int | None = None
    name: str = "torch"

    @property
    def version(self) -> str:
        """Of torch."""
        return version("torch")

    def missing(self, job: Job) -> str | None:
        """Never: torch is always there."""
        return None

    def ways(self, job: Job) -> Sequence[str]:
        """Who makes floats, by how many workers."""
        workers = self.workers or job.threads
        return [f"{way} x{count}" for count in (workers, workers + 1) for way in ("all", "uint8", "pil")]

    def turn(self, job: Job, way: str) -> AbstractContextManager[Steps]:
        """New workers."""
        kind, _, count = way.partition(" x")
        device: Any = torch.device(job.device)
        return torch_loader(job.data.files, job.batch, int(count), device, way=_WAYS[kind], crop=job.crop)


_WAYS: dict[str, Way] = {"pil": "pil", "all": "all", "uint8": "uint8"}
