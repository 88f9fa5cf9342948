"""Sets on a disk: reading tar shards by a shuffled plan; packing, verifying, opening and reading a set.

    python bench/storage.py [reads pack] [--folder /data]

reads  single records of 100 KB in 12 tar shards of 1.5 GB, by the plan of a shuffled epoch with two readers (`ours`),
       beside `plain` (one thread, files in order, 8 MiB at a time) and WebDataset's reader; from the page cache, and
       cold: pages dropped before each turn
pack   a million records of 2 KB, each step a process of its own: `pack` with two threads, `verify` every byte, `open`
       the set, `start` to the first batch of a shuffled epoch, `read` all with checksums and without
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from _common import Heat, Options, child, main, timed

from dali_feed.bench.runner import Contestant
from dali_feed.external_sources import ShardSet
from dali_feed.feed.reading import ReadPool, ReadTask
from dali_feed.packing import pack, verify
from dali_feed.packing.plan import blocks, extents_of
from dali_feed.packing.sinks import write_shard
from dali_feed.plan.order import EpochPlan, Shuffle, resolve
from dali_feed.records.pieces import nbytes
from dali_feed.records.slabs import SLAB_BYTES, SlabPool

Told = tuple[float, float, dict[str, float | str]]
RECORD, FILES, AHEAD = 100_000, 12, 8


def forget(paths: list[Path]) -> None:
    """Have the page cache without these files, all of whose pages are on the disk."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def by_plan(paths: list[Path]) -> Callable[[], int]:
    """A `ShardSet`, indexed by now, read by the plan of one epoch with most of a slab a read; bytes."""
    source, slabs = ShardSet([str(path) for path in paths], label="cls"), SlabPool()
    snapshot = source.snapshot()
    order = resolve(Shuffle(None), snapshot)
    per_read = max(1, SLAB_BYTES * 7 // 8 // snapshot.record_bytes // order.extent)

    def read() -> int:
        line = EpochPlan(snapshot, order, seed=0, epoch=0).window(0, 0, len(snapshot)).extents
        tasks = [ReadTask(line[k : k + per_read], lambda: 0) for k in range(0, len(line.start), per_read)]
        size, pool, taken = 0, ReadPool(source, partial(source.reader, ["jpg", "cls"]), slabs, 2), deque[ReadTask]()
        try:
            for task in [*tasks, *[None] * AHEAD]:
                if task is not None:
                    pool.request(task)
                    taken.append(task)
                if taken and (task is None or len(taken) > AHEAD):
                    block = taken.popleft().take()
                    size += nbytes(block.values["jpg"])
                    block.lease.release()
        finally:
            pool.close()
        return size

    read()  # memory that has been written to, and files that are known: a turn is not the first
    return read


def in_order(paths: list[Path]) -> int:
    """The files' bytes, into memory that is used again."""
    room, size = memoryview(bytearray(SLAB_BYTES)), 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while taken := file.readinto(room):
                size += taken
    return size


def by_webdataset(paths: list[Path]) -> int:
    """All samples as its reader gives them."""
    import webdataset as wds  # type: ignore[import-untyped]

    return sum(len(sample["jpg"]) for sample in wds.WebDataset([str(path) for path in paths], shardshuffle=False))


def reads(options: Options) -> Iterator[Heat]:
    """Cached and cold."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        draw, paths = np.random.default_rng(0), [Path(folder, f"x-{k:06d}.tar") for k in range(FILES)]
        each = max(4, int(options.scale * 1.5e9 / RECORD / FILES))
        for k, path in enumerate(paths):
            write_shard(path, ((draw.bytes(RECORD), n % 1000) for n in range(each)), first=k * each)
            with path.open("rb") as file:
                os.fsync(file.fileno())  # pages that are not on the disk yet stay where they are asked to go
        ways: dict[str, Callable[[], int]]
        ways = {"plain": partial(in_order, paths), "ours": by_plan(paths), "webdataset": partial(by_webdataset, paths)}
        for name, before in (("cached", in_order), ("cold", forget)):

            def work(read: Callable[[], int], before: Callable[[list[Path]], object] = before) -> Told:
                before(paths)
                begun = time.perf_counter()
                return read() / 1e6, time.perf_counter() - begun, {}

            chosen = [Contestant(who, timed(partial(work, read)), beside="plain") for who, read in ways.items()]
            yield Heat(f"single records, {name}", chosen, "MB")


def _all_of(work: Path, *, check: bool) -> None:
    source = ShardSet(work / "set" / "x.dfset", image=("bin",), check=check)
    snapshot = source.snapshot()
    for _ in blocks(source, ["bin", "cls"], list(extents_of(snapshot, 0, len(snapshot)))):
        pass


def _pack(work: Path) -> None:
    shutil.rmtree(work / "set", ignore_errors=True)  # an earlier round's
    pack(ShardSet(work / "s.tar", index_dir=work), work / "set" / "x.dfset", workers=2)


def _start(work: Path) -> None:
    from dali_feed import DataLoader
    from dali_feed.columns import Bytes

    source = ShardSet(work / "set" / "x.dfset")
    with DataLoader(source, 256, shuffle=True, columns={"x": Bytes("bin")}, device="cpu") as loader:
        next(iter(loader))


STEPS: dict[str, Callable[[Path], object]] = {
    "pack": _pack,
    "verify": lambda work: verify(work / "set" / "x.dfset"),
    "open": lambda work: ShardSet(work / "set" / "x.dfset", image=("bin",)).snapshot(),
    "start": _start,
    "read": lambda work: _all_of(work, check=True),
    "read unchecked": lambda work: _all_of(work, check=False),
}


def packing(options: Options) -> Iterator[Heat]:
    """Seconds of each step, and the most memory of its process."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        data, count = np.random.default_rng(0).bytes(2048 + 4096), max(1000, int(options.scale * 1e6))
        records = ({"bin": data[n % 4096 :][:2048], "cls": b"%d" % (n % 1000)} for n in range(count))
        write_shard(Path(folder, "s.tar"), records)

        def run(step: str) -> Told:
            answer = child(__file__, "--step", step, folder)
            return 1, answer["seconds"], {"records": count, "step MB": answer["MB"]}

        steps = [Contestant(step, timed(partial(run, step)), role="ours") for step in STEPS]
        yield Heat("a set", steps, "s")


if __name__ == "__main__":
    if "--step" in sys.argv:
        name, where = sys.argv[-2:]
        if name == "start":
            import torch  # noqa: F401  what it takes to begin is not what it takes to import
        begun = time.perf_counter()
        STEPS[name](Path(where))
        print(
            json.dumps(
                {
                    "seconds": time.perf_counter() - begun,
                    "MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,
                }
            )
        )
    else:
        sys.exit(main(__doc__, "storage", {"reads": reads, "pack": packing}, ["step MB"]))
