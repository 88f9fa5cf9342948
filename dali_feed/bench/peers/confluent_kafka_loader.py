"""confluent-kafka in the workers of torch's DataLoader, with `assign` and `consume`."""

from __future__ import annotations

from collections.abc import Iterator

from dali_feed.bench.contract import Topic
from dali_feed.bench.peers._kafka import KafkaPeer, Records
from dali_feed.errors import SourceUnreachableError

__all__ = ["ConfluentKafka"]

MANY = 64  # messages asked for at once
OPTIONS = {
    "group.id": "dali-feed-bench",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 5,  # its default of a second leaves a worker with nothing to do
}
PATIENCE = 30.0  # seconds without a record, after which the broker is gone


class _Records(Records):
    def values(self, topic: Topic, worker: int, workers: int) -> Iterator[bytes]:
        """A partition is done where its last offset has come, or its end is told: a marker may have the last one."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": topic.servers, **OPTIONS})
        try:
            known = sorted(consumer.list_topics(topic.name, PATIENCE).topics[topic.name].partitions)
            mine = {each: TopicPartition(topic.name, each, OFFSET_BEGINNING) for each in known[worker::workers]}
            ends = {each: consumer.get_watermark_offsets(part, PATIENCE) for each, part in mine.items()}
            full = {each: last for each, (first, last) in ends.items() if first < last}
            while full:
                consumer.assign([mine[each] for each in full])
                left = set(full)
                while left:
                    first = consumer.poll(PATIENCE)  # `consume` alone would wait until it has all it was asked for
                    if first is None:
                        msg = f"{topic.name}: {topic.servers} must give a record within {PATIENCE:.0f} s; none came"
                        raise SourceUnreachableError(msg)
                    for message in (first, *consumer.consume(MANY, 0)):
                        partition, ended = message.partition(), message.error() is not None
                        if ended or (message.offset() or 0) + 1 >= full[partition]:
                            left.discard(partition)
                        if not ended and (value := message.value()) is not None:
                            yield value
        finally:
            consumer.close()


class ConfluentKafka(KafkaPeer):
    """An IterableDataset over librdkafka's consumer."""

    name, package, modules = "confluent-kafka", "confluent-kafka", ("confluent_kafka",)
    records = _Records
