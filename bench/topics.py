"""Records of a topic read by us, beside librdkafka in C and confluent_kafka's own consumer; and a topic written.

    python bench/topics.py [read produce] [--rounds 5]

read: by payload (4, 36, 100, 1024 KB; 400 MB a topic), whole passes:

    plain         one consumer of confluent_kafka with librdkafka's defaults; values are counted and dropped
    C straight    read_c.c with our options: one consumer, all partitions at once, each payload copied once
    C order xN    read_c.c: N threads with a consumer each share extents of about 32 MB in the order of shuffle=False
    C random xN   the same in random order
    order xN, random xN   KafkaTopic.reader(): N readers in as many threads share these extents, copied into slabs

produce: by payload (4, 100, 1024 KB; 100 MB), all sent and acknowledged:

    plain producer        confluent_kafka's, with the options of ours, of values in memory
    run                   Producer(...).run() of a tar shard in the page cache, with a journal

The broker runs on this machine, its CPU time in "server us" a MB, unless KAFKA_BOOTSTRAP names another.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import confluent_kafka
import numpy as np
from _common import HERE, Heat, Options, broker, compiled, main, new_topic, once, timed

from dali_feed.bench.data import Topic
from dali_feed.bench.kafka import TopicReading, extents_of, plain
from dali_feed.bench.runner import Contestant
from dali_feed.external_sources import KafkaTopic, Producer, ShardSet
from dali_feed.external_sources.kafka.client import _LAWS, _PRODUCING, _TUNING
from dali_feed.external_sources.kafka.sender import tuning
from dali_feed.packing.sinks import write_shard
from dali_feed.records.source import Extents
from dali_feed.testing import publish

MEGABYTES, PARTITIONS, READERS = 400, 4, (1, 2)
BIG = {"max.message.bytes": str(8 << 20)}
SENDING = {**_PRODUCING, **tuning("none", 64 << 20, 64 << 20), "enable.idempotence": True}  # as ours sends


def values(options: Options, kilobytes: int) -> list[bytes]:
    """Random records, which begin as a JPEG does."""
    rng, each = np.random.default_rng(0), kilobytes * 1024
    return [b"\xff\xd8\xff" + rng.bytes(each - 3) for _ in range(max(8, int(options.scale * MEGABYTES * 1e6) // each))]


def in_c(topic: Topic, runs: Sequence[Extents], readers: int) -> tuple[float, float, dict[str, float | str]]:
    """MB and seconds by read_c.c; `readers` 0: straight."""
    every = (run for each in runs for run in zip(each.partition, each.start, each.stop, strict=True))
    lines = "".join(f"{partition} {start} {stop}\n" for partition, start, stop in every)
    options = [f"{name}={str(value).lower()}" for name, value in (_TUNING | _LAWS).items()]
    command = [str(compiled(HERE / "read_c.c")), topic.servers, topic.name, str(readers), *options]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    size, _, seconds = done.stdout.split()
    return int(size) / 1e6, float(seconds), {}


def by_us(source: KafkaTopic, runs: Sequence[Extents], readers: int) -> tuple[float, float, dict[str, float | str]]:
    """The same by our readers; read_c.c does not close its consumers either."""
    begun = time.perf_counter()
    with closing(TopicReading(source, runs, readers)) as sizes:
        size = sum(size for _, size in sizes)
        return size / 1e6, time.perf_counter() - begun, {}


def plainly(topic: Topic, count: int) -> float:
    """MB by confluent_kafka."""
    return sum(size for _, size in plain(topic, {}, count=count)) / 1e6


def read(options: Options) -> Iterator[Heat]:
    """A heat for each payload."""
    no_c = None if compiled(HERE / "read_c.c") else "no gcc here, or no librdkafka beside confluent_kafka"
    with broker() as cluster:
        for kilobytes in (4, 36, 100, 1024):
            with new_topic(cluster, PARTITIONS, config=BIG) as name:
                records = values(options, kilobytes)
                publish(cluster.servers, name, [(value, k % 1000) for k, value in enumerate(records)])
                topic, source = Topic(name, cluster.servers), KafkaTopic(name, cluster.servers)
                snapshot = source.snapshot()
                whole = [Extents(np.arange(PARTITIONS), snapshot.starts, snapshot.stops)]
                plain_one = once(partial(plainly, topic, len(records)))
                straight = timed(partial(in_c, topic, whole, 0))
                chosen = [Contestant("plain", plain_one, role="top")]
                chosen.append(Contestant("C straight", straight, role="top", unable=no_c))
                for order, n in itertools.product(("order", "random"), READERS):
                    runs = extents_of(source, shuffled=order == "random")
                    rival, mine = timed(partial(in_c, topic, runs, n)), timed(partial(by_us, source, runs, n))
                    chosen.append(Contestant(f"C {order} x{n}", rival, role="top", unable=no_c))
                    chosen.append(Contestant(f"{order} x{n}", mine, role="ours", beside=f"C {order} x{n}"))
                yield Heat(f"read, {kilobytes} KB", chosen, "MB", server=getattr(cluster, "pid", None))


def sent_plainly(servers: str, name: str, records: Sequence[bytes]) -> float:
    """MB sent by confluent_kafka, all of which the broker has acknowledged."""
    producer = confluent_kafka.Producer({**SENDING, "bootstrap.servers": servers})
    for k, value in enumerate(records):
        while True:
            try:
                producer.produce(name, value, partition=k % PARTITIONS, headers=[("label", b"%d" % (k % 1000))])
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(60)
    assert not left, left
    return sum(map(len, records)) / 1e6


def sent_by_us(servers: str, name: str, shard: Path) -> float:
    """The same by us, with a journal of its own each time."""
    with Producer(name, servers) as producer:
        journal = shard.with_name(f"{uuid.uuid4().hex}.journal")
        return producer.run(ShardSet(shard), journal=journal).tally.size / 1e6


def produce(options: Options) -> Iterator[Heat]:
    """A heat for each payload."""
    with broker() as cluster, tempfile.TemporaryDirectory() as folder:
        for kilobytes in (4, 100, 1024):
            records = values(options, kilobytes)[: max(8, int(100e6 * options.scale) // (kilobytes * 1024))]
            shard = Path(folder, f"{kilobytes}.tar")
            write_shard(shard, ((value, k % 1000) for k, value in enumerate(records)))
            with new_topic(cluster, PARTITIONS, config=BIG) as name:
                plain_one = once(partial(sent_plainly, cluster.servers, name, records))
                ours = once(partial(sent_by_us, cluster.servers, name, shard))
                chosen = [Contestant("plain producer", plain_one, role="top")]
                chosen.append(Contestant("run", ours, role="ours", beside="plain producer"))
                yield Heat(f"produce, {kilobytes} KB", chosen, "MB", server=getattr(cluster, "pid", None))


if __name__ == "__main__":
    sys.exit(main(__doc__, "topics", {"read": read, "produce": produce}, ["of plain", "server us"]))
