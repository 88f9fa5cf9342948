"""Sources to produce from, and what is in a topic afterwards."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kit.broker.handle import Opened

from dali_feed.external_sources import ShardSet
from dali_feed.packing.sinks import write_shard
from dali_feed.records.extents import Extents
from dali_feed.records.source import Block, Source


def numbered(count: int, size: int = 100) -> list[bytes]:
    """Values that say which they are."""
    return [b"%06d" % n * (size // 6 + n % 7) for n in range(count)]


def shard_of(folder: Path, values: list[bytes]) -> ShardSet:
    """One shard; each value's label is its number."""
    write_shard(folder / "s.tar", [{"bin": v, "cls": b"%d" % n, "txt": b"text %d" % n} for n, v in enumerate(values)])
    return ShardSet(folder / "s.tar", image=("bin",), index_dir=folder)


def block_of(topic: Source, partition: int, *names: str) -> Block:
    """All that a partition holds, as a reader has it: the values and labels, unless other names are given."""
    snapshot, reader = topic.snapshot(), Opened(topic, *names)
    try:
        start, stop = int(snapshot.starts[partition]), int(snapshot.stops[partition])
        return reader.read(Extents.one(partition, start, stop))
    finally:
        reader.close()


def values_in(servers: str, topic: str) -> list[list[bytes]]:
    """The committed values of each partition, in order, as a consumer of anybody has them."""
    options = {"bootstrap.servers": servers, "group.id": "anybody", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({**options, "isolation.level": "read_committed", "fetch.wait.max.ms": 10})
    try:
        count = len(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(count)])
        found: list[list[bytes]] = [[] for _ in range(count)]
        ended: set[int] = set()
        while len(ended) < count:
            message = consumer.poll(60)
            assert message is not None, "nothing came for a minute"
            partition = message.partition()
            assert partition is not None
            if message.error() is None:
                found[partition].append(message.value() or b"")
            else:
                ended.add(partition)
        return found
    finally:
        consumer.close()
