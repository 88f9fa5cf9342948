"""What watching costs: images per second of one loader, watched by nobody and by several ways.

    python bench/bench_watch.py [--photos 600] [--batch 64] [--threads 2] [--repeats 5]

RandomResizedCrop(224), flip, float32, Normalize of 500x375 JPEGs from tar shards in the page cache, on the `host`
engine. Epochs of one loader in turns: unwatched; with an endpoint that nobody asks; with one that is asked each second,
as Prometheus would at its quickest, and ten times a second; with a report to a file every 50 batches. Images per
second, CPU time per image (`cpu us`, without that of who asks), and both beside the unwatched epoch of the same turn
(`ratio`, `cpu ratio`). Run it on a quiet machine, with epochs of seconds: it is about percents. Where something else
takes the processors, CPU time per image tells more than the rate does.

Below it whether the goal is met: asked once a second, and reporting, it costs less than 1 % of either. It is open where
the turns are too far apart, or too few, to tell a percent.

Rows go to results/watch.csv.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _goals import error_of, within
from _results import RESULTS

from dali_feed import DataLoader, Tuning, watching
from dali_feed.bench.facts import facts
from dali_feed.bench.photos import HEIGHT, WIDTH, photos
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import rate_of, spread
from dali_feed.bench.work import transform
from dali_feed.external_sources import ShardSet

EVERY = 50  # batches between two reports
REPORTS = "reports to a file"
GOAL, MOST = ("asked each 1 s", REPORTS), 1.0  # percent
CPU = ("cpu us", "cpu ratio", "cpu ratio low", "cpu ratio high")
WAYS: dict[str, float | None] = {"nobody": None, "endpoint": 0.0, "asked each 1 s": 1.0, "asked each 0.1 s": 0.1}


@contextmanager
def asked(loader: DataLoader, seconds: float | None) -> Iterator[Callable[[], float]]:
    """With an endpoint that is asked so often; 0: never; None: without one. Gives what tells the CPU time of asking."""
    if seconds is None:
        yield lambda: 0.0
        return
    over, spent = threading.Event(), [0.0]
    with watching.serve(loader) as at:

        def ask() -> None:
            while seconds and not over.wait(seconds):
                with urllib.request.urlopen(f"{at.url}/metrics") as answer:  # noqa: S310  our own
                    answer.read()
                spent[0] = time.thread_time()

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield lambda: spent[0]
        finally:
            over.set()
            thread.join()


def measured(batches: Iterable[Any], images: int, others: Callable[[], float]) -> tuple[float, float]:
    """Images per second of an epoch, and CPU seconds per image."""
    begun = time.process_time()
    rate = rate_of(batches)
    return rate, (time.process_time() - begun - others()) / images


def turns(loader: DataLoader, repeats: int, images: int) -> dict[str, list[tuple[float, float]]]:
    """Images per second and CPU seconds per image by who watches."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in (*WAYS, REPORTS)}
    rate_of(loader)
    with tempfile.TemporaryDirectory() as folder:
        lines = watching.JsonLines(Path(folder) / "run.jsonl")
        reporting: Iterable[Any] = watching.Reporting(loader, lines, every=EVERY)
        for _ in range(repeats):
            for name, seconds in WAYS.items():
                with asked(loader, seconds) as others:
                    found[name].append(measured(loader, images, others))
            found[REPORTS].append(measured(reporting, images, lambda: 0.0))
    return found


def main() -> None:
    """Measure, print, and add rows to results/watch.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=600, help="different images (default %(default)s)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help="turns (default %(default)s)")
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    shards, made = photos(args.photos, cache=args.data).shards, facts()
    with DataLoader(
        ShardSet(shards),
        args.batch,
        shuffle=True,
        transform=transform(),
        device=torch.device("cpu"),
        tuning=Tuning(threads=args.threads),
    ) as loader:
        all_turns = turns(loader, args.repeats, args.photos)
    rows, nobody = [], all_turns["nobody"]
    for name, found in all_turns.items():
        middle, low, high = spread(rate for rate, _ in found)
        ratio, least, most = spread(a / b for (a, _), (b, _) in zip(found, nobody, strict=True))
        cpu, cpu_least, cpu_most = spread(a / b for (_, a), (_, b) in zip(found, nobody, strict=True))
        rows.append(
            {
                "watched by": name,
                "img/s": round(middle),
                "low": round(low),
                "high": round(high),
                "ratio": round(ratio, 4),
                "ratio low": round(least, 4),
                "ratio high": round(most, 4),
                "cpu us": round(1e6 * spread(each for _, each in found)[0], 1),
                "cpu ratio": round(cpu, 4),
                "cpu ratio low": round(cpu_least, 4),
                "cpu ratio high": round(cpu_most, 4),
                "image": f"{WIDTH}x{HEIGHT}",
                "batch": args.batch,
                "threads": args.threads,
                "turns": args.repeats,
            }
        )
    print(table(rows, ["watched by", "img/s", "low", "high", "ratio", "ratio low", "ratio high", *CPU]))
    for row in (row for row in rows if row["watched by"] in GOAL):
        pairs = list(zip(all_turns[str(row["watched by"])], nobody, strict=True))
        costs = {
            "the rate": [100 * (1 - a / b) for (a, _), (b, _) in pairs],
            "the CPU time of an image": [100 * (a / b - 1) for (_, a), (_, b) in pairs],
        }
        for what, its in costs.items():
            name = f"{row['watched by']}: less than 1 % of {what}"
            print(within(name, median(its), MOST, unsure=error_of(its), unit=" %"))
    print(f"rows added to {append('watch', [made | row for row in rows], args.results)}")


if __name__ == "__main__":
    main()
