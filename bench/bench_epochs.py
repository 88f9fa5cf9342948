"""How long a loop waits between two epochs, beside what it waits for within one.

    python bench/bench_epochs.py [--epochs 6] [--batch 64] [--step 0.1] [--pause 0.5]
                                 [--sources tar folder] [--engines host dali]

RandomResizedCrop(224), flip, float32, Normalize of 500x375 JPEGs, shuffled. The loop takes a batch and then works for
--step seconds, as a GPU would; between epochs it works for --pause seconds, as one that validates and saves. Two take
turns, each made afresh: `ahead`, the loader as it is, and `plain`, with Tuning(next_epoch=False).

Columns, in milliseconds; the first epoch is not counted:

    border   from the call of iter() to the first batch of an epoch: the median, the least and the most of all borders
    p50 ms, p99 ms   how long a step within an epoch waits for its batch
    of p99   the median border over that p99
    held MB  memory of encoded images that is held while the loop is between two epochs

Below it whether the goal is met: no border is longer than the p99 of a step's wait. Rows go to results/epochs.csv.
Nothing here passes or fails by a time.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _goals import within
from _results import RESULTS

from dali_feed import DataLoader, Decode, Tuning
from dali_feed.bench.facts import facts
from dali_feed.bench.photos import Photos, photos
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import spread
from dali_feed.bench.work import transform
from dali_feed.external_sources import FileList, ShardSet
from dali_feed.records.source import Source

WAYS = {"ahead": Tuning(), "plain": Tuning(next_epoch=False)}


@dataclass(slots=True)
class Waits:
    """Seconds: at borders, and within epochs; and the bytes held at each border."""

    borders: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    held: list[int] = field(default_factory=list)


def source_of(name: str, data: Photos) -> Source:
    """The same images as shards, or as files."""
    return ShardSet(data.shards) if name == "tar" else FileList.from_folder(str(data.files))


def run(source: Source, engine: str, tuning: Tuning, args: argparse.Namespace, waits: Waits) -> None:
    """A turn: all epochs of a new loader."""
    with DataLoader(
        source,
        args.batch,
        shuffle=True,
        drop_last=True,
        transform=transform(),
        device=torch.device("cpu"),
        decode=Decode(engine=engine),
        tuning=tuning,
    ) as loader:
        feed: Any = loader._feed
        slabs = feed._slabs
        for epoch in range(args.epochs):
            begun = time.perf_counter()
            for n, _ in enumerate(loader):
                waited = time.perf_counter() - begun
                if epoch:
                    (waits.steps if n else waits.borders).append(waited)
                time.sleep(args.step)
                begun = time.perf_counter()
            time.sleep(args.pause)
            waits.held.append(slabs.leased)


def main() -> None:
    """Measure, print, and add rows to results/epochs.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--step", type=float, default=0.1, help="seconds of a step's own work (default %(default)s)")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between epochs (default %(default)s)")
    parser.add_argument("--sources", nargs="*", choices=("tar", "folder"), default=["tar", "folder"])
    parser.add_argument("--engines", nargs="*", choices=("host", "dali"), default=["host"])
    parser.add_argument("--photos", type=int, default=600, help="different images (default %(default)s)")
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    data = photos(args.photos, cache=args.data)
    data.touch()
    made = facts() | {"images": data.count, "batch": args.batch, "step s": args.step, "pause s": args.pause}
    rows: list[dict[str, object]] = []
    for name in args.sources:
        for engine in args.engines:
            all_waits = {way: Waits() for way in WAYS}
            for _ in range(args.repeats):
                for way, tuning in WAYS.items():
                    run(source_of(name, data), engine, tuning, args, all_waits[way])
            for way, waits in all_waits.items():
                border = spread(waits.borders)
                p50, p99 = (float(np.quantile(waits.steps, q)) for q in (0.5, 0.99))
                numbers = {"border": border[0], "least": border[1], "most": border[2], "p50 ms": p50, "p99 ms": p99}
                rows.append(
                    {
                        "source": name,
                        "engine": engine,
                        "who": way,
                        **{key: f"{1000 * value:.2f}" for key, value in numbers.items()},
                        "of p99": f"{border[0] / p99:.2f}",
                        "held MB": f"{max(waits.held) / 1e6:.1f}",
                    }
                )
    print(table(rows, list(rows[0])))
    for row in (row for row in rows if row["who"] == "ahead"):
        middle, most, p99 = (float(str(row[name])) for name in ("border", "most", "p99 ms"))
        name = f"{row['source']}, {row['engine']}: no wait between epochs is above the p99 of a step's"
        print(within(name, middle, p99, worst=most, unit=" ms"))
    print(f"\nadded {len(rows)} rows to {append('epochs', [made | row for row in rows], args.results)}")


if __name__ == "__main__":
    main()
