"""MB/s of records put into a topic, beside librdkafka in C.

    python bench/bench_produce.py [--mb 400] [--repeats 3] [--payload-kb 4 100 1024]

    C             produce_c.c with our options: values in memory, sent to the partitions in turn, each with a header
    ours          Producer from a tar shard in the page cache, as `dali-feed produce` does it, journal included
    transactions  the same with transactional=True

"of C" is the ratio within a round. Every record is delivered and counted, or it is an error. Each turn has a new topic,
and its topic is deleted at the end. The broker runs on the same machine unless KAFKA_BOOTSTRAP names another; what it
takes of the CPUs is a column of its own. Records are random bytes, which begin as a JPEG does, with a label.
"""

from __future__ import annotations

import argparse
import os
import resource
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _kafka import broker_module, kafka_missing
from _read_c import compiled, missing_c
from _results import RESULTS

from dali_feed.bench.facts import facts
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import spread
from dali_feed.bench.usage import cpu_seconds
from dali_feed.external_sources import FileList, Producer, ShardSet
from dali_feed.testing.shards import write_shard

SOURCE = Path(__file__).with_name("produce_c.c")
PARTITIONS = 4
SHOWN = ("payload kb", "who", "MB/s", "least", "most", "records/s", "of C", "cpu s/GB", "broker s/GB")
Found = tuple[int, int, float, float]  # payload bytes, records, seconds, CPU seconds


def values(size: int, each: int) -> list[bytes]:
    """`size` bytes together, each record of `each`."""
    rng = np.random.default_rng(0)
    return [b"\xff\xd8\xff" + rng.bytes(each - 3) for _ in range(max(1, size // each))]


def in_c(servers: str, topic: str, records: list[bytes], options: dict[str, Any]) -> Found:
    """By produce_c.c."""
    told = [f"{name}={str(value).lower()}" for name, value in options.items()]
    command = [compiled(SOURCE), servers, topic, str(PARTITIONS), *told]
    whole = b"".join(struct.pack("=Q", len(value)) + value for value in records)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, input=whole, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    size, count, seconds = done.stdout.split()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime  # the pipe's too
    return int(size), int(count), float(seconds), used


def ours(servers: str, topic: str, shard: Path, *, transactional: bool) -> Found:
    """By Producer."""
    journal = shard.with_name(f"{topic}.produce")
    made = Producer(ShardSet(shard, image=("bin",)), topic, servers, journal=journal, transactional=transactional)
    begun, used = time.perf_counter(), time.process_time()
    done = made.run()
    seconds, used = time.perf_counter() - begun, time.process_time() - used
    assert done.tally.failed == 0, done.tally.failures
    return done.tally.size, done.tally.records, seconds, used


def options_of(servers: str) -> dict[str, Any]:
    """What librdkafka is told of us, but for what is a Python object."""
    made = Producer(FileList(["a.jpg"]), "t", servers)
    found = {**made._options.tuning(), **made._options.settings(), "compression.codec": "none"}
    return {name: value for name, value in found.items() if name not in ("logger", "partitioner", "bootstrap.servers")}


def main() -> None:
    """Measure, print, and add rows to results/produce.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=400, help="of each turn (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--payload-kb", type=float, nargs="+", default=[4, 100, 1024])
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if (missing := kafka_missing()) is not None:
        print(f"produce: NOT MEASURED: {missing}")
        return
    made = facts() | {"mb": args.mb, "repeats": args.repeats}
    print("\n".join(f"{name:10} {value}" for name, value in made.items()))
    if (missing := missing_c()) is not None:
        print(f"C: NOT MEASURED: {missing}")
    real, rows = broker_module(), list[dict[str, object]]()
    with ExitStack() as stack:
        given = os.environ.get("KAFKA_BOOTSTRAP")
        cluster = real.Cluster(given) if given else stack.enter_context(real.RealBroker())
        pid, folder = getattr(cluster, "pid", None), Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for each in args.payload_kb:
            records = values(int(args.mb * 1e6), int(each * 1024))
            shard, size = folder / f"{each}.tar", sum(map(len, records))
            write_shard(shard, ({"bin": value, "cls": b"%d" % n} for n, value in enumerate(records)))
            ShardSet(shard, image=("bin",)).snapshot()  # the index is made before the clock begins
            ways: dict[str, Callable[[str], Found]] = {}
            if missing is None:
                ways["C"] = partial(in_c, cluster.servers, records=records, options=options_of(cluster.servers))
            for name, transactional in (("ours", False), ("transactions", True)):
                ways[name] = partial(ours, cluster.servers, shard=shard, transactional=transactional)
            turns: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
            for _ in range(args.repeats):
                for name, way in ways.items():
                    topic = f"dali-feed-bench-{uuid.uuid4().hex[:8]}"
                    cluster.create(topic, PARTITIONS, {"max.message.bytes": str(8 << 20)})
                    broker = cpu_seconds(pid) if pid else 0.0
                    found, count, seconds, used = way(topic)
                    broker = cpu_seconds(pid) - broker if pid else 0.0
                    cluster.delete(topic)
                    assert (found, count) == (size, len(records)), f"{name}: {count} records, {found} bytes"
                    turn = {"MB/s": size / seconds / 1e6, "records/s": count / seconds}
                    turns[name].append(turn | {"cpu s/GB": used / size * 1e9, "broker s/GB": broker / size * 1e9})
            for name, found_turns in turns.items():
                rate, least, most = spread(turn["MB/s"] for turn in found_turns)
                pairs = zip(found_turns, turns.get("C", []), strict=False)
                ratios = [mine["MB/s"] / its["MB/s"] for mine, its in pairs]
                rows.append(
                    made
                    | {
                        "payload kb": each,
                        "who": name,
                        "MB/s": round(rate),
                        "least": round(least),
                        "most": round(most),
                        "records/s": round(spread(turn["records/s"] for turn in found_turns)[0]),
                        "of C": f"{spread(ratios)[0]:.2f}" if ratios else "",
                        "cpu s/GB": f"{spread(turn['cpu s/GB'] for turn in found_turns)[0]:.2f}",
                        "broker s/GB": f"{spread(t['broker s/GB'] for t in found_turns)[0]:.2f}" if pid else "",
                    }
                )
            print(table(rows[-len(turns) :], SHOWN), flush=True)
    print(f"\nadded {len(rows)} rows to {append('produce', rows, args.results)}")


if __name__ == "__main__":
    main()
