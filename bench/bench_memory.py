"""The most memory a loader holds, beside the bound that Tuning states.

    python bench/bench_memory.py [--mb 1000] [--memory-mb 160 256] [--batch 64] [--engine host]

Each run is a process of its own that first makes a loader and takes its own size, then reads epoch after epoch from tar
shards until `--mb` of payloads have passed through. What it held above its size at the start is put beside

    memory                             Tuning(memory=...), bytes of payloads held at once
    + (2 * prefetch + 1) * a batch     in the engine, finished and waiting, and the one the trainer has
    + what the decoder needs           what a run of the ceiling holds above its payloads and batches

"slabs MB" is the most payload memory that the loader itself counted, the number to look at when the bound is broken.
Nothing here passes or fails by it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from _results import RESULTS

from dali_feed.bench.facts import facts
from dali_feed.bench.photos import photos
from dali_feed.bench.rows import append, table
from dali_feed.bench.usage import peak_rss, reset_peak, rss

SHOWN = ("memory MB", "batches MB", "decoder MB", "bound MB", "peak MB", "of bound", "slabs MB", "read MB")
CROP = 224
WORKS = 4  # prepared batches of the ceiling: they are memory too


def run(args: argparse.Namespace, memory: int) -> dict[str, float]:
    """In a process of its own: read, and tell the peak above the start."""
    import torch

    from dali_feed import Tuning
    from dali_feed.bench.ceiling import ceiling
    from dali_feed.bench.ours import ours
    from dali_feed.external_sources import ShardSet

    cpu = torch.device("cpu")
    data = photos(args.photos, cache=args.data)
    tuning = Tuning(memory=memory or 1 << 30, prefetch=args.prefetch, threads=args.threads)
    wanted = int(args.mb * (1e6 if memory else 0.3e6)) // data.mean_bytes  # the ceiling's size settles soon
    if memory:
        make = ours(lambda: ShardSet(data.linked), args.batch, tuning, cpu, args.engine)
    else:
        payloads = [jpeg for _, (jpeg, _) in zip(range(args.batch * WORKS), data.records(), strict=False)]
        make = ceiling(lambda: payloads, args.batch, tuning, cpu, args.engine, prepared=WORKS)
    reset_peak()
    before, images = rss(), 0
    with make() as steps:
        while images < wanted:
            images += next(steps)
        peak = peak_rss() - before
    return {"peak": peak, "slabs": steps.notes.get("slab_peak", 0), "read": images * data.mean_bytes}


def child(memory: int) -> dict[str, float]:
    """What `run` gives, from a new process with the same arguments; `memory` 0 is the ceiling."""
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--child", str(memory)], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure, print, and add rows to results/memory.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=1000, help="of payloads to read (default %(default)s)")
    parser.add_argument("--memory-mb", type=int, nargs="+", default=[160, 256])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--engine", choices=("host", "dali"), default="host")
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--photos", type=int, default=3000)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--child", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(run(args, args.child)))
        return
    data = photos(args.photos, cache=args.data)
    batch_bytes = args.batch * 3 * CROP * CROP * 4
    top = child(0)
    decoder = max(0.0, top["peak"] - (args.prefetch + 1) * batch_bytes)
    made = facts() | {
        "engine": args.engine,
        "batch": args.batch,
        "prefetch": args.prefetch,
        "mean bytes": data.mean_bytes,
    }
    rows: list[dict[str, object]] = []
    for memory in (mb << 20 for mb in args.memory_mb):
        found = child(memory)
        batches = (2 * args.prefetch + 1) * batch_bytes
        bound = memory + batches + decoder
        sizes = {"memory": memory, "batches": batches, "decoder": decoder, "bound": bound} | found
        row: dict[str, object] = {f"{name} MB": round(size / 1e6) for name, size in sizes.items()}
        rows.append(made | row | {"of bound": f"{found['peak'] / bound:.2f}"})
    print(table(rows, SHOWN))
    print(f"\nadded {len(rows)} rows to {append('memory', rows, args.results)}")


if __name__ == "__main__":
    main()
