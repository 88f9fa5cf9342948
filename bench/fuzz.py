"""Damaged images through screen and decoder, in batches of 64: does anything but a replaced slot ever come of it?

    python bench/fuzz.py [--count 100000] [--engines host dali] [--first 0]

Numbers first..first+count-1 of tests/kit/mutations.py, --part of them per process, so that a crash, a hang or an
error costs a process and is told with its numbers. Of each part every record must have been delivered in its own slot,
or have been quarantined with its coordinates and a reason. Rows go to results/fuzz.jsonl; exit 1 where that was not so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from _common import HERE, child
from kit.mutations import mutated
from torchvision.transforms import v2

from dali_feed import BadRecords, Decode, Shuffle, Tuning
from dali_feed.bench.runner import about_machine
from dali_feed.feed import Feed
from dali_feed.testing import ScriptedSource

BATCH, PATIENCE = 64, 300  # PATIENCE: seconds for a part; above it is a hang
# So that slow images are refused by the bound in good time, and not by the patience of whoever waits.
BOUNDS: dict[str, Any] = {"max_pixels": 1 << 22, "max_work": 1 << 26}


def part(engine: str, first: int, count: int) -> None:
    """Run one part in this process; prints what was delivered and what was quarantined."""
    source = ScriptedSource([mutated(number) for number in range(first, first + count)], extent=BATCH)
    transform = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()])
    decode = Decode(engine=engine, **BOUNDS)
    options: dict[str, Any] = {"decode": decode, "transform": transform, "bad": BadRecords(limit=None)}
    options |= {"shuffle": Shuffle(extent=BATCH, window=8), "tuning": Tuning(threads=2)}
    own: set[int] = set()
    with Feed(source, BATCH, **options) as feed:
        for batch in feed:
            own |= set(batch.ids[batch.ok].tolist())
        stats = feed.stats()
        assert all(where and reason for where, reason in stats.recent_bad)
    print(json.dumps({"delivered": len(own), "quarantined": stats.bad}))


def main() -> int:
    """Run all parts, print what came of them, keep rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--part", type=int, default=5000, help="records of a process (default %(default)s)")
    parser.add_argument("--engines", nargs="+", choices=("host", "dali"), default=["host", "dali"])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "fuzz.jsonl")
    parser.add_argument("--inside", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        part(options.inside[0], *map(int, options.inside[1:]))
        return 0
    wrong = False
    for engine in options.engines:
        total: Counter[str] = Counter(delivered=0, quarantined=0, errors=0, crashes=0, hangs=0)
        for first in range(options.first, options.first + options.count, options.part):
            count = min(options.part, options.first + options.count - first)
            try:
                counts = child(__file__, "--inside", engine, str(first), str(count), timeout=PATIENCE)
                kind, why = "errors", f"{counts} of {count}"
                if sum(counts.values()) == count:
                    total.update(counts)
                    continue
            except subprocess.TimeoutExpired:
                kind, why = "hangs", f"no end after {PATIENCE} s"
            except subprocess.CalledProcessError as error:
                kind, why = "crashes" if error.returncode < 0 else "errors", f"exit {error.returncode}"
            total[kind] += 1
            print(f"{engine} {first}..{first + count - 1}: {why}", flush=True)
        row = {"engine": engine, "records": options.count, **total}
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        wrong |= bool(total["errors"] + total["crashes"] + total["hangs"])
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(about_machine() | {"first": options.first, "part": options.part} | row) + "\n")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
