"""Striped reads beside one target, each target throttled, and beside plain reads of the same bytes.

    python bench/bench_io.py [--mb 128] [--rate 40] [--readers 2]

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

    def preadv(fd: int, views: Sequence[memoryview], at: int) -> int:
        folder = str(Path(f"/proc/self/fd/{fd}").readlink().parent)
        with lock:
            bucket = buckets.setdefault(folder, Bucket(rate))
        bucket.take(sum(map(len, views)))
        return _preadv(fd, views, at)

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


def main() -> None:
    """Print what was measured."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--mb", type=int, default=128, help="MiB of the shard")
    arguments.add_argument("--rate", type=float, default=40.0, help="MB/s of a throttled target")
    arguments.add_argument("--readers", type=int, default=2, help="reader threads, as in Tuning(readers=2)")
    asked = arguments.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for slow in (False, True):
            if slow:
                throttled(asked.rate * 1e6)
            for count in (1, 2, 4):
                targets = tuple(f"{slow}{count}{k}" for k in range(4))
                for target in targets:
                    Path(folder, target).mkdir()
                layout = Layout(targets, count)
                writer = StripeWriter(folder, layout, 0, "a.tar")
                for _ in range(asked.mb):
                    writer.write(bytes(1 << 20))
                opened = functools.partial(StripedFile, "a.tar", folder, layout, writer.commit())
                found[slow, count] = max(read_all(opened, asked.readers) for _ in range(3 if not slow else 1))
                told = f"{asked.rate:.0f} MB/s each" if slow else "not throttled, page cache"
                ratio = found[slow, count] / found[slow, 1]
                print(f"{count} target(s), {told}: {found[slow, count]:,.0f} MB/s, {ratio:.2f} of one")
    print("load", *os.getloadavg())


if __name__ == "__main__":
    main()
