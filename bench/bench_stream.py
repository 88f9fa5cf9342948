"""A stream: how long a record takes from its producer into a tensor, how many come at most, and how steadily.

    python bench/bench_stream.py [--records 1000] [--seconds 20] [--steady 60] [--ways reader loader]

    latency     one record at a time, about every 20 ms, batch 1: from `produce` in another process until the batch is
                handed over. `p50 ms` and `p99 ms`
    throughput  that process writes as fast as records come: the most per second, with it on the same machine
    steady      it writes 0.8 of that (--share) for --steady seconds: `p50 ms` and `p99 ms` are of the step's wait,
                `jitter ms` their difference; `lag` is how old a record is when it comes, in the median of the first
                and of the last tenth of the time; `rss` what the process holds at the first and the last second

`reader` is the source alone, `loader` a DataLoader that decodes and resizes 224x224. The broker runs on this machine
unless KAFKA_BOOTSTRAP names another, and deletes what is older than some seconds, as --steady writes a lot. Rows go to
results/stream.csv.
"""

from __future__ import annotations

import argparse
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _kafka import broker_module, kafka_missing
from _live_producer import writing
from _results import RESULTS

from dali_feed.bench.facts import facts
from dali_feed.bench.photos import photos
from dali_feed.bench.rows import append, table
from dali_feed.bench.usage import rss
from dali_feed.external_sources import KafkaStream

WAYS = ("reader", "loader")
PARTITIONS = 4
BATCH = 32
LIVE_RATE = 50.0
AHEAD = 1000  # records that are written and not taken yet, where as many as possible come
WARM = 100  # records, or steps, that do not count
SHOWN = ["what", "way", "batch", "records/s", "MB/s", "p50 ms", "p99 ms", "jitter ms"]
SHOWN += ["lag ms", "lag ms at end", "rss MB", "rss MB at end"]
# Segments are deleted while records are still being written.
KEPT = {"retention.bytes": str(256 << 20), "segment.bytes": str(64 << 20), "file.delete.delay.ms": "1000"}
LOOKS = "log.retention.check.interval.ms=5000\n"
Row = dict[str, object]


@contextmanager
def stepping(way: str, servers: str, topic: str, batch: int) -> Iterator[Iterator[np.ndarray[Any, Any]]]:
    """The times at which the records of each batch were sent, nanoseconds of time.monotonic_ns."""
    stream = KafkaStream(topic, servers, start="earliest", batch_timeout=0.05)
    if way == "reader":
        reader = stream.live()

        def polled() -> Iterator[np.ndarray[Any, Any]]:
            while True:
                block = reader.poll(batch, float("inf"), 0.05).block
                block.lease.release()
                if len(block.ids):
                    yield np.asarray(block.fields["label"])

        try:
            yield polled()
        finally:
            reader.close()
        return
    import torch
    from torchvision.transforms import v2

    from dali_feed import DataLoader

    whole = [v2.Resize(256), v2.CenterCrop(224), v2.ToDtype(torch.float32, scale=True)]
    with DataLoader(stream, batch, transform=v2.Compose(whole)) as loader:
        yield (labels.cpu().numpy() for _, labels in loader)


def latency(way: str, servers: str, topic: str, values: list[bytes], records: int) -> Row:
    """One record at a time."""
    taken: list[float] = []
    with (
        writing(servers, topic, values, LIVE_RATE, PARTITIONS, WARM, 1) as told,
        stepping(way, servers, topic, 1) as steps,
    ):
        for sent in steps:
            told.taken.value += 1
            taken.append((time.monotonic_ns() - int(sent[0])) / 1e6)
            if len(taken) == WARM + records:
                break
    p50, p99 = np.quantile(taken[WARM:], (0.5, 0.99))
    return {"what": "latency", "batch": 1, "p50 ms": round(p50, 2), "p99 ms": round(p99, 2), "records": records}


def throughput(way: str, servers: str, topic: str, values: list[bytes], seconds: float) -> Row:
    """As many as come."""
    count = begun_at = 0
    begun = 0.0
    with (
        writing(servers, topic, values, None, PARTITIONS, 0, AHEAD) as told,
        stepping(way, servers, topic, BATCH) as steps,
    ):
        for sent in steps:
            count += len(sent)
            told.taken.value = count
            now = time.monotonic()
            if not begun and count >= WARM * BATCH:
                begun, begun_at = now, count
            if begun and now - begun >= seconds:
                break
    rate = (count - begun_at) / (now - begun)
    size = sum(map(len, values)) / len(values)
    return {"what": "throughput", "batch": BATCH, "records/s": round(rate), "MB/s": round(rate * size / 1e6, 1)}


def steady(way: str, servers: str, topic: str, values: list[bytes], seconds: float, rate: float) -> Row:
    """A share of what could come, for a while."""
    waits: list[float] = []
    lags: list[float] = []
    held: list[int] = []
    count = 0
    with (
        writing(servers, topic, values, rate, PARTITIONS, WARM * BATCH, 4 * BATCH) as told,
        stepping(way, servers, topic, BATCH) as steps,
    ):
        for _ in range(WARM):
            told.taken.value += len(next(steps))
        begun = looked = time.monotonic()
        told.taken.value += WARM * BATCH  # what batches that were not full left
        while (before := time.monotonic()) - begun < seconds:
            sent = next(steps)
            now = time.monotonic()
            waits.append(now - before)
            lags.append(now * 1e9 - float(sent[-1]))
            count += len(sent)
            if now - looked >= 1 or not held:
                looked = now
                held.append(rss())
        behind = told.sent.value
    p50, p99 = np.quantile(waits, (0.5, 0.99)) * 1e3
    tenth = max(1, len(lags) // 10)
    lag, lag_end = np.median(lags[:tenth]) / 1e6, np.median(lags[-tenth:]) / 1e6
    size = sum(map(len, values)) / len(values)
    return {
        "what": "steady",
        "batch": BATCH,
        "seconds": round(seconds),
        "offered/s": round(rate),
        "records/s": round(count / (now - begun)),
        "MB/s": round(count / (now - begun) * size / 1e6, 1),
        "p50 ms": round(p50, 2),
        "p99 ms": round(p99, 2),
        "jitter ms": round(p99 - p50, 2),
        "lag ms": round(lag, 1),
        "lag ms at end": round(lag_end, 1),
        "rss MB": round(held[0] / 1e6),
        "rss MB at end": round(held[-1] / 1e6),
        "records": count,
        "written": behind,
    }


def main() -> None:
    """Run it, print the table, and add its rows to results/stream.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1000, help="of latency (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="of throughput (default %(default)s)")
    parser.add_argument("--steady", type=float, default=60, help="seconds (default %(default)s); 0: not")
    parser.add_argument("--share", type=float, default=0.8, help="of the throughput (default %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if (missing := kafka_missing()) is not None:
        print(f"bench: NOT RUN: {missing}")
        return
    values = [value for value, _ in photos(24).records()]
    rows: list[Row] = []
    with ExitStack() as stack:
        real, given = broker_module(), os.environ.get("KAFKA_BOOTSTRAP")
        broker = real.Cluster(given) if given else stack.enter_context(real.RealBroker(more=LOOKS))

        def run(way: str, measured: Any) -> Row:
            topic = f"dali-feed-bench-{uuid.uuid4().hex[:8]}"
            broker.create(topic, PARTITIONS, config=KEPT)
            row: Row = {"way": way, "payload kb": round(sum(map(len, values)) / len(values) / 1e3)}
            row |= measured(way, broker.servers, topic, values)
            broker.delete(topic)
            rows.append(row)
            print(table(rows[-1:], [name for name in SHOWN if name in row]), flush=True)
            return row

        for way in args.ways:
            if args.records:
                run(way, partial(latency, records=args.records))
            if args.seconds:
                most = run(way, partial(throughput, seconds=args.seconds))["records/s"]
                if args.steady:
                    assert isinstance(most, int)
                    run(way, partial(steady, seconds=args.steady, rate=args.share * most))
    columns = dict.fromkeys((name for row in rows for name in row), "")
    print(f"\nadded {len(rows)} rows to {append('stream', [facts() | columns | row for row in rows], args.results)}")


if __name__ == "__main__":
    main()
