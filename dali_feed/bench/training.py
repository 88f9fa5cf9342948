"""`dali-feed bench train`: what a training loop waits for its batches, beside a replay of the same batches.

The law: everybody trains the same small network on batches of the same work. The replay gives batches that were made
beforehand, again and again, so it waits for nothing; what another loses beside it is its loader's.

A wait is the loop's time in next(), of the steps that are counted, whoever feeds it. Our loader's own clock, over the
same steps, ends where it hands a batch over: where the loop's thread then has no processor, the bench sees a wait.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dali_feed.bench.data import BenchJob
from dali_feed.bench.loading import verdicts
from dali_feed.bench.ours import one_torch_thread, our_contestants
from dali_feed.bench.runner import Contestant, Opens, Race, Steps

UNIT = "images"
SHOWN = [
    *("who", "way", "images/s", "least", "most", "of replay", "waited"),
    *("p50 ms", "p99 ms", "step ms", "cpu us", "peak MB", "busy"),
]
REPLAY = "replay"
REPLAYED = 4  # batches
HARDLY = 0.05  # of the steps' time: nobody would gain by a faster loader


class _Residual(nn.Module):
    """Two convolutions and what goes around them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)),
            *(nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)),
        )
        same = stride == 1 and inner == outer
        self.around = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(n, inner, h, w) to (n, outer, h / stride, w / stride)."""
        return nn.functional.relu(self.body(images) + self.around(images))


def small_resnet(width: int = 16, classes: int = 1000) -> nn.Module:
    """A residual network of four stages, `width` channels in the first: (n, 3, h, w) floats to (n, classes)."""
    stages = [_Residual(width << max(0, n - 1), width << n, 1 if n == 0 else 2) for n in range(4)]
    stem = (nn.Conv2d(3, width, 7, 4, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width << 3, classes))


def network(device: str) -> Callable[[], nn.Module]:
    """What makes the network that a GPU is measured with; a small one for the CPU."""
    if device == "cpu":
        return functools.partial(small_resnet, 4)
    from torchvision.models import resnet50

    return resnet50  # type: ignore[no-any-return]


class Trainer:
    """A network and its step; off the CPU in bfloat16 and channels last."""

    def __init__(self, make: Callable[[], nn.Module], device: torch.device) -> None:
        self._device = device
        layout = torch.contiguous_format if device.type == "cpu" else torch.channels_last
        model: Any = make()
        self._model = model.to(device, memory_format=layout)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1, momentum=0.9)
        self._labels: dict[int, torch.Tensor] = {}

    def step(self, images: torch.Tensor) -> torch.Tensor:
        """Forward, backward, update; the loss, which is not waited for."""
        labels = self._labels.setdefault(len(images), torch.zeros(len(images), dtype=torch.int64, device=self._device))
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type != "cpu"):  # emulated there
            loss: torch.Tensor = nn.functional.cross_entropy(self._model(images), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()


class _Trained(Steps):
    """Somebody's batches, each trained on. They are counted from the first one on: a network's first steps are slow."""

    def __init__(self, steps: Steps, trainer: Trainer) -> None:
        self._steps, self._trainer = steps, trainer
        self.waits = self._waits = list[float]()
        self._begun = self._ended = 0.0
        steps.keeps = True

    def begins(self) -> None:
        self._begun = time.perf_counter()
        self._steps.begins()

    def __next__(self) -> float:
        before = self._steps.images  # a loop holds it until it has the next one: to free it is no waiting
        begun = time.perf_counter()
        count = next(self._steps)
        self._waits.append(time.perf_counter() - begun)
        del before
        self._trainer.step(self._steps.images).item()
        self._ended = time.perf_counter()
        return count

    def extras(self) -> dict[str, float | str]:
        seconds = self._ended - self._begun
        shares = {"waited": round(sum(self._waits) / seconds, 4), "step ms": 1e3 * seconds / len(self._waits)}
        return {**shares, **self._steps.extras()}


class _Replayed(Steps):
    """Batches from memory, in turn."""

    def __init__(self, batches: Sequence[torch.Tensor]) -> None:
        self._batches, self._next = batches, 0

    def __next__(self) -> int:
        self._next += 1
        return self.step(self._batches[self._next % len(self._batches)])


def _trained(opens: Opens, trainer: Callable[[], Trainer], *, replay: bool = False) -> Opens:
    """On the CPU the network has one thread of torch: with more, they wait in busy loops on the cores that decode."""

    @contextmanager
    def batches(way: str) -> Iterator[Steps]:
        with opens(way) as steps:
            if not replay:
                yield steps
                return
            steps.keeps = True
            prepared = [steps.images.clone() for _ in zip(range(REPLAYED), steps, strict=False)]
        yield _Replayed(prepared)

    @contextmanager
    def turn(way: str) -> Iterator[Steps]:
        with batches(way) as steps, one_torch_thread():
            yield _Trained(steps, trainer())

    return turn


def contestants(
    job: BenchJob,
    make: Callable[[], nn.Module] = small_resnet,
    *,
    others: Sequence[Contestant] = (),
    peers: bool = True,
) -> list[Contestant]:
    """Ours, the replay of its batches, torch's and `others`; `make` makes the network that they feed."""

    def trainer() -> Trainer:
        return Trainer(make, torch.device(job.device))

    (ours,) = our_contestants(job, "tar")
    feeding = [*others]
    if peers:
        from dali_feed.bench.peers import torch_peer  # which loads torchvision's datasets

        feeding.insert(0, torch_peer(job))
    trained = [replace(each, opens=_trained(each.opens, trainer)) for each in (ours, *feeding)]
    trained.insert(1, Contestant(REPLAY, _trained(ours.opens, trainer, replay=True), role="top"))
    return trained


def findings(race: Race) -> list[str]:
    """What the loop waits for."""
    sentences = []
    for row in race.rows:
        waited, ratio = race.cell(row, "waited"), race.ratio(row, REPLAY)
        if row.who == REPLAY or not isinstance(waited, float):
            continue
        sentence = f"{row.who}: the loop waits for {waited:.0%} of its time"
        if ratio is not None:
            sentence += f" and gets {ratio.median:.2f} of what the network can take"
            if waited < HARDLY:
                taken = "the rest is CPU time that decoding takes from the network"
                sentence += f": {'the network is the limit' if ratio.median > 1 - HARDLY else taken}"
        sentences.append(f"{sentence}.")
    return sentences + verdicts(race)
