"""What watching costs: images per second of one loader, watched by nobody and by several ways.

    python bench/bench_watch.py [--photos 600] [--batch 64] [--threads 2] [--repeats 5]

RandomResizedCrop(224), flip, float32, Normalize of 500x375 JPEGs from tar shards in the page cache, on the `host`
engine. Epochs of one loader in turns: unwatched; with an endpoint that nobody asks; with one that is asked each second,
as Prometheus would at its quickest, and ten times a second; with a report to a file every 50 batches. Images per second
and the ratio to the unwatched epoch of the same turn. Run it on a quiet machine: it is about percents.

Rows go to results/watch.csv.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from _results import RESULTS

from dali_feed import DataLoader, Tuning, watching
from dali_feed.bench.facts import facts
from dali_feed.bench.photos import HEIGHT, WIDTH, photos
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import rate_of, spread
from dali_feed.bench.work import transform
from dali_feed.external_sources import ShardSet

EVERY = 50  # batches between two reports
WAYS: dict[str, float | None] = {"nobody": None, "endpoint": 0.0, "asked each 1 s": 1.0, "asked each 0.1 s": 0.1}


@contextmanager
def asked(loader: DataLoader, seconds: float | None) -> Iterator[None]:
    """With an endpoint that is asked so often; 0: never; None: without one."""
    if seconds is None:
        yield
        return
    over = threading.Event()
    with watching.serve(loader) as at:

        def ask() -> None:
            while seconds and not over.wait(seconds):
                with urllib.request.urlopen(f"{at.url}/metrics") as answer:  # noqa: S310  our own
                    answer.read()

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def turns(loader: DataLoader, repeats: int) -> dict[str, list[float]]:
    """Images per second by who watches."""
    rates: dict[str, list[float]] = {name: [] for name in (*WAYS, "reports to a file")}
    rate_of(loader)
    with tempfile.TemporaryDirectory() as folder:
        lines = watching.JsonLines(Path(folder) / "run.jsonl")
        reporting: Iterable[Any] = watching.Reporting(loader, lines, every=EVERY)
        for _ in range(repeats):
            for name, seconds in WAYS.items():
                with asked(loader, seconds):
                    rates[name].append(rate_of(loader))
            rates["reports to a file"].append(rate_of(reporting))
    return rates


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
        rates = turns(loader, args.repeats)
    rows = []
    for name, found in rates.items():
        middle, low, high = spread(found)
        ratio, least, most = spread(a / b for a, b in zip(found, rates["nobody"], strict=True))
        rows.append(
            {
                "watched by": name,
                "img/s": round(middle),
                "low": round(low),
                "high": round(high),
                "ratio": round(ratio, 4),
                "ratio low": round(least, 4),
                "ratio high": round(most, 4),
                "image": f"{WIDTH}x{HEIGHT}",
                "batch": args.batch,
                "threads": args.threads,
                "turns": args.repeats,
            }
        )
    print(table(rows, ["watched by", "img/s", "low", "high", "ratio", "ratio low", "ratio high"]))
    print(f"rows added to {append('watch', [made | row for row in rows], args.results)}")


if __name__ == "__main__":
    main()
