"""One rank of several on this machine, for bench_scaling.py: prints `ready`, waits for a line, and prints what it got.

Its arguments: rank, world size, batch, decoder threads, seconds, and the shards.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from dali_feed import DataLoader, Tuning
from dali_feed.bench.work import transform
from dali_feed.external_sources import ShardSet

WARM = 8  # batches before the line and behind it: more than are in flight


def _after(batches: Any, count: int) -> None:
    for _ in range(count):
        next(batches)


def main() -> None:
    """Run it."""
    rank, ranks, batch, threads = map(int, sys.argv[1:5])
    seconds, shards = float(sys.argv[5]), sys.argv[6:]
    with DataLoader(
        ShardSet(shards),
        batch,
        shuffle=True,
        drop_last=True,
        transform=transform(),
        device="cpu",
        rank=rank,
        world_size=ranks,
        tuning=Tuning(threads=threads),
    ) as loader:
        batches = (batch for _ in iter(int, 1) for batch in loader)
        _after(batches, WARM)
        print("ready", flush=True)
        sys.stdin.readline()
        _after(batches, WARM)  # what was made while it waited
        images, cpu, begun = 0, time.process_time(), time.perf_counter()
        while (now := time.perf_counter()) - begun < seconds:
            images += len(next(batches)[0])
        now = time.perf_counter()
        print(json.dumps({"rate": images / (now - begun), "cpu": (time.process_time() - cpu) / max(1, images)}))


if __name__ == "__main__":
    main()
