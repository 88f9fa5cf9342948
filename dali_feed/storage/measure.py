"""What a storage gives: one file read in blocks, in order or anywhere, by some threads, for a while.

The law: what is told was measured, and it is told whether the page cache had the bytes: "warm" has read the same bytes
just before, "cold" has asked the kernel to drop them, "direct" goes past the cache.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dali_feed.errors import ConfigError, SourceError
from dali_feed.storage.layout import BLOCK

__all__ = ["BLOCKS", "THREADS", "Measured", "measures"]

BLOCKS = (4096, 100_000, 1 << 20, 8 << 20)
THREADS = (1, 4, 16)
MODES = ("cold", "warm", "direct")


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement.

    pattern  "sequential" or "random"
    mode     "cold", "warm" or "direct"
    block    bytes of a read
    threads  that read at once
    reads    that were made
    bytes    that they gave
    seconds  from the first one's begin to the last one's end
    p50, p99 seconds that half, and 99 of 100, of the reads took at most
    """

    pattern: str
    mode: str
    block: int
    threads: int
    reads: int
    bytes: int
    seconds: float
    p50: float
    p99: float

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds if self.seconds else 0.0


def measures(
    path: str,
    *,
    blocks: Sequence[int] = BLOCKS,
    threads: Sequence[int] = THREADS,
    modes: Sequence[str] = MODES,
    most_bytes: int = 256 << 20,
    seconds: float = 1.0,
) -> Iterator[Measured]:
    """Measure reads of the file at `path`, one after the other; none takes much longer than `seconds`.

    Raises:
        ConfigError: the file is smaller than a block.
        SourceError: it cannot be opened or read. Where a file system takes no direct reads, those are left out.
    """
    try:
        size = os.stat(path).st_size
        for mode in modes:
            flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if mode == "direct" else 0)
            try:
                fd = os.open(path, flags)
            except OSError:
                if mode == "direct":
                    continue
                raise
            try:
                for pattern, block, count in _plan(blocks, threads, mode):
                    if size < block:
                        msg = f"{path}: a file to measure must have {block} bytes or more; found {size}; name another"
                        raise ConfigError(msg)
                    yield _one(fd, size, pattern, mode, block, count, most_bytes, seconds)
            finally:
                os.close(fd)
    except OSError as error:
        msg = f"{path}: a file to measure must be readable; found {error.strerror} (errno {error.errno})"
        raise SourceError(msg) from error


def _plan(blocks: Sequence[int], threads: Sequence[int], mode: str) -> Iterator[tuple[str, int, int]]:
    for block in blocks:
        whole = block if mode != "direct" else -(-block // BLOCK) * BLOCK
        for count in threads:
            yield "random", whole, count
    largest = max(blocks)
    for count in threads:
        yield "sequential", largest if mode != "direct" else -(-largest // BLOCK) * BLOCK, count


def _one(fd: int, size: int, pattern: str, mode: str, block: int, threads: int, most: int, seconds: float) -> Measured:
    places = np.arange(size // block, dtype=np.int64) * block
    if pattern == "random":
        np.random.default_rng(0).shuffle(places)  # none twice: its second read would find the page cache warm
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # and none is read ahead of its time
    else:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    places = places[: max(threads, most // block)]
    if mode == "warm":
        buffer = memoryview(mmap.mmap(-1, block))
        for at in places.tolist():
            os.preadv(fd, (buffer,), at)
    elif mode == "cold":
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    times: list[list[float]] = [[] for _ in range(threads)]
    given = [0] * threads
    failed: list[OSError] = []
    begin = time.perf_counter()

    def work(k: int) -> None:
        buffer = memoryview(mmap.mmap(-1, block))  # on a page's border, as direct reads ask
        try:
            for at in places[k::threads].tolist():
                began = time.perf_counter()
                if began - begin > seconds:
                    return
                given[k] += os.preadv(fd, (buffer,), at)
                times[k].append(time.perf_counter() - began)
        except OSError as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=(k,), name="dali-feed-measure") for k in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - begin
    if failed:
        raise failed[0]
    every = np.sort(np.concatenate([np.asarray(each) for each in times]))
    p50, p99 = (float(every[min(len(every) - 1, int(share * len(every)))]) for share in (0.5, 0.99))
    return Measured(pattern, mode, block, threads, len(every), sum(given), took, p50, p99)
