"""kafka-python in the workers of torch's DataLoader, with `assign` and `poll`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from dali_feed.bench.contract import Topic
from dali_feed.bench.peers._kafka import KafkaPeer, Records

__all__ = ["KafkaPython"]

FETCH = 4 << 20  # bytes that it asks a partition for at once: its own 1 MB holds few images
WAIT = 1000  # milliseconds of a poll


class _Records(Records):
    def values(self, topic: Topic, worker: int, workers: int) -> Iterator[bytes]:
        """Up to the ends that the partitions have now."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=topic.servers, enable_auto_commit=False, max_partition_fetch_bytes=FETCH
        )
        try:
            mine = [TopicPartition(topic.name, each) for each in sorted(consumer.partitions_for_topic(topic.name))]
            mine = mine[worker::workers]
            if not mine:
                return
            consumer.assign(mine)
            ends = consumer.end_offsets(mine)
            while True:
                consumer.seek_to_beginning(*mine)
                while any(consumer.position(each) < ends[each] for each in mine):
                    for records in consumer.poll(WAIT).values():
                        yield from (record.value for record in records if record.value is not None)
        finally:
            consumer.close()


class KafkaPython(KafkaPeer):
    """An IterableDataset over the consumer written in Python."""

    name, package, modules = "kafka-python", "kafka-python", ("kafka",)
    records = _Records
