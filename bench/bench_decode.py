"""How fast an engine decodes, resizes and finishes from memory, over its settings, beside torchvision's GPU decoder.

    python bench/bench_decode.py [--device cuda:0] [--batches 64 256] [--threads 2 8 16] [--loads 0 0.65 1]
                                 [--engines dali host] [--seconds 3]

RandomResizedCrop(224), flip, float32, Normalize of 500x375 JPEGs. `loads` are shares of a batch for the GPU's JPEG
engine (`Decode(hardware=)` of the loader; the dali engine alone). On a GPU `torchvision` decodes a batch at once by
`decode_jpeg(device="cuda")`, then resizes and normalizes each image there. Rows go to results/decode.csv.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torchvision
from _results import RESULTS, Rows

from dali_feed import Tuning
from dali_feed.bench.ceiling import ceiling, recipe_of
from dali_feed.bench.contract import Steps
from dali_feed.bench.facts import facts
from dali_feed.bench.photos import photos
from dali_feed.bench.turns import Make, run_turn
from dali_feed.bench.work import transform
from dali_feed.cores import whole_cores


class _Torchvision(Steps):
    def __init__(self, payloads: list[bytes], batch: int, device: torch.device) -> None:
        super().__init__()
        raw = [torch.frombuffer(bytearray(payload), dtype=torch.uint8) for payload in payloads]
        self._batches = itertools.cycle(
            [raw[n : n + batch] for n in range(0, len(raw) - batch + 1, batch)] or [raw[:batch]]
        )
        self._transform, self._device = transform(), device

    def __next__(self) -> int:
        rgb = torchvision.io.ImageReadMode.RGB
        images = torchvision.io.decode_jpeg(next(self._batches), mode=rgb, device=self._device)
        done = torch.stack([self._transform(image) for image in images])
        torch.cuda.synchronize(self._device)
        return len(done)


def by_torchvision(payloads: list[bytes], batch: int, device: torch.device) -> Make:
    """The batched decoder of torchvision."""

    @contextmanager
    def make() -> Iterator[Steps]:
        yield _Torchvision(payloads, batch, device)

    return make


def main() -> int:
    """Measure, print, and add rows to results/decode.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda:0"))
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    cores = whole_cores()
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({min(2, cores), max(1, cores // 2), cores}))
    parser.add_argument("--loads", type=float, nargs="*", default=[0.0, 0.65, 1.0])
    parser.add_argument("--engines", nargs="*", choices=("dali", "host"), default=["dali", "host"])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--photos", type=int, default=3000)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    data = photos(args.photos, cache=args.data)
    payloads = [payload for payload, _ in data.records()]
    on_gpu = args.device.type == "cuda"
    about = facts() | {"images": data.count, "mean bytes": data.mean_bytes, "seconds": args.seconds}
    about |= {"device": torch.cuda.get_device_name(args.device) if on_gpu else args.device}
    rows = Rows("decode", about, args.results)

    def add(who: str, batch: int, threads: object, load: object, make: Make) -> None:
        def row() -> dict[str, object]:
            turn = run_turn(make, args.seconds)
            rate, cpu = round(turn.rate), round(1e6 * turn.cpu / turn.images)
            return {"who": who, "batch": batch, "threads": threads, "load": load, "img/s": rate, "CPU us": cpu}

        rows.measure(f"{who} batch {batch} threads {threads} load {load}", row)

    for engine, batch, threads in itertools.product(args.engines, args.batches, args.threads):
        for load in args.loads if on_gpu and engine == "dali" else [None]:
            tuning = Tuning(threads=threads, prefetch=3)
            made = ceiling(
                lambda: payloads,
                batch,
                tuning,
                args.device,
                engine,
                prepared=16,
                recipe=recipe_of(hardware=load or 0.0),
            )
            add(engine, batch, threads, "" if load is None else load, made)
    for batch in args.batches if on_gpu else []:
        add("torchvision", batch, "", "", by_torchvision(payloads, batch, args.device))
    return rows.end()


if __name__ == "__main__":
    sys.exit(main())
