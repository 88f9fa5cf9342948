"""Kills a run that produces with SIGKILL, again and again, and compares the topic with its source.

    python bench/chaos_produce.py [--kills 20] [--records 20000] [--seed 0]

For the run with a journal and for the one with transactions: a process produces a tar shard of JPEGs and texts; at a
random moment, mostly while it sends, it is killed, and another goes on; after so many kills one comes to the end. If
a run ends before it was killed often enough, the next begins with a new topic. `lost` counts records that are in no
partition, `repeated` those that are there more than once, `disordered` partitions whose records, once each, are not in
the source's order (of each kind of value, for those take different producers). Rows go to results/chaos_produce.csv; it
ends with 1 where anything was lost, or anything was repeated with transactions.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _kafka import broker_module, committed, kafka_missing
from _results import RESULTS

from dali_feed.bench.facts import facts
from dali_feed.bench.rows import append, table
from dali_feed.external_sources import Produced, Producer, ShardSet
from dali_feed.external_sources.kafka.lanes import is_packed
from dali_feed.testing.shards import write_shard

PARTITIONS = 3
AFTER = 0.4  # seconds that a process has at most once it sends; one in four is killed on its way there
BEFORE = 1.5
Args = tuple[str, str, str, str, str]


def run(shard: str, servers: str, topic: str, journal: str, transactional: str) -> None:
    """One process's part; it says when the first records count."""
    source, said = ShardSet(shard, image=("bin",)), False
    options: dict[str, Any] = {"every": 0.1, "queue_bytes": 256 << 10, "config": {"linger.ms": 5}}

    def tell(so_far: Produced) -> None:
        nonlocal said
        if not said and so_far.position > so_far.begun:
            print("it sends", flush=True)
            said = True

    Producer(source, topic, servers, journal=journal, transactional=transactional == "True", **options).run(tell)


def killed(args: Args, rng: random.Random) -> bool:
    """Start a process and kill it after a while; whether it was killed before it came to the end."""
    command = [sys.executable, __file__, "--run", *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    seconds = rng.random() * BEFORE
    if rng.random() < 0.75:
        assert process.stdout is not None
        process.stdout.readline()
        seconds = rng.random() * AFTER
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    _, said = process.communicate()
    if process.returncode > 0:
        msg = f"a run ended with an error: {said.decode()[-500:]}"
        raise RuntimeError(msg)
    return process.returncode < 0


def ordered(part: list[bytes], place: dict[bytes, int]) -> bool:
    """Whether the records of each kind come in the source's order, the first time that each comes."""
    once = list(dict.fromkeys(part))
    for kind in (True, False):
        places = [place[value] for value in once if is_packed(value) == kind]
        if places != sorted(places):
            return False
    return True


def main() -> None:
    """Run both kinds, print the table, and add its rows to results/chaos_produce.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each kind of run (default %(default)s)")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--run", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run(*args.run)
        return
    if (missing := kafka_missing()) is not None:
        print(f"chaos: NOT RUN: {missing}")
        return
    rng = random.Random(args.seed)
    texts = [b"text %06d " % n + rng.randbytes(rng.randint(0, 3000)) for n in range(args.records)]
    values = [b"\xff\xd8\xff" + text if n % 3 else text for n, text in enumerate(texts)]
    place = {value: n for n, value in enumerate(values)}
    rows: list[dict[str, object]] = []
    with ExitStack() as stack:
        real, given = broker_module(), os.environ.get("KAFKA_BOOTSTRAP")
        broker = real.Cluster(given) if given else stack.enter_context(real.RealBroker())
        work = stack.enter_context(tempfile.TemporaryDirectory())
        shard = Path(work, "s.tar")
        write_shard(shard, ({"bin": value, "cls": b"%d" % n} for n, value in enumerate(values)))
        for transactional in (False, True):
            kills = chains = lost = repeated = disordered = 0
            begun = time.monotonic()
            while kills < args.kills:
                topic = f"chaos-{uuid.uuid4().hex[:8]}"
                broker.create(topic, PARTITIONS)
                told = (str(shard), broker.servers, topic, str(Path(work, topic)), str(transactional))
                while kills < args.kills and killed(told, rng):
                    kills += 1
                run(*told)
                chains += 1
                found = [[value for _, value in part] for part in committed(broker.servers, topic, PARTITIONS)]
                counts = Counter(value for part in found for value in part)
                lost += sum(value not in counts for value in values)
                repeated += sum(count - 1 for count in counts.values())
                disordered += sum(not ordered(part, place) for part in found)
            kind = "transactions" if transactional else "journal"
            seconds = round(time.monotonic() - begun)
            rows.append(
                {"run": kind, "kills": kills, "chains": chains, "records": args.records * chains, "lost": lost}
                | {"repeated": repeated, "disordered": disordered, "seconds": seconds}
            )
            print(table(rows[-1:], list(rows[-1])), flush=True)
    known = facts() | {"seed": args.seed}
    print(f"\nadded {len(rows)} rows to {append('chaos_produce', [known | row for row in rows], args.results)}")
    sys.exit(int(any(row["lost"] or row["disordered"] for row in rows) or bool(rows[-1]["repeated"])))


if __name__ == "__main__":
    main()
