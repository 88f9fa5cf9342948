"""MB/s of ranged reads from a web server whose every answer comes late, beside one stream of the same bytes.

    python bench/bench_remote.py [--megabytes 128] [--delay 0.02] [--records 100000] [--turns 3] [--results DIR]

The server is the tests' own, in a process of its own on this machine: what it can give bounds all of it. One stream is
`urllib`, one request after the other for 8 MiB each; ours are ShardSet readers, which ask for many at once. They take
turns; a row has medians, and the ratio taken within a turn. Rows go to results/remote.csv.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import numpy as np
from _results import RESULTS, Rows

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from kit.web import Web

from dali_feed.bench.facts import facts
from dali_feed.external_sources import ShardSet
from dali_feed.records.extents import Extents
from dali_feed.testing.shards import write_shard

SHARDS = 4
REQUEST = 8 << 20


def serve(folder: str, delay: float, at: Connection) -> None:
    """Serve the folder until the other side closes."""
    with Web({path.name: path.read_bytes() for path in Path(folder).iterdir()}, delay=delay) as web:
        at.send(web.url)
        at.poll(None)


def stream(url: str, names: list[str], sizes: list[int]) -> float:
    """Seconds of one request after the other."""
    begun = time.perf_counter()
    for name, size in zip(names, sizes, strict=True):
        for start in range(0, size, REQUEST):
            span = {"Range": f"bytes={start}-{min(size, start + REQUEST) - 1}"}
            with urllib.request.urlopen(urllib.request.Request(f"{url}/{name}", headers=span)) as answer:  # noqa: S310
                answer.read()
    return time.perf_counter() - begun


def ours(url: str, names: list[str], folder: str) -> float:
    """Seconds of a reader that asks for all shards in turns of an extent of each."""
    source = ShardSet([f"{url}/{name}" for name in names], index_dir=folder)
    found = source.snapshot()
    reader = source.reader()
    begun = time.perf_counter()
    step = found.extent
    for start in range(0, int(found.stops.max()), step):
        shards = np.flatnonzero(found.stops > start)
        stops = np.minimum(found.stops[shards], start + step)
        reader.read(Extents(shards, np.full(len(shards), start), stops)).lease.release()
    return time.perf_counter() - begun


def main() -> int:
    """Measure, print and keep the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--delay", type=float, default=0.02, help="seconds before each answer (default %(default)s)")
    parser.add_argument("--records", type=int, default=100_000, help="bytes of each (default %(default)s)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as indexes:
        count = args.megabytes * 1_000_000 // args.records // SHARDS
        names = [f"{k}.tar" for k in range(SHARDS)]
        for name in names:
            write_shard(Path(folder, name), ((os.urandom(args.records), n) for n in range(count)))
        sizes = [Path(folder, name).stat().st_size for name in names]
        here, there = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(folder, args.delay, there))
        server.start()
        url = here.recv()
        mb = sum(sizes) / 1e6
        told = {"bytes": sum(sizes), "record": args.records, "delay": args.delay, "turns": args.turns}
        rows = Rows("remote", facts() | told, args.results)

        def measured() -> dict[str, object]:
            turns = [(stream(url, names, sizes), ours(url, names, indexes)) for _ in range(args.turns)]
            one, many = (median(mb / seconds for seconds in each) for each in zip(*turns, strict=True))
            times = median(one / many for one, many in turns)
            return {"one stream MB/s": round(one, 1), "ours MB/s": round(many, 1), "of one stream": f"{times:.2f}"}

        rows.measure(f"delay {args.delay} s", measured)
        here.send(None)
        server.join()
    return rows.end()


if __name__ == "__main__":
    raise SystemExit(main())
