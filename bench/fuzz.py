"""Damaged images through screen and decoder, in batches of 64: does anything but a replaced slot ever come of it?

    python bench/fuzz.py [--count 100000] [--engines host dali] [--first 0]

Numbers first..first+count-1 of `_mutations.py`, --part of them per process, so that a crash, a hang or an error costs a
process and is told with its numbers. Of each part every record must have been delivered in its own slot, or have been
quarantined with its coordinates and a reason. Rows go to results/fuzz.csv; it ends with 1 where that was not so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from _mutations import mutated
from _results import RESULTS
from torchvision.transforms import v2

from dali_feed import BadRecords, Decode, Shuffle, Tuning
from dali_feed.bench.facts import facts
from dali_feed.bench.rows import append, table
from dali_feed.feed import Feed
from dali_feed.testing import ScriptedSource

BATCH = 64
PATIENCE = 300  # seconds for a part; above it is a hang
MAX_PIXELS = 1 << 22
MAX_WORK = (
    1 << 26
)  # so that slow images are refused by the bound in good time, and not by the patience of whoever waits


def part(engine: str, first: int, count: int) -> dict[str, object]:
    """Run one part in this process: what was delivered and what was quarantined, by the beginning of its reason."""
    source = ScriptedSource([mutated(number) for number in range(first, first + count)], extent=BATCH)
    transform = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()])
    feed = Feed(
        source,
        BATCH,
        shuffle=Shuffle(extent=BATCH, window=8),
        transform=transform,
        decode=Decode(engine=engine, max_pixels=MAX_PIXELS, max_work=MAX_WORK),
        bad=BadRecords(limit=None),
        tuning=Tuning(threads=2),
    )
    own, bad = set(), Counter[str]()
    with feed:
        for batch in feed:
            own |= set(batch.ids[batch.ok].tolist())
        stats = feed.stats()
        for where, reason in stats.recent_bad:  # the last hundred: a sample of the reasons
            assert where, reason
            bad[reason.split(":")[0].split(" ")[0]] += 1
    return {"delivered": len(own), "quarantined": stats.bad, "sampled": dict(bad)}


def main() -> None:
    """Run all parts, print what came of them, and add rows to results/fuzz.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--part", type=int, default=5000, help="records of a process (default %(default)s)")
    parser.add_argument("--engines", nargs="+", choices=("host", "dali"), default=["host", "dali"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(part(args.engines[0], args.first, args.count)))
        return
    rows: list[dict[str, object]] = []
    for engine in args.engines:
        total, wrong = Counter[str](), list[str]()
        for first in range(args.first, args.first + args.count, args.part):
            count = min(args.part, args.first + args.count - first)
            command = [sys.executable, __file__, "--inside", "--engines", engine]
            command += ["--first", str(first), "--count", str(count)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                total["hangs"] += 1
                wrong.append(f"{engine} {first}..{first + count - 1}: no end after {PATIENCE} s")
                continue
            if done.returncode:
                total["crashes" if done.returncode < 0 else "errors"] += 1
                wrong.append(f"{engine} {first}..{first + count - 1}: exit {done.returncode}: {done.stderr[-400:]}")
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            total.update({name: found[name] for name in ("delivered", "quarantined")})
            if found["delivered"] + found["quarantined"] != count:
                total["errors"] += 1
                wrong.append(f"{engine} {first}..{first + count - 1}: {found} of {count}")
        print("\n".join(wrong))
        counted = {name: total[name] for name in ("delivered", "quarantined", "errors", "crashes", "hangs")}
        rows.append({"engine": engine, "records": args.count, **counted})
    print(table(rows, list(rows[0])))
    known = facts() | {"first": args.first, "part": args.part}
    print(f"\nadded {len(rows)} rows to {append('fuzz', [known | row for row in rows], args.results)}")
    sys.exit(int(any(row[name] for row in rows for name in ("errors", "crashes", "hangs"))))


if __name__ == "__main__":
    main()
