"""How long an image's way holds the interpreter's lock, by a sampling profiler.

    python bench/bench_lock.py [--threads 2 16] [--seconds 8] [--batch 64]

RandomResizedCrop(224), flip, float32, Normalize of 500x375 JPEGs from tar shards in the page cache, on the `host`
engine. py-spy samples this process --rate times a second and counts the samples in which a thread of ours holds the
lock. That share of the time, over the images of that time, is what an image takes of the lock, in whatever thread: its
inverse bounds what any number of threads can do. Rows go to results/lock.csv; the lines that hold it most are printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from _results import RESULTS

from dali_feed import Tuning
from dali_feed.bench.facts import facts
from dali_feed.bench.ours import ours
from dali_feed.bench.photos import photos
from dali_feed.bench.rows import append, table
from dali_feed.external_sources import ShardSet

WARM = 30  # batches


def spy() -> str | None:
    """Where py-spy is: beside this interpreter, or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def sampled(report: Path) -> tuple[int, Counter[str]]:
    """Samples in which somebody held the lock, and by the line that did."""
    lines: Counter[str] = Counter()
    for line in report.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        lines[stack.rpartition(";")[2]] += int(count)
    return sum(lines.values()), lines


def main() -> None:
    """Measure, print, and add rows to results/lock.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 16])
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--rate", type=int, default=500, help="samples per second (default %(default)s)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--photos", type=int, default=3000, help="different images (default %(default)s)")
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    tool = spy()
    if tool is None:
        print("lock: NOT MEASURED: no py-spy; pip install py-spy")
        return
    data = photos(args.photos, cache=args.data)
    data.touch()
    rows: list[dict[str, object]] = []
    for threads in args.threads:
        make = ours(lambda: ShardSet(data.linked), args.batch, Tuning(threads=threads), torch.device("cpu"), "host")
        with make() as steps, tempfile.TemporaryDirectory() as folder:
            for _ in range(WARM):
                next(steps)
            report = Path(folder, "stacks")
            what = ["record", "--pid", str(os.getpid()), "--gil", "--nonblocking", "--format", "raw", "-o", str(report)]
            how = ["--duration", str(args.seconds), "--rate", str(args.rate)]
            watcher = subprocess.Popen([tool, *what, *how], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            images, begun = 0, time.perf_counter()
            while watcher.poll() is None:
                images += next(steps)
            rate = images / (time.perf_counter() - begun)
            if not report.exists():
                said = watcher.stdout.read() if watcher.stdout else ""
                print(f"lock: NOT MEASURED: py-spy ended with: {said.strip()[-200:]}")
                return
            held, lines = sampled(report)
        each = max(held, 1) / (args.seconds * args.rate) / rate
        rows.append(
            {"threads": threads, "img/s": round(rate), "lock us": f"{each * 1e6:.1f}", "bound img/s": round(1 / each)}
        )
        print(f"threads {threads}: the lines that hold the lock most, of {held} samples")
        print("\n".join(f"  {count:5} {line}" for line, count in lines.most_common(8)))
    print(table(rows, list(rows[0])))
    made = facts() | {"batch": args.batch, "rate": args.rate, "seconds": args.seconds}
    print(f"\nadded {len(rows)} rows to {append('lock', [made | row for row in rows], args.results)}")


if __name__ == "__main__":
    main()
