"""What a training loop waits for its batches: a ResNet in bfloat16 fed by us, by torch and by nothing.

    python bench/bench_training.py [--device cuda:0] [--model resnet50] [--batch 256] [--steps 200]
                                   [--engines dali host] [--sources tar kafka] [--workers N]

Contestants: our loader with each engine, from tar shards in the page cache and from the embedded broker; torch's
DataLoader over an ImageFolder with as many workers as CPUs; `none`, one batch on the device again and again, which
nobody can beat. Counted after --warm steps: images per second, the milliseconds that `next()` took (p50, p99), and
on a GPU how much of the time NVML saw it busy. Rows go to results/training.csv.
"""

from __future__ import annotations

import argparse
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torchvision
from _results import RESULTS, Rows

from dali_feed import Tuning
from dali_feed.bench.facts import facts
from dali_feed.bench.ours import ours
from dali_feed.bench.peers.torch_loader import torch_loader
from dali_feed.bench.photos import photos
from dali_feed.bench.training import Trainer
from dali_feed.bench.work import cuda_index
from dali_feed.cores import whole_cores
from dali_feed.external_sources import KafkaTopic, ShardSet
from dali_feed.testing import broker, publish

CROP = 224
SAMPLED_S = 0.05


class Busy:
    """How busy a GPU was, in percent, by NVML's samples; empty where there is none."""

    def __init__(self, device: torch.device) -> None:
        self._index = cuda_index(device)
        self._stop = threading.Event()
        self._seen: list[int] = []
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)
        with suppress(pynvml.NVMLError):  # a part of a GPU has no such number
            while not self._stop.wait(SAMPLED_S):
                self._seen.append(int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))

    def __enter__(self) -> Self:
        if self._index is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._index is not None:
            self._thread.join()

    def __str__(self) -> str:
        return f"{np.mean(self._seen):.0f}" if self._seen else ""


@contextmanager
def _nothing(batch: int, device: torch.device) -> Iterator[Iterator[torch.Tensor]]:
    images = torch.randn(batch, 3, CROP, CROP, device=device)
    yield iter(lambda: images, None)


@contextmanager
def _batches(make: Any) -> Iterator[Iterator[torch.Tensor]]:
    """A contestant's batches themselves."""
    with make() as steps:
        steps.keeps = True
        yield (steps.images for _ in steps)


def run(name: str, batches: Iterator[torch.Tensor], args: argparse.Namespace) -> dict[str, object]:
    """Train, and count."""
    device = args.device
    training = Trainer(functools.partial(torchvision.models.get_model, args.model), device)
    wait_for: Callable[[torch.device], None] = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    waits: list[float] = []
    for _ in range(args.warm):
        training.step(next(batches))
    wait_for(device)
    begun = time.perf_counter()
    with Busy(device) as busy:
        for _ in range(args.steps):
            asked = time.perf_counter()
            images = next(batches)
            waits.append(time.perf_counter() - asked)
            training.step(images)
        wait_for(device)
    seconds = time.perf_counter() - begun
    p50, p99 = (1e3 * float(np.quantile(waits, q)) for q in (0.5, 0.99))
    return {
        "who": name,
        "img/s": round(args.steps * args.batch / seconds),
        "wait p50 ms": f"{p50:.3f}",
        "wait p99 ms": f"{p99:.3f}",
        "waited": f"{sum(waits) / seconds:.3f}",
        "GPU %": str(busy),
    }


def _run(name: str, contestant: Any, args: argparse.Namespace) -> dict[str, object]:
    with contestant as batches:
        return run(name, batches, args)


def main() -> int:
    """Measure, print, and add rows to results/training.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda:0"))
    parser.add_argument("--model", default="resnet50", help="of torchvision (default %(default)s)")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--engines", nargs="*", choices=("dali", "host"), default=["dali", "host"])
    parser.add_argument("--sources", nargs="*", choices=("tar", "kafka"), default=["tar", "kafka"])
    parser.add_argument("--workers", type=int, default=whole_cores(), help="of torch's DataLoader")
    parser.add_argument("--photos", type=int, default=3000)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    data = photos(args.photos, cache=args.data)
    data.touch()
    tuning = Tuning(prefetch=3)
    about = facts() | {"model": args.model, "batch": args.batch, "steps": args.steps, "images": data.count}
    about |= {"device": args.device if args.device.type == "cpu" else torch.cuda.get_device_name(args.device)}
    rows = Rows("training", about, args.results)
    with ExitStack() as stack:
        contestants: dict[str, Any] = {"none": _nothing(args.batch, args.device)}
        for engine in args.engines:
            if "tar" in args.sources:
                made = ours(lambda: ShardSet(data.linked), args.batch, tuning, args.device, engine)
                contestants[f"{engine} tar"] = _batches(made)
        if "kafka" in args.sources:
            running = stack.enter_context(broker())
            running.create("photos", 4)
            publish(running.servers, "photos", data.records())
            for engine in args.engines:
                made = ours(lambda: KafkaTopic("photos", running.servers), args.batch, tuning, args.device, engine)
                contestants[f"{engine} embedded kafka"] = _batches(made)
        if args.workers:
            how = (data.files, args.batch, args.workers, args.device)
            contestants[f"torch, {args.workers} workers"] = _batches(lambda: torch_loader(*how, way="uint8"))
        for name, contestant in contestants.items():
            rows.measure(name, functools.partial(_run, name, contestant, args))
    return rows.end()


if __name__ == "__main__":
    sys.exit(main())
