"""MB/s of a topic read straight and as a shuffled epoch reads it, beside librdkafka in C and beside a plain read.

    python bench/bench_kafka.py [--mb 400] [--repeats 3] [--payload-kb 4 36 100 1024] [--readers 1 2]

    plain         one consumer of confluent_kafka, all partitions assigned from their first offset, librdkafka's own
                  defaults, what is there taken at once, up to 64 records; values are counted and dropped
    C straight    read_c.c with our options: one consumer, all partitions at once, each payload copied once
    C in order xN read_c.c: N threads with a consumer each share extents of about 32 MB in the order of shuffle=False
    C extents xN  the same in random order
    straight xN   KafkaTopic.reader(): N readers in as many threads share these extents, as the loader has them, in the
                  order of shuffle=False, copied into slabs as blocks
    extents xN    the same in random order

"of plain" and "of C" are ratios within a round: "of C" beside C's same reads by as many threads. "of goal" is of
58,000 records/s, for records of 4 KB. "cpu of C" is the CPU time of a byte beside C's, less is better: a rate below
C's where it is 1 is lost in waiting. What is asked of the topic before (its ends, a sample) is not counted. The broker
runs on the same machine unless KAFKA_BOOTSTRAP names another; what it takes of the CPUs is a column of its own.
Records are random bytes with a label.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from _kafka import Topic, kafka_missing, topic
from _read_c import missing_c, read_c
from _results import RESULTS

from dali_feed.bench.facts import facts
from dali_feed.bench.kafka_reads import Reading, extents_of
from dali_feed.bench.kafka_reads import plain as plainly
from dali_feed.bench.rows import append, table
from dali_feed.bench.turns import spread
from dali_feed.bench.usage import cpu_seconds
from dali_feed.external_sources import KafkaTopic
from dali_feed.external_sources.kafka.client import _LAWS, _TUNING

SHOWN = (
    "payload kb",
    "who",
    "MB/s",
    "least",
    "most",
    "records/s",
    "of goal",
    "of plain",
    "of C",
    "cpu of C",
    "cpu s/GB",
    "broker s/GB",
)
GOAL_KB, GOAL = 4, 58_000  # records/s of one process on two CPUs that records of this size are to reach
Found = tuple[int, float, float]  # payload bytes, seconds, CPU seconds


def values(size: int, each: int) -> Iterator[tuple[bytes, int]]:
    """Records of `each` random bytes, `size` bytes together."""
    rng = np.random.default_rng(0)
    for k in range(max(1, size // each)):
        yield rng.bytes(each), k % 1000


def plain(which: Topic) -> Found:
    """All of it in sequence, as confluent_kafka does by itself."""
    begun, used = time.perf_counter(), time.process_time()
    count = size = 0
    for records, their_size in (sizes := plainly(which.where, count=which.count)):
        count, size = count + records, size + their_size
        if count == which.count:
            break
    found = size, time.perf_counter() - begun, time.process_time() - used
    sizes.close()
    return found


def in_c(which: Topic, readers: int, *, shuffled: bool = True) -> Found:
    """By read_c.c; `readers` 0: straight."""
    if readers:
        runs = [
            (int(p), int(a), int(b))
            for each in extents_of(KafkaTopic(which.name, which.servers), shuffled=shuffled)
            for p, a, b in zip(each.partition, each.start, each.stop, strict=True)
        ]
    else:
        snapshot = KafkaTopic(which.name, which.servers).snapshot()
        ends = zip(snapshot.starts.tolist(), snapshot.stops.tolist(), strict=True)
        runs = [(p, start, stop) for p, (start, stop) in enumerate(ends)]
    return read_c(which.servers, which.name, runs, readers, _TUNING | _LAWS)


def ours(which: Topic, readers: int, *, shuffled: bool) -> Found:
    """By readers that share the extents."""
    source = KafkaTopic(which.name, which.servers)
    extents = extents_of(source, shuffled=shuffled)
    begun, used = time.perf_counter(), time.process_time()
    with Reading(source, extents, readers) as sizes:
        size = sum(their_size for _, their_size in sizes)
        return size, time.perf_counter() - begun, time.process_time() - used  # read_c.c does not close its consumers


def measure(which: Topic, ways: dict[str, Callable[[Topic], Found]], repeats: int) -> dict[str, list[dict[str, float]]]:
    """Each way in turns; per turn MB/s, records/s, CPU seconds per GB of the reader and of the broker."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, read in ways.items():
            broker = cpu_seconds(which.pid) if which.pid else 0.0
            size, seconds, used = read(which)
            broker = cpu_seconds(which.pid) - broker if which.pid else 0.0
            assert size == which.size, f"{name} read {size} of {which.size} bytes"
            turn = {"MB/s": size / seconds / 1e6, "records/s": which.count / seconds}
            found[name].append(turn | {"cpu s/GB": used / size * 1e9, "broker s/GB": broker / size * 1e9})
    return found


def beside(name: str, found: dict[str, list[dict[str, float]]], to: str | None, what: str = "MB/s") -> str:
    """The median ratio to another way's figure of the same round; "" where that is none."""
    if to is None or to not in found:
        return ""
    pairs = zip(found[name], found[to], strict=True)
    return f"{spread(mine[what] / its[what] for mine, its in pairs)[0]:.2f}"


def rival(name: str) -> str | None:
    """What stands beside it in C."""
    kind, _, readers = name.partition(" ")
    return {"straight": f"C in order {readers}", "extents": f"C extents {readers}"}.get(kind)


def main() -> None:
    """Measure, print, and add rows to results/kafka.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=400, help="in the topic (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--payload-kb", type=float, nargs="+", default=[4, 36, 100, 1024])
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 2], help="N (default 1 and 2)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if (missing := kafka_missing()) is not None:
        print(f"kafka: NOT MEASURED: {missing}")
        return
    made = facts() | {"mb": args.mb, "repeats": args.repeats}
    print("\n".join(f"{name:10} {value}" for name, value in made.items()))
    ways: dict[str, Callable[[Topic], Found]] = {"plain": plain}
    if (missing := missing_c()) is not None:
        print(f"C: NOT MEASURED: {missing}")
    else:
        ways |= {"C straight": partial(in_c, readers=0)}
        for n in args.readers:
            names = {f"C in order x{n}": False, f"C extents x{n}": True}
            ways |= {name: partial(in_c, readers=n, shuffled=shuffled) for name, shuffled in names.items()}
    for n in args.readers:
        ways |= {
            f"{name} x{n}": partial(ours, readers=n, shuffled=name == "extents") for name in ("straight", "extents")
        }
    rows: list[dict[str, object]] = []
    for each in args.payload_kb:
        with topic(values(int(args.mb * 1e6), int(each * 1024))) as which:
            print(f"\n{'kafka':10} {which.broker}: {which.count:,} records, {which.size / 1e6:,.0f} MB", flush=True)
            found = measure(which, ways, args.repeats)
        for name, turns in found.items():
            rate, least, most = spread(turn["MB/s"] for turn in turns)
            records = spread(turn["records/s"] for turn in turns)[0]
            rows.append(
                made
                | {
                    "payload kb": f"{each:g}",
                    "who": name,
                    "MB/s": round(rate),
                    "least": round(least),
                    "most": round(most),
                    "records/s": round(records),
                    "of goal": f"{records / GOAL:.2f}" if each == GOAL_KB else "",
                    "of plain": beside(name, found, "plain"),
                    "of C": beside(name, found, rival(name)),
                    "cpu of C": beside(name, found, rival(name), "cpu s/GB"),
                    "cpu s/GB": f"{spread(turn['cpu s/GB'] for turn in turns)[0]:.2f}",
                    "broker s/GB": f"{spread(turn['broker s/GB'] for turn in turns)[0]:.2f}" if which.pid else "",
                }
            )
        print(table(rows[-len(found) :], SHOWN), flush=True)
    print(f"\nadded {len(rows)} rows to {append('kafka', rows, args.results)}")


if __name__ == "__main__":
    main()
