"""What a second epoch costs, from a cache and without one.

    python bench/bench_cache.py [--photos 600] [--batch 64] [--threads 2] [--repeats 5] [--device cpu]
                                [--parts crop still pieces]

Images, on the `host` engine, of 500x375 JPEGs from tar shards in the page cache. Loaders that differ in their cache,
which holds all, run an epoch each that is not counted as a later one, and then epochs in turns: images per second, and
the ratio to the loader without a cache within a turn.

    crop   RandomResizedCrop(224), flip, float32, Normalize: without, bytes and pixels in memory, bytes and pixels on a
           disk. The disk's folder was filled by another loader before, as by an earlier run: "first epoch" is what a
           second run's first epoch gives. Its files lie in the page cache.
    still  Resize(256), CenterCrop(224), flip, float32, Normalize: without, bytes, pixels, images on the device, and
           bytes in memory beside those. With `--device cuda:0` also on the `dali` engine, without and on the device.
    pieces MB/s of the same shards' records, shuffled, read by the source alone, without and behind a `DiskCache` that
           holds all: its first epoch, and those after it. The files beneath lie in the page cache, as the pieces do: it
           shows what a piece's checksum costs, not what a slow store gains.

Rows go to results/cache.csv.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _results import RESULTS
from torchvision.transforms import v2

from dali_feed import Cache, DataLoader, Decode, Tuning
from dali_feed.bench.facts import facts
from dali_feed.bench.photos import HEIGHT, WIDTH, photos
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import spread
from dali_feed.bench.work import CROP, MEAN, STD, transform
from dali_feed.external_sources import DiskCache, ShardSet
from dali_feed.records.source import Extents

READ = 16  # records that are read at a time
MEMORY = {"none": None, "bytes": Cache("64GB"), "pixels": Cache("64GB", pixels=True)}


@dataclass(frozen=True, slots=True)
class How:
    """What all loaders are given."""

    batch: int
    threads: int
    repeats: int
    device: torch.device


def still() -> v2.Compose:
    """Nothing is random but flips, so that images can be kept as they are resized."""
    pixels = [v2.Resize(256), v2.CenterCrop(CROP), v2.RandomHorizontalFlip()]
    return v2.Compose([*pixels, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def crop_images(shards: list[str], how: How) -> list[dict[str, object]]:
    """A row per cache that takes any transform."""
    scratch = Path(tempfile.mkdtemp(prefix="dali-feed-bench-"))
    disks = {
        f"{kind} on a disk": Cache(disk=scratch / kind, disk_limit="64GB", pixels=kind == "pixels")
        for kind in ("bytes", "pixels")
    }
    try:
        for cache in disks.values():
            with loader(shards, cache, how, transform(), "host") as before:
                rate(before, how.device)
        return measured(shards, "images", {**MEMORY, **disks}, how, transform(), "host")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def still_images(shards: list[str], how: How) -> list[dict[str, object]]:
    """A row per cache, those on the device among them."""
    device = {"device": Cache(device="16GB"), "device, bytes": Cache("16GB", device="16GB")}
    rows = measured(shards, f"still images on {how.device}", {**MEMORY, **device}, how, still(), "host")
    if how.device.type != "cpu":
        dali = {"none": None, **device}
        rows += measured(shards, f"still images on {how.device}, dali engine", dali, how, still(), "dali")
    return rows


def loader(shards: list[str], cache: Cache | None, how: How, transform: v2.Compose, engine: str) -> DataLoader:
    """With that cache."""
    tuning = Tuning(threads=how.threads, cache=cache)
    options: dict[str, Any] = {
        "transform": transform,
        "device": how.device,
        "decode": Decode(engine=engine),
        "tuning": tuning,
    }
    return DataLoader(ShardSet(shards), how.batch, shuffle=True, **options)


def rate(made: DataLoader, device: torch.device) -> float:
    """Images per second of an epoch, all of it done."""
    images, begun = 0, time.perf_counter()
    for batch, *_ in made:
        images += len(batch)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return images / (time.perf_counter() - begun)


def measured(
    shards: list[str], what: str, caches: Mapping[str, Cache | None], how: How, transform: v2.Compose, engine: str
) -> list[dict[str, object]]:
    """A row per cache."""
    rates: dict[str, list[float]] = {name: [] for name in caches}
    firsts, held = {}, {}
    with ExitStack() as open_:
        loaders = {}
        for name, cache in caches.items():
            loaders[name] = open_.enter_context(loader(shards, cache, how, transform, engine))
            firsts[name] = rate(loaders[name], how.device)
        for _ in range(how.repeats):
            for name, made in loaders.items():
                rates[name].append(rate(made, how.device))
        for name, made in loaders.items():
            found = made.stats().cache
            held[name] = 0 if found is None else found.held + found.disk_held + found.device_held
    return summed({f"{what}, cache of {name}": name for name in caches}, "img/s", firsts, rates, held)


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


IMAGES = {"crop": crop_images, "still": still_images}
PARTS = (*IMAGES, "pieces")


def main() -> None:
    """Measure, print, and add rows to results/cache.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=600, help="different images (default %(default)s)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="default %(default)s")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    data = photos(args.photos, cache=args.data)
    data.touch()
    how = How(args.batch, args.threads, args.repeats, args.device)
    rows: list[dict[str, object]] = []
    for part in dict.fromkeys(args.parts):
        rows += pieces(data.shards, how.repeats) if part == "pieces" else IMAGES[part](data.shards, how)
    print(table(rows, list(rows[0])))
    size = f"{HEIGHT}x{WIDTH}"
    made = facts() | {"images": data.count, "size": size, "batch": args.batch, "threads": args.threads}
    print(f"\nadded {len(rows)} rows to {append('cache', [made | row for row in rows], args.results)}")


if __name__ == "__main__":
    main()
