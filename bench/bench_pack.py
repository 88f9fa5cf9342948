"""Many small records: how long a set takes to be packed, read whole, opened and begun, and how much memory.

    python bench/bench_pack.py [--records 1000000] [--bytes 2048] [--workers 2] [--results DIR]

Each step is a process of its own, whose peak of memory is its own: `source` writes one tar shard with `write_shard`,
`pack` makes a set of shards of 256 MB of it, `verify` reads all of it against its checksums, `open` makes a ShardSet
and its snapshot from the indexes, `start` gives the first batch of a shuffled epoch, `read` reads every record in order
with and without comparing checksums. Rows go to results/pack.csv.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _results import RESULTS
from _steps import apart, timed

from dali_feed.bench.facts import facts
from dali_feed.bench.rows import append, table

STEPS = ("source", "pack", "verify", "open", "start", "read", "read unchecked")


def source(work: Path, records: int, size: int, _: int) -> None:
    """One tar shard."""
    from dali_feed.testing.shards import write_shard

    data = np.random.default_rng(0).bytes(size + 4096)
    write_shard(work / "s.tar", ({"bin": data[n % 4096 :][:size], "cls": b"%d" % (n % 1000)} for n in range(records)))


def pack(work: Path, _: int, __: int, workers: int) -> None:
    """A set."""
    from dali_feed.external_sources import ShardSet
    from dali_feed.packing import pack as packed

    packed(ShardSet(work / "s.tar", index_dir=work), work / "x.dfset", workers=workers)


def verify(work: Path, *_: int) -> None:
    """All of it."""
    from dali_feed.packing import verify as verified

    assert not verified(work / "x.dfset").damages


def opened(work: Path, *_: int) -> None:
    """The snapshot."""
    from dali_feed.external_sources import ShardSet

    ShardSet(work / "x.dfset", image=("bin",)).snapshot()


def start(work: Path, *_: int) -> None:
    """The first batch."""
    from dali_feed import DataLoader
    from dali_feed.columns import Bytes
    from dali_feed.external_sources import ShardSet

    with DataLoader(ShardSet(work / "x.dfset"), 256, shuffle=True, columns={"x": Bytes("bin")}, device="cpu") as loader:
        next(iter(loader))


def read(work: Path, *_: int, check: bool = True) -> None:
    """Every record."""
    from dali_feed.external_sources import ShardSet
    from dali_feed.packing.plan import extents_of

    source = ShardSet(work / "x.dfset", image=("bin",), check=check)
    snapshot, reader = source.snapshot(), source.reader()
    for extents in extents_of(snapshot, 0, len(snapshot)):
        block = reader.read(extents)
        block.payloads.clear()
        block.lease.release()
    reader.close()


RUN: dict[str, Callable[..., None]] = dict(zip(STEPS, (source, pack, verify, opened, start, read), strict=False))
RUN["read unchecked"] = lambda *args: read(*args, check=False)


def main() -> None:
    """Run the steps, print the table, keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        step, folder = args.step
        if step == "start":
            import torch  # noqa: F401  what it takes to begin is not what it takes to import
        timed(lambda: RUN[step](Path(folder), args.records, args.bytes, args.workers))
        return
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for step in STEPS:
            numbers = ("--records", str(args.records), "--bytes", str(args.bytes), "--workers", str(args.workers))
            told = {"step": step, "records": args.records, "bytes": args.bytes, "workers": args.workers}
            rows.append(told | apart(__file__, step, folder, numbers))
            print(table(rows[-1:], list(rows[-1])), flush=True)
    known = facts()
    print(f"\nadded {len(rows)} rows to {append('pack', [known | row for row in rows], args.results)}")


if __name__ == "__main__":
    main()
