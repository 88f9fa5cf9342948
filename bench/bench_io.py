"""Reads of tar shards by a shuffled plan, beside plain reads of the same bytes and WebDataset's reader.

    python bench/bench_io.py [--mb 4096] [--record 100000] [--turns 5] [--folder /data] [--results DIR]

Tar shards of records of 100 KB read by a shuffled plan, beside a plain read of the files in order and WebDataset's
reader (bench/_shard_reads.py says how), which take turns; MB/s of images, of `plain` of whole files, which are 1 to 2 %
more; medians, and ratios taken within a turn. From the page cache, then cold: the files' pages are dropped before each
read (a disk's own cache, and a host's below a virtual disk, are not). Rows go to results/io.csv.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

from _results import RESULTS, Rows
from _shard_reads import Reads, forget, ours, plain, straight, webdataset, write_set

from dali_feed.bench.facts import facts


def shards(asked: argparse.Namespace) -> int:
    """Measure readers of tar shards, print, and add rows to results/io.csv."""
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        paths = write_set(Path(folder), asked.mb or 4096, asked.record, asked.count)
        size = sum(path.stat().st_size for path in paths)
        told = {"files": len(paths), "bytes": size, "record": asked.record, "readers": asked.readers}
        rows = Rows("io", facts() | told | {"extent": asked.extent or 1, "turns": asked.turns}, asked.results)
        contestants: dict[str, Reads] = {"ours": ours(paths, asked.readers, asked.extent), "plain": plain(paths)}
        contestants["webdataset"] = webdataset(paths)
        for cold in (False, True):
            rates: dict[str, list[float]] = {name: [] for name in contestants}
            for turn in range(-1, asked.turns):  # the first is not counted: memory, imports and the page cache
                for name, read in contestants.items():
                    if cold:
                        forget(paths)
                    got, seconds = straight(read)
                    if turn >= 0:
                        rates[name].append(got / seconds / 1e6)
            for name, found in rates.items():
                beside = {
                    f"of {other}": f"{median(a / b for a, b in zip(found, rates[other], strict=True)):.2f}"
                    for other in ("plain", "webdataset")
                }
                figures = {"MB/s": round(median(found)), "least": round(min(found)), "most": round(max(found))}
                row = {"reader": name, "pages": "cold" if cold else "cached"} | figures | beside
                rows.measure(f"{name}, {row['pages']}", lambda row=row: row)  # type: ignore[misc]
        return rows.end()


def main() -> int:
    """Print what was measured."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--mb", type=int, help="MB of the tar shards (4096)")
    arguments.add_argument("--readers", type=int, default=2, help="reader threads, as in Tuning(readers=2)")
    arguments.add_argument("--record", type=int, default=100_000, help="bytes of an image")
    arguments.add_argument("--count", type=int, default=16, help="tar shards")
    arguments.add_argument("--extent", type=int, help="neighbours read in one go; default: single records")
    arguments.add_argument("--turns", type=int, default=5)
    arguments.add_argument("--folder", help="where the shards are written, on the disk to measure")
    arguments.add_argument("--results", type=Path, default=RESULTS)
    return shards(arguments.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
