"""How long large sets take to be opened, and rows of arrays and tables to be read.

    python bench/bench_open.py [--gigabytes 10] [--rows 1000000] [--groups 200] [--folder /data] [--results DIR]

Each step is a process of its own, after the files that it needs were written, which is not counted, and are removed
when the next needs others (at most 11 GB at a time; whether there is room is looked at first):

open      a `ShardSet` of so many GB in 40 tar shards of records of 100 KB, and its snapshot, from kept indexes
array     `ArrayShards` of so many rows of 2048 float32: to open it, `rows[1000:1128]`, rows/s of 1,024 at random
parquet   `ParquetRows` of so many groups of 1,000 rows of 64 float32 and a label: rows/s of groups in a shuffled order,
          and of pyarrow's own `read_row_group` over one open file, in turns with it, three of each; medians

The page cache is as writing left it: these are costs of opening and of calls, and no figure of a disk. Rows go to
results/open.csv.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _results import RESULTS, Rows
from _steps import apart, timed

from dali_feed.bench.facts import facts
from dali_feed.records.source import Extents, Reader

RECORD = 100_000
SHARDS = 40
WIDE = 2048  # float32 of a row of the array
AT_ONCE, TIMES = 1024, 100  # rows of a read, reads
IN_GROUP, NARROW = 1000, 64  # rows of a group, float32 of a row
TURNS = 3

Told = Mapping[str, object]


def write_set(work: Path, args: argparse.Namespace) -> None:
    """Tar shards, with their indexes."""
    from dali_feed.external_sources import ShardSet
    from dali_feed.testing.shards import write_shard

    data = np.random.default_rng(0).bytes(RECORD + 4096)
    each = max(1, int(args.gigabytes * 1e9) // RECORD // SHARDS)
    for k in range(SHARDS):
        write_shard(work / f"x-{k:03d}.tar", ((data[n % 4096 :][:RECORD], n % 1000) for n in range(each)))
    ShardSet(f"{work}/*.tar").snapshot()


def open_set(work: Path, _: argparse.Namespace) -> Told:
    """The snapshot."""
    from dali_feed.external_sources import ShardSet

    return {"records": len(ShardSet(f"{work}/*.tar").snapshot())}


def write_array(work: Path, args: argparse.Namespace) -> None:
    """A `.npy` file, some rows at a time."""
    made = np.lib.format.open_memmap(work / "a.npy", "w+", np.float32, (args.rows, WIDE))
    some = np.random.default_rng(0).random((8192, WIDE), np.float32)
    for at in range(0, args.rows, len(some)):
        made[at : at + len(some)] = some[: args.rows - at]
    made.flush()


def read_array(work: Path, args: argparse.Namespace) -> Told:
    """Opened, a slice, and rows at random."""
    from dali_feed.external_sources import ArrayShards

    begun = time.perf_counter()
    array = ArrayShards(work / "a.npy")
    array.snapshot()
    opened = time.perf_counter()
    some = array._rows()[1000:1128]
    sliced = time.perf_counter()
    reader = array.giving(None, ("row",)).reader()
    draw, asked = np.random.default_rng(0), []
    for _ in range(TIMES):
        at = draw.integers(0, args.rows, AT_ONCE)
        asked.append(Extents(np.zeros(AT_ONCE, np.int64), at, at + 1))
    spent = read_all(reader, asked)
    return {
        "records": len(array),
        "open s": round(opened - begun, 4),
        f"slice of {len(some)} ms": round(1e3 * (sliced - opened), 2),
        "rows/s": round(AT_ONCE * TIMES / spent),
    }


def write_table(work: Path, args: argparse.Namespace) -> None:
    """A Parquet file of many groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = np.random.default_rng(0)
    kind = pa.schema([("x", pa.list_(pa.float32(), NARROW)), ("label", pa.int64())])
    with pq.ParquetWriter(work / "t.parquet", kind, compression="none") as file:
        for _ in range(args.groups):
            flat = pa.array(draw.random(IN_GROUP * NARROW, np.float32))
            x = pa.FixedSizeListArray.from_arrays(flat, NARROW)
            file.write_table(pa.table([x, pa.array(draw.integers(0, 1000, IN_GROUP))], schema=kind))


def read_table(work: Path, args: argparse.Namespace) -> Told:
    """Groups in a shuffled order, by us and by pyarrow."""
    import pyarrow.parquet as pq

    from dali_feed.external_sources import ParquetRows

    begun = time.perf_counter()
    source = ParquetRows(work / "t.parquet", image=None)
    source.snapshot()
    opened = time.perf_counter() - begun
    order = np.random.default_rng(0).permutation(args.groups).tolist()
    asked, ours, theirs = [Extents.one(group, 0, IN_GROUP) for group in order], [], []
    for _ in range(TURNS):
        ours.append(read_all(source.giving(None, ("x", "label")).reader(), asked))
        begun = time.perf_counter()
        with pq.ParquetFile(work / "t.parquet") as file:
            for group in order:
                file.read_row_group(group, columns=["x", "label"], use_threads=False)
        theirs.append(time.perf_counter() - begun)
    rows = args.groups * IN_GROUP
    return {
        "records": rows,
        "open s": round(opened, 4),
        "rows/s": round(rows / median(ours)),
        "pyarrow rows/s": round(rows / median(theirs)),
        "of pyarrow": f"{median(b / a for a, b in zip(ours, theirs, strict=True)):.2f}",
    }


def read_all(reader: Reader, asked: list[Extents]) -> float:
    """Seconds of these reads, one after the other."""
    begun = time.perf_counter()
    for extents in asked:
        block = reader.read(extents)
        block.payloads.clear()
        block.lease.release()
    spent = time.perf_counter() - begun
    reader.close()
    return spent


def needed(args: argparse.Namespace) -> dict[str, int]:
    """Bytes that the files of each step take on the disk, and a twentieth more."""
    sizes = {
        "open": int(args.gigabytes * 1e9 * (RECORD + 2048) / RECORD),
        "array": args.rows * WIDE * 4,
        "parquet": args.groups * IN_GROUP * (NARROW * 4 + 8),
    }
    return {step: size * 21 // 20 for step, size in sizes.items()}


def check_room(folder: str, args: argparse.Namespace) -> None:
    """End with what is missing where the files of a step have no room, before any is written."""
    sizes = needed(args)
    step = max(sizes, key=lambda each: sizes[each])
    free = shutil.disk_usage(folder).free
    if free < sizes[step]:
        msg = (
            f"{folder}: must have room for the files of the step {step!r}, {sizes[step] / 1e9:.1f} GB; found"
            f" {free / 1e9:.1f} GB free; name another with --folder, or fewer --gigabytes and --rows"
        )
        raise SystemExit(msg)


Write = Callable[[Path, argparse.Namespace], None]
Read = Callable[[Path, argparse.Namespace], Told]
STEPS: dict[str, tuple[Write, Read]] = {
    "open": (write_set, open_set),
    "array": (write_array, read_array),
    "parquet": (write_table, read_table),
}


def main() -> int:
    """Run the steps, print, keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--folder", help="where the files are written")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        step, folder = args.step
        timed(lambda: STEPS[step][1](Path(folder), args))
        return 0
    check_room(args.folder or tempfile.gettempdir(), args)
    sizes = {"gigabytes": args.gigabytes, "rows": args.rows, "groups": args.groups}
    rows = Rows("open", facts() | sizes, args.results)
    options = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    empty: dict[str, Any] = dict.fromkeys(("records", "seconds", "peak_mb", "open s", "slice of 128 ms", "rows/s"), "")
    empty |= dict.fromkeys(("pyarrow rows/s", "of pyarrow"), "")
    for step, (write, _) in STEPS.items():
        folder = tempfile.mkdtemp(dir=args.folder)
        try:
            write(Path(folder), args)
            rows.measure(step, lambda step=step, at=folder: {"step": step} | empty | apart(__file__, step, at, options))  # type: ignore[misc]
        finally:
            shutil.rmtree(folder)
    return rows.end()


if __name__ == "__main__":
    raise SystemExit(main())
