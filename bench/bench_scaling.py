"""How our loader scales: with decoder threads, with ranks on a machine, and with the records of a plan.

    python bench/bench_scaling.py [--only threads ranks plan] [--threads 1 2 4] [--ranks 1 2 3 4] [--records 1000 ...]

threads   our loader over tar shards in the page cache, `host` engine, so many decoder threads, in turns
ranks     so many processes of it at once, each with its rank and world size and its part of the cores as decoder
          threads, in turns; the images of all ranks a second. They share the cores: more of them cannot give more than
          the machine has, and what is lost is the price of another process
plan      no image is read: the order of an epoch over so many records, and its first window, in a process of its own.
          `single`: every record is permuted by itself, as of files and tar shards; `runs`: runs of 320, as of a topic
          of 100 KB records

Columns: `of 1`, over the rate of one thread or one rank in the same round, median, least, most; `cpu us` CPU time per
image; `order s` and `window ms` the time to make an epoch's order and then its first window, `MB` the most memory that
both took beyond what the process held before. Rows go to results/scaling.csv. Nothing here passes or fails by a time.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from _results import RESULTS, Rows
from _steps import apart, timed

from dali_feed import Tuning
from dali_feed.bench.facts import facts
from dali_feed.bench.ours import ours
from dali_feed.bench.photos import photos
from dali_feed.bench.turns import run_turn, spread
from dali_feed.bench.usage import peak_rss, reset_peak, rss
from dali_feed.cores import whole_cores
from dali_feed.external_sources import ShardSet
from dali_feed.plan.order import EpochPlan, resolve
from dali_feed.records.source import Snapshot

RANK = str(Path(__file__).with_name("_rank.py"))
PARTS, LANES = 40, 8
ORDERS = {"single": 1, "runs": 320}  # records of an extent
RECORD = 100_000
COLUMNS = (
    *("what", "n", "order", "img/s", "least", "most", "of 1", "of 1, least", "of 1, most", "cpu us"),
    *("order s", "window ms", "MB"),
)

Found = Mapping[int, Sequence[tuple[float, float]]]  # n -> (images/s, CPU seconds per image) of each round


def by_threads(shards: list[str], args: argparse.Namespace) -> Found:
    """Turns of a loader with so many decoder threads."""
    found: dict[int, list[tuple[float, float]]] = {n: [] for n in args.threads}
    for _ in range(args.repeats):
        for n, its in found.items():
            make = ours(lambda: ShardSet(shards), args.batch, Tuning(threads=n), torch.device("cpu"), "host")
            turn = run_turn(make, args.seconds)
            its.append((turn.rate, turn.cpu / turn.images))
    return found


def by_ranks(shards: list[str], args: argparse.Namespace) -> Found:
    """Turns of so many processes."""
    found: dict[int, list[tuple[float, float]]] = {n: [] for n in args.ranks}
    for _ in range(args.repeats):
        for n, its in found.items():
            told = together(n, shards, args)
            its.append((sum(each["rate"] for each in told), float(np.mean([each["cpu"] for each in told]))))
    return found


def together(ranks: int, shards: list[str], args: argparse.Namespace) -> list[dict[str, float]]:
    """What each rank told. They are counted from when all are ready. RuntimeError where one fails."""
    threads = max(1, whole_cores() // ranks)
    numbers = [str(number) for number in (ranks, args.batch, threads, args.seconds)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([sys.executable, RANK, str(rank), *numbers, *shards], **pipes) for rank in range(ranks)]
    try:
        ready = [each.stdout.readline() for each in running if each.stdout]
        if ready != ["ready\n"] * ranks:
            msg = f"a rank of {ranks} ended before it was ready"
            raise RuntimeError(msg)
        for each in running:
            if each.stdin:
                each.stdin.write("go\n")
                each.stdin.flush()
        return [json.loads(each.communicate()[0]) for each in running]
    finally:
        for each in running:
            each.kill()
            each.wait()


def plan(records: int, extent: int) -> dict[str, object]:
    """An epoch's order and the first window of a lane, of a source of so many records."""
    stops = np.full(PARTS, records // PARTS, np.int64)
    names, starts = tuple(f"part {k}" for k in range(PARTS)), np.zeros(PARTS, np.int64)
    single = extent == 1
    snapshot = Snapshot("records", names, starts, stops, extent, RECORD, single, not single, "none")
    order = resolve(True, snapshot)
    reset_peak()
    before, begun = rss(), time.perf_counter()
    made = EpochPlan(snapshot, order, seed=0, epoch=0, lanes=LANES)
    ordered = time.perf_counter()
    first, stop, *_ = made.bounds(0).tolist()
    window = made.window(0, first, stop)
    done = time.perf_counter()
    figures = {"order s": ordered - begun, "window ms": 1e3 * (done - ordered), "MB": (peak_rss() - before) / 1e6}
    return {**figures, "records": len(window)}


def blank(what: str, n: int, found: Mapping[str, object]) -> dict[str, object]:
    """A row with all columns, of which the others are empty."""
    return dict.fromkeys(COLUMNS, "") | {"what": what, "n": n} | dict(found)


def rate_row(what: str, n: int, found: Found) -> dict[str, object]:
    """Of so many threads or ranks."""
    rate, least, most = spread(rate for rate, _ in found[n])
    row: dict[str, object] = {"img/s": round(rate), "least": round(least), "most": round(most)}
    row |= {"cpu us": round(1e6 * median(cpu for _, cpu in found[n]))}
    if 1 in found:
        ratios = spread(a / b for (a, _), (b, _) in zip(found[n], found[1], strict=True))
        row |= {f"of 1{end}": f"{value:.2f}" for end, value in zip(("", ", least", ", most"), ratios, strict=True)}
    return blank(what, n, row)


def plan_row(records: int, order: str, repeats: int) -> dict[str, object]:
    """Medians of processes."""
    told = [apart(__file__, order, str(records), ()) for _ in range(repeats)]
    figures = {"order s": 4, "window ms": 2, "MB": 1}
    return blank(
        "plan", records, {"order": order} | {k: round(median(each[k] for each in told), d) for k, d in figures.items()}
    )


def main() -> int:
    """Measure, print, and add rows to results/scaling.csv; 1 where a case failed."""
    cores = whole_cores()
    doubled = sorted({min(1 << k, cores) for k in range(cores.bit_length() + 1)})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("threads", "ranks", "plan"), default=["threads", "ranks", "plan"])
    parser.add_argument("--threads", type=int, nargs="+", default=doubled, help="(default: 1, 2, 4, ... the cores)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--records", type=int, nargs="+", default=[10**k for k in range(3, 8)])
    parser.add_argument("--batch", type=int, default=64, help="of a rank")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds (default %(default)s)")
    parser.add_argument("--photos", type=int, default=600, help="different images (default %(default)s)")
    parser.add_argument("--data", type=Path, default=None, help="where they are kept (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--step", choices=tuple(ORDERS), help=argparse.SUPPRESS)
    parser.add_argument("count", nargs="?", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        timed(lambda: plan(int(args.count), ORDERS[args.step]))
        return 0
    about = facts() | {"photos": args.photos, "batch": args.batch, "turns": args.repeats}
    rows = Rows("scaling", about, args.results)
    if rated := [what for what in ("threads", "ranks") if what in args.only]:
        data = photos(args.photos, cache=args.data)
        data.touch()
        for what in rated:
            found = (by_threads if what == "threads" else by_ranks)(data.linked, args)
            for n in found:
                rows.measure(f"{what} {n}", functools.partial(rate_row, what, n, found), told=False)
    for records in args.records if "plan" in args.only else ():
        for order in ORDERS:
            rows.measure(f"plan of {records}", functools.partial(plan_row, records, order, args.repeats), told=False)
    return rows.end()


if __name__ == "__main__":
    sys.exit(main())
