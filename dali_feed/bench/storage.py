"""`dali-feed bench storage`: one file read in blocks, in order or anywhere, by some threads, for a while.

The law: what is told was measured, and it is told whether the page cache had the bytes: "warm" has read the same bytes
just before, "cold" has asked the kernel to drop them, "direct" goes past the cache. No place is read twice in a turn.
"""

from __future__ import annotations

import functools
import mmap
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from dali_feed.bench.runner import Contestant, Race, Timed, opened
from dali_feed.errors import ConfigError, SourceError
from dali_feed.storage.striping import BLOCK

UNIT = "MB"
SHOWN = ["who", "way", "MB/s", "least", "most", "reads/s", "read p50 ms", "read p99 ms", "busy"]
BLOCKS = (4096, 100_000, 1 << 20, 8 << 20)
THREADS = (1, 4, 16)
MODES = ("cold", "warm", "direct")


def contestants(
    path: str,
    *,
    blocks: Sequence[int] = BLOCKS,
    threads: Sequence[int] = THREADS,
    modes: Sequence[str] = MODES,
    most_bytes: int = 256 << 20,
    seconds: float = 1.0,
) -> list[Contestant]:
    """A contestant for each mode, pattern, block and number of threads. ConfigError: the file is too small."""
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        msg = f"{path}: a file to measure must be readable; found {error.strerror} (errno {error.errno})"
        raise SourceError(msg) from error
    chosen = []
    for mode in modes:
        whole = [block if mode != "direct" else -(-block // BLOCK) * BLOCK for block in blocks]
        if size < max(whole):
            msg = f"{path}: a file to measure must have {max(whole)} bytes or more; found {size}; name another"
            raise ConfigError(msg)
        unable = _no_direct(path) if mode == "direct" else None
        plan = [("random", block, count) for block in whole for count in threads]
        for pattern, block, count in plan + [("sequential", max(whole), count) for count in threads]:
            read = functools.partial(_read, path, size, pattern, mode, block, count, most_bytes, seconds)
            name = f"{mode}, {pattern}, {block:,} B x{count}"
            chosen.append(Contestant(name, opened(functools.partial(Timed, read)), unable=unable))
    return chosen


def _no_direct(path: str) -> str | None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        return f"this file system takes no direct reads ({error.strerror})"
    return None


def _read(
    path: str, size: int, pattern: str, mode: str, block: int, threads: int, most: int, seconds: float
) -> tuple[float, float, dict[str, float | str]]:
    """MB that were read, the seconds of it, and how long single reads took."""
    places = np.arange(size // block, dtype=np.int64) * block
    if pattern == "random":
        np.random.default_rng(0).shuffle(places)
    places = places[: max(threads, most // block)]
    flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if mode == "direct" else 0)
    file = os.open(path, flags)
    try:
        advice = os.POSIX_FADV_RANDOM if pattern == "random" else os.POSIX_FADV_SEQUENTIAL
        os.posix_fadvise(file, 0, 0, advice)
        if mode == "warm":
            buffer = memoryview(mmap.mmap(-1, block))
            for at in places.tolist():
                os.preadv(file, (buffer,), at)
        elif mode == "cold":
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        times, bytes_read, failed = [list[float]() for _ in range(threads)], [0] * threads, list[OSError]()
        begun = time.perf_counter()

        def work(k: int) -> None:
            buffer = memoryview(mmap.mmap(-1, block))  # on a page's border, as direct reads ask
            try:
                for at in places[k::threads].tolist():
                    started = time.perf_counter()
                    if started - begun > seconds:
                        return
                    bytes_read[k] += os.preadv(file, (buffer,), at)
                    times[k].append(time.perf_counter() - started)
            except OSError as error:
                failed.append(error)

        workers = [threading.Thread(target=work, args=(k,), name="dali-feed-bench-read") for k in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        took = time.perf_counter() - begun
    finally:
        os.close(file)
    if failed:
        raise failed[0]
    every = np.concatenate([np.asarray(each) for each in times])
    p50, p99 = np.quantile(every, (0.5, 0.99)) * 1e3
    figures = {"read p50 ms": round(float(p50), 4), "read p99 ms": round(float(p99), 4)}
    return sum(bytes_read) / 1e6, took, {**figures, "reads": len(every), "reads/s": len(every) / took}


def findings(race: Race) -> list[str]:
    """Which settings they speak for: the fewest readers within a tenth of the best; what is warm does not count."""
    slow = [row for row in race.rows if not row.who.startswith("warm")] or race.rows
    if not slow:
        return []
    best = max(slow, key=lambda row: median(row.rates))
    what, _, _ = best.who.rpartition(" x")
    near = [row for row in slow if row.who.startswith(f"{what} x") and median(row.rates) >= 0.9 * median(best.rates)]
    readers = min(int(row.who.rpartition(" x")[2]) for row in near)
    more = "where a run needs more, lay the shards over several such storages: dali-feed pack --targets"
    return [f"Tuning(readers={readers}): {median(best.rates):,.0f} MB/s at best ({what}); {more}"]
