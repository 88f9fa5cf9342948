"""What reads tar shards, a whole set once: our readers by a shuffled plan, plain reads in order, WebDataset's.

ours        two threads of a `ReadPool`, as a feed has, with reads of most of a slab along the plan of an epoch
plain       one thread, files one after the other, 8 MiB at a time into the same memory
webdataset  `wds.WebDataset(paths)` in one thread, in order, nothing decoded: what its samples hold is bytes
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dali_feed.external_sources import ShardSet
from dali_feed.feed.reading import ReadPool, ReadTask
from dali_feed.plan.order import EpochPlan, Shuffle, resolve
from dali_feed.records.slabs import SLAB_BYTES, SlabPool
from dali_feed.testing.shards import write_shard

__all__ = ["Reads", "forget", "ours", "plain", "straight", "webdataset", "write_set"]

AHEAD = 8  # reads that are asked for and not taken
Reads = Callable[[], int]  # the bytes of images that it gave; of `plain`, of the files


def write_set(folder: Path, megabytes: int, record: int, shards: int) -> list[Path]:
    """So many shards of about that size in all, of records of `record` bytes that do not compress."""
    draw, paths = np.random.default_rng(0), []
    each = max(1, megabytes * 1_000_000 // record // shards)
    for k in range(shards):
        paths.append(folder / f"x-{k:06d}.tar")
        write_shard(paths[-1], ((draw.bytes(record), n % 1000) for n in range(each)), first=k * each)
        with paths[-1].open("rb") as file:
            os.fsync(file.fileno())  # pages that are not on the disk yet stay where they are asked to go
    return paths


def forget(paths: list[Path]) -> None:
    """Have the page cache without these files, all of whose pages are on the disk."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def ours(paths: list[Path], readers: int, extent: int | None) -> Reads:
    """A `ShardSet`, indexed by now, read by the plan of one epoch."""
    source = ShardSet([str(path) for path in paths], label="cls")
    snapshot = source.snapshot()
    order = resolve(Shuffle(extent), snapshot)
    slabs = SlabPool()  # of all turns: a run's slabs have been written to before
    per_read = max(1, SLAB_BYTES * 7 // 8 // snapshot.record_bytes // order.extent)

    def read() -> int:
        line = EpochPlan(snapshot, order, seed=0, epoch=0).reads([0])
        tasks = [ReadTask(line[k : k + per_read], lambda: 0) for k in range(0, len(line.start), per_read)]
        size = 0
        pool, taken = ReadPool(source, slabs, readers), deque[ReadTask]()
        try:
            for task in [*tasks, *[None] * AHEAD]:
                if task is not None:
                    pool.request(task)
                    taken.append(task)
                if taken and (task is None or len(taken) > AHEAD):
                    block = taken.popleft().take()
                    size += sum(len(payload) for payload in block.payloads if payload is not None)
                    block.lease.release()
        finally:
            pool.close()
        return size

    return read


def plain(paths: list[Path]) -> Reads:
    """The files' bytes in order, into memory that has been written to before."""
    room = memoryview(bytearray(SLAB_BYTES))

    def read() -> int:
        size = 0
        for path in paths:
            fd, at = os.open(path, os.O_RDONLY), 0
            while got := os.preadv(fd, (room,), at):
                at += got
            os.close(fd)
            size += at
        return size

    return read


def webdataset(paths: list[Path]) -> Reads:
    """All samples as WebDataset's reader gives them."""
    import webdataset as wds  # type: ignore[import-untyped]

    def read() -> int:
        found = wds.WebDataset([str(path) for path in paths], shardshuffle=False)
        return sum(len(sample["jpg"]) for sample in found)

    return read


def straight(read: Reads) -> tuple[int, float]:
    """Bytes, and seconds that it took."""
    began = time.perf_counter()
    return read(), time.perf_counter() - began
