"""Kills a run that packs with SIGKILL, again and again, and compares the set with one that nobody disturbed.

    python bench/chaos_pack.py [--kills 20] [--records 3000] [--seed 0]

A process packs a tar shard of random members with two threads; at a random moment it is killed, and another goes on;
after so many kills one comes to the end. If a run ends before it was killed often enough, the next begins with a new
folder. Every file is compared with an undisturbed set's: `differ` counts those that are not equal, missing or too many.
A row goes to results/chaos_pack.csv; it ends with 1 where a file differs.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _results import RESULTS

from dali_feed.bench.facts import facts
from dali_feed.bench.rows import append, table
from dali_feed.external_sources import ShardSet
from dali_feed.packing import pack
from dali_feed.testing.shards import write_shard


def run(shard: str, out: str) -> None:
    """One process's part."""
    print("it packs", flush=True)
    pack(ShardSet(shard), out, shard_bytes=1_000_000, workers=2)


def killed(args: tuple[str, str], rng: random.Random, seconds: float) -> bool:
    """Start a process and kill it after a while; whether it was killed before it came to the end."""
    process = subprocess.Popen([sys.executable, __file__, "--run", *args], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        process.wait(rng.random() * seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()
    if process.returncode > 0:
        msg = "a run ended with an error"
        raise RuntimeError(msg)
    return process.returncode < 0


def digests(folder: Path) -> dict[str, str]:
    """Every file of a folder, and of folders in it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main() -> None:
    """Kill, compare, print the row and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--records", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run(*args.run)
        return
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shard = work / "s.tar"
        write_shard(
            shard, ({"bin": rng.randbytes(rng.randint(0, 8000)), "cls": b"%d" % n} for n in range(args.records))
        )
        begun = time.monotonic()
        run(str(shard), str(work / "whole" / "x.dfset"))
        seconds, whole = time.monotonic() - begun, digests(work / "whole")
        kills = chains = differ = 0
        while kills < args.kills:
            out = work / f"chain-{chains}"
            told = str(shard), str(out / "x.dfset")
            while kills < args.kills and killed(told, rng, seconds):
                kills += 1
            run(*told)
            chains += 1
            found = digests(out)
            differ += sum(found.get(name) != whole.get(name) for name in found.keys() | whole.keys())
    row = {"kills": kills, "chains": chains, "records": args.records, "files": len(whole), "differ": differ}
    print(table([row], list(row)))
    print(f"\nadded a row to {append('chaos_pack', [facts() | {'seed': args.seed} | row], args.results)}")
    sys.exit(int(bool(differ)))


if __name__ == "__main__":
    main()
