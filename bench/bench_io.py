"""Striped reads beside one target, each target throttled, and beside plain reads of the same bytes.

    python bench/bench_io.py [--mb 128] [--rate 40] [--readers 2]
    python bench/bench_io.py --shards [--mb 4096] [--record 100000] [--turns 5] [--folder /data] [--results DIR]

With `--shards`: tar shards of records of 100 KB read by a shuffled plan, beside a plain read of the files in order and
WebDataset's reader (bench/_shard_reads.py says how), which take turns; MB/s of images, of `plain` of whole files, which
are 1 to 2 % more; medians, and ratios taken within a turn. From the page cache, then cold: the files' pages are
dropped before each read (a disk's own cache, and a host's below a virtual disk, are not). Rows go to results/io.csv.
Without: what follows, with rows in results/striped.csv.

The throttle is in this process, not below the file system: `os.preadv` is wrapped, and a part's file waits in a bucket
of its target (a lock, and a clock of when the bytes that were asked for have passed at `--rate` MB/s) before the real
read. So it shows that four slow targets work at the same time, and nothing of any disk. Page cache: warm.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from _results import RESULTS, Rows
from _shard_reads import Reads, forget, ours, plain, straight, webdataset, write_set

from dali_feed.bench.facts import facts
from dali_feed.storage.layout import Layout
from dali_feed.storage.stripe_writer import StripeWriter
from dali_feed.storage.striped_file import StripedFile
from dali_feed.storage.striped_reads import fill_striped

VIEW = 8 << 20
_preadv = os.preadv


class Bucket:
    """One target's bytes per second."""

    def __init__(self, rate: float) -> None:
        self._rate, self._lock, self._free = rate, threading.Lock(), 0.0

    def take(self, size: int) -> None:
        """Wait until so many bytes have passed."""
        with self._lock:
            self._free = max(self._free, time.perf_counter()) + size / self._rate
            until = self._free
        time.sleep(max(0.0, until - time.perf_counter()))


def throttled(rate: float) -> None:
    """Give every folder a bucket from now on."""
    buckets: dict[str, Bucket] = {}
    lock = threading.Lock()

    def preadv(fd: int, views: Sequence[memoryview], at: int, flags: int = 0) -> int:
        folder = str(Path(f"/proc/self/fd/{fd}").readlink().parent)
        with lock:
            bucket = buckets.setdefault(folder, Bucket(rate))
        bucket.take(sum(map(len, views)))
        return _preadv(fd, views, at, flags)

    os.preadv = preadv  # type: ignore[assignment]


def read_all(open_file: Callable[[], StripedFile], readers: int) -> float:
    """MB/s of the whole file, as readers of shards ask for it: a block of 8 MiB at a time, in views of 1 MiB."""
    stop, began, sizes = threading.Event(), time.perf_counter(), [0] * readers

    def read(reader: int) -> None:
        file, block = open_file(), memoryview(bytearray(VIEW))
        for at in range(reader * VIEW, file.size, readers * VIEW):
            views = [block[k : k + (1 << 20)] for k in range(0, VIEW, 1 << 20)]
            places = list(range(at, at + VIEW, 1 << 20))
            sizes[reader] += sum(fill_striped(lambda _: file, [0] * len(views), views, places, stop, 128))
        file.close()

    threads = [threading.Thread(target=read, args=(k,)) for k in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sizes) / (time.perf_counter() - began) / 1e6


def targets(asked: argparse.Namespace) -> int:
    """Print what striping gives over one, two and four targets, and add rows to results/striped.csv."""
    found: dict[tuple[bool, int], float] = {}
    told = {"mb": asked.mb or 128, "readers": asked.readers}
    rows = Rows("striped", facts() | told, asked.results)
    with tempfile.TemporaryDirectory() as folder:
        for slow in (False, True):
            if slow:
                throttled(asked.rate * 1e6)
            for count in (1, 2, 4):
                names = tuple(f"{slow}{count}{k}" for k in range(4))
                for target in names:
                    Path(folder, target).mkdir()
                layout = Layout(names, count)
                writer = StripeWriter(folder, layout, 0, "a.tar")
                for _ in range(asked.mb or 128):
                    writer.write(bytes(1 << 20))
                opened = functools.partial(StripedFile, "a.tar", folder, layout, writer.commit())
                found[slow, count] = max(read_all(opened, asked.readers) for _ in range(3 if not slow else 1))
                rate = asked.rate if slow else "none"
                figures = {"MB/s": round(found[slow, count], 1), "of one": f"{found[slow, count] / found[slow, 1]:.2f}"}
                row = {"targets": count, "held to MB/s": rate} | figures
                rows.measure(f"{count} targets, {rate}", lambda row=row: row)  # type: ignore[misc]
    return rows.end()


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
    arguments.add_argument("--shards", action="store_true", help="read tar shards, beside others")
    arguments.add_argument("--mb", type=int, help="MiB of the striped shard (128), MB of the tar shards (4096)")
    arguments.add_argument("--rate", type=float, default=40.0, help="MB/s of a throttled target")
    arguments.add_argument("--readers", type=int, default=2, help="reader threads, as in Tuning(readers=2)")
    arguments.add_argument("--record", type=int, default=100_000, help="bytes of an image")
    arguments.add_argument("--count", type=int, default=16, help="tar shards")
    arguments.add_argument("--extent", type=int, help="neighbours read in one go; default: single records")
    arguments.add_argument("--turns", type=int, default=5)
    arguments.add_argument("--folder", help="where the shards are written, on the disk to measure")
    arguments.add_argument("--results", type=Path, default=RESULTS)
    asked = arguments.parse_args()
    if asked.shards:
        return shards(asked)
    return targets(asked)


if __name__ == "__main__":
    raise SystemExit(main())
