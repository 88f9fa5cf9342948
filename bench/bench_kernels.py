"""Each kernel's GB/s beside a device-to-device copy of as many bytes, on one GPU.

    python bench/bench_kernels.py [--kernels finish jitter unpack] [--batch 256] [--runs 50] [--warm 10]

What is measured, and how, is in `dali_feed/bench/kernels.py`. Rows go to results/kernels.csv as they are made. A case
that fails is named, the others are measured, and the end is 1. Needs a GPU: without one it says so and ends with 1.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

from _results import RESULTS, Rows

from dali_feed.bench.facts import facts
from dali_feed.bench.kernel_cases import CASES
from dali_feed.bench.kernels import gpu, row
from dali_feed.errors import EngineError


def main() -> int:
    """Measure, print, and add rows to results/kernels.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--runs", type=int, default=50, help="counted launches (default %(default)s)")
    parser.add_argument("--warm", type=int, default=10, help="launches before them (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    try:
        device = gpu()
    except EngineError as error:
        print(f"bench_kernels: {error}", file=sys.stderr)
        return 1
    import cupy as cp

    rows = Rows("kernels", facts() | {"device": device, "batch": args.batch, "runs": args.runs}, args.results)
    for name in args.kernels:
        for case in CASES[name](cp, args.batch):
            rows.measure(
                f"{case.kernel} {case.variant}", functools.partial(row, cp, case, runs=args.runs, warm=args.warm)
            )
            cp.get_default_memory_pool().free_all_blocks()
    return rows.end()


if __name__ == "__main__":
    sys.exit(main())
