"""MB/s of a topic read as a shuffled epoch reads it, beside a plain read from end to end.

    python bench/bench_kafka.py [--mb 400] [--repeats 3] [--payload-kb 64]

    plain       one consumer of confluent_kafka, all partitions assigned from their first offset, librdkafka's own
                defaults, `consume` of 64 records at a time; values are counted and dropped
    extents x1  KafkaTopic.reader(): extents of about 32 MB in random order, copied into slabs as blocks
    extents x2  two such readers in two threads that share the extents, as the loader has them

"of plain" is the ratio within a round. The broker runs on the same machine unless KAFKA_BOOTSTRAP names another; what
it takes of the CPUs is a column of its own. Records are random bytes with a label.
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _harness import RESULTS, append, cpu_seconds, facts, spread, table
from _kafka import Topic, kafka_missing, topic
from confluent_kafka import Consumer, TopicPartition

from dali_feed.external_sources import KafkaTopic
from dali_feed.plan.order import canonical

SHOWN = ("who", "MB/s", "least", "most", "of plain", "cpu s/GB", "broker s/GB")


def values(size: int, each: int) -> Iterator[tuple[bytes, int]]:
    """Records of `each` random bytes, `size` bytes together."""
    rng = np.random.default_rng(0)
    for k in range(max(1, size // each)):
        yield rng.bytes(each), k % 1000


def plain(which: Topic) -> int:
    """Payload bytes read in sequence."""
    options: dict[str, Any] = {"bootstrap.servers": which.servers, "group.id": "dali_feed.bench"}
    consumer = Consumer(options | {"enable.auto.commit": False, "auto.offset.reset": "error"})
    try:
        partitions = consumer.list_topics(which.name, timeout=60).topics[which.name].partitions
        consumer.assign([TopicPartition(which.name, p, 0) for p in partitions])
        count = size = 0
        while count < which.count:
            for message in consumer.consume(64, 1.0):
                assert message.error() is None, message.error()
                value = message.value()
                assert value is not None
                count, size = count + 1, size + len(value)
        return size
    finally:
        consumer.close()


def extents(which: Topic, readers: int) -> int:
    """Payload bytes read by extents in random order."""
    source = KafkaTopic(which.name, which.servers)
    snapshot = source.snapshot()
    line = canonical(snapshot, snapshot.extent)
    tasks: queue.SimpleQueue[int] = queue.SimpleQueue()
    for k in np.random.default_rng(1).permutation(len(line)).tolist():
        tasks.put(k)
    sizes = [0] * readers

    def work(n: int) -> None:
        reader = source.reader()
        while True:
            try:
                k = tasks.get_nowait()
            except queue.Empty:
                break
            block = reader.read(snapshot.located(line[k : k + 1]))
            assert not block.faults
            sizes[n] += sum(len(view) for view in block.payloads if view is not None)
            block.lease.release()
        reader.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sizes)


def main() -> None:
    """Measure, print, and add rows to results/kafka.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=400, help="in the topic (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--payload-kb", type=float, default=64)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if (missing := kafka_missing()) is not None:
        print(f"kafka: NOT MEASURED: {missing}")
        return
    made = facts() | {"mb": args.mb, "payload kb": args.payload_kb, "repeats": args.repeats}
    print("\n".join(f"{name:10} {value}" for name, value in made.items()))
    ways: dict[str, Callable[[Topic], int]] = {
        "plain": plain,
        "extents x1": partial(extents, readers=1),
        "extents x2": partial(extents, readers=2),
    }
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    with topic(values(int(args.mb * 1e6), int(args.payload_kb * 1024))) as made_topic:
        print(f"{'kafka':10} {made_topic.broker}: {made_topic.count:,} records, {made_topic.size / 1e6:,.0f} MB\n")
        for _ in range(args.repeats):
            for name, read in ways.items():
                broker = cpu_seconds(made_topic.pid) if made_topic.pid else 0.0
                begun, used = time.perf_counter(), time.process_time()
                size = read(made_topic)
                seconds, used = time.perf_counter() - begun, time.process_time() - used
                broker = cpu_seconds(made_topic.pid) - broker if made_topic.pid else 0.0
                assert size == made_topic.size, f"{name} read {size} of {made_topic.size} bytes"
                found[name].append((size / seconds / 1e6, used / size * 1e9, broker / size * 1e9))
    rows: list[dict[str, object]] = []
    for name, turns in found.items():
        rate, least, most = spread(turn[0] for turn in turns)
        ratio = spread(turn[0] / beside[0] for turn, beside in zip(turns, found["plain"], strict=True))[0]
        rows.append(
            made
            | {
                "who": name,
                "MB/s": round(rate),
                "least": round(least),
                "most": round(most),
                "of plain": f"{ratio:.2f}",
                "cpu s/GB": f"{spread(turn[1] for turn in turns)[0]:.2f}",
                "broker s/GB": f"{spread(turn[2] for turn in turns)[0]:.2f}" if made_topic.pid else "",
            }
        )
    print(table(rows, SHOWN))
    print(f"\nadded {len(rows)} rows to {append('kafka', rows, args.results)}")


if __name__ == "__main__":
    main()
