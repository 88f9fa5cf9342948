"""What a second epoch costs, from a cache and without one.

    python bench/bench_cache.py [--photos 600] [--batch 64] [--threads 2] [--repeats 5]

Images: RandomResizedCrop(224), flip, float32, Normalize of 500x375 JPEGs from tar shards in the page cache, on the
`host` engine. Loaders without a cache, with one of bytes and with one of pixels, all of which holds, run an epoch each
that is not counted, and then epochs in turns: images per second, and the ratio to the loader without within a turn.

Pieces: MB/s of the same shards' records, shuffled, read by the source alone, without and behind a `DiskCache` that
holds all: its first epoch, and those after it. The files beneath lie in the page cache, as the pieces do: it shows what
a piece's checksum costs, not what a slow store gains.

Rows go to results/cache.csv.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from _results import RESULTS

from dali_feed import Cache, DataLoader, Tuning
from dali_feed.bench.facts import facts
from dali_feed.bench.photos import HEIGHT, WIDTH, photos
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import rate_of, spread
from dali_feed.bench.work import transform
from dali_feed.external_sources import DiskCache, ShardSet
from dali_feed.records.source import Extents

READ = 16  # records that are read at a time


def images(shards: list[str], batch: int, threads: int, repeats: int) -> list[dict[str, object]]:
    """A row per cache."""
    caches = {"none": None, "bytes": Cache("64GB"), "pixels": Cache("64GB", pixels=True)}
    rates: dict[str, list[float]] = {name: [] for name in caches}
    firsts, held = {}, {}
    with ExitStack() as open_:
        loaders = {}
        for name, cache in caches.items():
            tuning = Tuning(threads=threads, cache=cache)
            made = DataLoader(
                ShardSet(shards), batch, shuffle=True, transform=transform(), device=torch.device("cpu"), tuning=tuning
            )
            loaders[name] = open_.enter_context(made)
            firsts[name] = rate_of(made)
        for _ in range(repeats):
            for name, loader in loaders.items():
                rates[name].append(rate_of(loader))
        for name, loader in loaders.items():
            found = loader.stats().cache
            held[name] = 0 if found is None else found.held
    return summed({f"images, cache of {name}": name for name in caches}, "img/s", firsts, rates, held)


def summed(
    named: dict[str, str],
    unit: str,
    firsts: dict[str, float],
    rates: dict[str, list[float]],
    held: dict[str, int] | None = None,
) -> list[dict[str, object]]:
    """A row for each, beside the one without a cache."""
    rows: list[dict[str, object]] = []
    for what, name in named.items():
        middle, least, most = spread(rates[name])
        ratio = spread(mine / none for mine, none in zip(rates[name], rates["none"], strict=True))[0]
        figures = {"later epochs": middle, "least": least, "most": most}
        rows.append(
            {"what": what, "unit": unit, "first epoch": round(firsts[name])}
            | {key: round(value) for key, value in figures.items()}
            | {"ratio": f"{ratio:.2f}", "held MB": round((held or {}).get(name, 0) / 1e6)}
        )
    return rows


def read_all(source: ShardSet) -> float:
    """MB/s of its payloads in a shuffled order."""
    snapshot = source.snapshot()
    partition = np.repeat(np.arange(len(snapshot.stops)), snapshot.stops)
    position = np.concatenate([np.arange(stop) for stop in snapshot.stops.tolist()])
    order = np.random.default_rng(0).permutation(len(position))
    partition, position = partition[order], position[order]
    reader, size, begun = source.reader(), 0, time.perf_counter()
    for at in range(0, len(order), READ):
        some = slice(at, at + READ)
        block = reader.read(Extents(partition[some], position[some], position[some] + 1))
        size += sum(len(payload or b"") for payload in block.payloads)
        block.lease.release()
    seconds = time.perf_counter() - begun
    reader.close()
    return size / seconds / 1e6


def pieces(shards: list[str], repeats: int) -> list[dict[str, object]]:
    """A row without a cache and one with."""
    folder = Path(tempfile.mkdtemp(prefix="dali-feed-bench-"))
    try:
        sources = {"none": ShardSet(shards), "disk": ShardSet(shards, cache=DiskCache(folder, "64GB"))}
        firsts = {name: read_all(source) for name, source in sources.items()}
        rates: dict[str, list[float]] = {name: [] for name in sources}
        for _ in range(repeats):
            for name, source in sources.items():
                rates[name].append(read_all(source))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return summed({f"records, cache: {name}": name for name in sources}, "MB/s", firsts, rates)


def main() -> None:
    """Measure, print, and add rows to results/cache.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=600, help="different images (default %(default)s)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    data = photos(args.photos, cache=args.data)
    data.touch()
    rows = images(data.shards, args.batch, args.threads, args.repeats) + pieces(data.shards, args.repeats)
    print(table(rows, list(rows[0])))
    size = f"{HEIGHT}x{WIDTH}"
    made = facts() | {"images": data.count, "size": size, "batch": args.batch, "threads": args.threads}
    print(f"\nadded {len(rows)} rows to {append('cache', [made | row for row in rows], args.results)}")


if __name__ == "__main__":
    main()
