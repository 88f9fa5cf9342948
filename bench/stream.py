"""A stream: how long a record takes from its producer into a tensor, how many come at most, and how steadily.

    python bench/stream.py [latency most] [--seconds 20]

    latency  one record at a time, about every 20 ms, batch 1: from `produce` in another process until the batch is
             handed over; the figure is the median, `lag p99 ms` the 99th percentile
    most     that process writes as fast as records come, batches of 32; then 0.8 of that for as long: `wait p99 ms`
             of the step, `lag ms` the age of a record when it comes, `rss MB` what the process holds at the end

`reader` is the source alone, `loader` a DataLoader that decodes and resizes 224x224. The broker runs on this machine
unless KAFKA_BOOTSTRAP names another, and deletes what is older than some seconds.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from _common import Heat, Options, broker, main, new_topic, once
from confluent_kafka import Producer

from dali_feed.bench.data import photos
from dali_feed.bench.runner import Contestant, rss
from dali_feed.columns import Number
from dali_feed.external_sources import KafkaStream
from dali_feed.records.slabs import SlabPool

PARTITIONS, BATCH, LIVE_RATE, SHARE = 4, 32, 50.0, 0.8
AHEAD = 1000  # records that are written and not taken yet, where as many as possible come
WARM = 100  # records, or steps, that do not count
# Segments are deleted while records are still being written.
KEPT = {"retention.bytes": str(256 << 20), "segment.bytes": str(64 << 20), "file.delete.delay.ms": "1000"}


@contextmanager
def writing(servers: str, topic: str, values: Sequence[bytes], rate: float | None, ahead: int) -> Iterator[Any]:
    """A process that writes records whose label says when they were sent; gives the count of those taken.

    rate   records a second, once WARM were taken; None: always `ahead` more than were taken
    """
    spawn = multiprocessing.get_context("spawn")
    taken, stop = spawn.Value("q", 0, lock=False), spawn.Event()
    given = (servers, topic, values, rate, ahead, taken, stop)
    process = spawn.Process(target=_write, args=given, daemon=True)
    process.start()
    try:
        yield taken
    finally:
        stop.set()
        process.join(60)


def _write(
    servers: str, topic: str, values: Sequence[bytes], rate: float | None, ahead: int, taken: Any, stop: Any
) -> None:
    known: dict[str, Any] = {"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0}
    producer = Producer(known | {"linger.ms": 0 if ahead == 1 else 5, "queue.buffering.max.kbytes": 1 << 20})
    gaps, sent, due = np.random.default_rng(0), 0, time.monotonic()
    while not stop.is_set():
        timed = rate is not None and sent >= WARM
        while (time.monotonic() < due) if timed else (sent >= taken.value + ahead):
            producer.poll(0.001)
            if stop.is_set():
                break
        due = due + gaps.uniform(0.5, 1.5) / rate if timed and rate is not None else time.monotonic()
        label: Any = [("label", b"%d" % time.monotonic_ns())]
        producer.produce(topic, values[sent % len(values)], partition=sent % PARTITIONS, headers=label)
        sent += 1
        producer.poll(0)
    producer.flush(30)


@contextmanager
def stepping(way: str, servers: str, topic: str, batch: int) -> Iterator[Iterator[np.ndarray[Any, Any]]]:
    """The times at which the records of each batch were sent, nanoseconds of time.monotonic_ns."""
    stream = KafkaStream(topic, servers, start="earliest", batch_timeout=0.05)
    if way == "reader":
        label, pool = Number("headers.label"), SlabPool()
        reader = stream.live(None, ["value", label.member])

        def polled() -> Iterator[np.ndarray[Any, Any]]:
            while True:
                lease = pool.lease()
                block = reader.poll(batch, float("inf"), 0.05, lease).block
                sent = label.read(block.values[label.member], {})
                lease.release()
                if len(block.ids):
                    yield sent

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


def lived(cluster: Any, way: str, values: list[bytes], records: int) -> Any:
    """One record at a time: units such that the figure is the median lag."""
    with new_topic(cluster, PARTITIONS, config=KEPT) as topic:
        lags = list[float]()
        servers = cluster.servers
        with writing(servers, topic, values, LIVE_RATE, 1) as taken, stepping(way, servers, topic, 1) as steps:
            for sent in steps:
                taken.value += 1
                lags.append((time.monotonic_ns() - int(sent[0])) / 1e6)
                if len(lags) == WARM + records:
                    break
    p50, p99 = (round(float(q), 2) for q in np.quantile(lags[WARM:], (0.5, 0.99)))
    return records, {"lag p50 ms": p50, "lag p99 ms": p99}


def flowed(
    cluster: Any, way: str, values: list[bytes], seconds: float, rate: float | None
) -> tuple[float, dict[str, float]]:
    """Records a second that came, and how; `rate`: that are written, None: as many as come."""
    with new_topic(cluster, PARTITIONS, config=KEPT) as topic:
        waits, lags, count = list[float](), list[float](), 0
        ahead, servers = AHEAD if rate is None else 4 * BATCH, cluster.servers
        with writing(servers, topic, values, rate, ahead) as taken, stepping(way, servers, topic, BATCH) as steps:
            for _ in range(WARM):
                taken.value += len(next(steps))
            begun = now = time.monotonic()
            while now - begun < seconds:
                before, sent = now, next(steps)
                now = time.monotonic()
                taken.value += len(sent)
                count += len(sent)
                waits.append(now - before)
                lags.append(now * 1e3 - float(sent[-1]) / 1e6)
    p99, lag = float(np.quantile(waits, 0.99)) * 1e3, float(np.median(lags[-max(1, len(lags) // 10) :]))
    return count / (now - begun), {"wait p99 ms": round(p99, 2), "lag ms": round(lag, 1), "rss MB": round(rss() / 1e6)}


def latency(options: Options) -> Iterator[Heat]:
    """By the source alone and by the loader."""
    values = [value for value, _ in photos(24).records()]
    with broker(more="log.retention.check.interval.ms=5000\n") as cluster:
        records = max(20, int(options.scale * 1000))
        runs = {way: partial(lived, cluster, way, values, records) for way in ("reader", "loader")}
        chosen = [Contestant(way, once(run), role="ours") for way, run in runs.items()]
        yield Heat("latency, batch 1", chosen, "records", server=getattr(cluster, "pid", None))


def most(options: Options) -> Iterator[Heat]:
    """As many as come, then 0.8 of them."""
    values = [value for value, _ in photos(24).records()]
    with broker(more="log.retention.check.interval.ms=5000\n") as cluster:

        def run(way: str) -> Any:
            fastest, _ = flowed(cluster, way, values, options.seconds, None)
            rate, figures = flowed(cluster, way, values, options.seconds, SHARE * fastest)
            return fastest, {"most/s": fastest, "steady/s": rate, **figures}

        chosen = [Contestant(way, once(partial(run, way)), role="ours") for way in ("reader", "loader")]
        yield Heat("most, then 0.8 of it, batch 32", chosen, "records", server=getattr(cluster, "pid", None))


SHOWN = ["lag p50 ms", "lag p99 ms", "most/s", "steady/s", "wait p99 ms", "lag ms", "rss MB", "server us"]
if __name__ == "__main__":
    sys.exit(main(__doc__, "stream", {"latency": latency, "most": most}, SHOWN))
