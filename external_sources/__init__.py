"""Sources: records in, bytes out.

Never: torch, DALI, CuPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily
from dali_feed.secrets import Secret

if TYPE_CHECKING:
    from dali_feed.bad_records import Tally
    from dali_feed.external_sources.arrays import Arrays
    from dali_feed.external_sources.concat import Concat, Mix
    from dali_feed.external_sources.dead_letter_folder import DeadLetterFolder
    from dali_feed.external_sources.files import FileList
    from dali_feed.external_sources.kafka.claims import Claim
    from dali_feed.external_sources.kafka.group import ConsumerGroup
    from dali_feed.external_sources.kafka.produce import Produced
    from dali_feed.external_sources.kafka.producer import Producer
    from dali_feed.external_sources.kafka.stream import KafkaStream
    from dali_feed.external_sources.kafka.topic import KafkaTopic
    from dali_feed.external_sources.kafka.topics import Topics
    from dali_feed.external_sources.mds import MDS
    from dali_feed.external_sources.recordio import RecordIO
    from dali_feed.external_sources.shards import ShardSet
    from dali_feed.external_sources.table import Table
    from dali_feed.external_sources.tfrecord import TFRecords

__all__ = [
    "MDS",
    "Arrays",
    "Claim",
    "Concat",
    "ConsumerGroup",
    "DeadLetterFolder",
    "FileList",
    "KafkaStream",
    "KafkaTopic",
    "Mix",
    "Produced",
    "Producer",
    "RecordIO",
    "Secret",
    "ShardSet",
    "TFRecords",
    "Table",
    "Tally",
    "Topics",
]

__getattr__ = lazily(
    __name__,
    {
        "MDS": "mds",
        "Arrays": "arrays",
        "Claim": "kafka.claims",
        "Concat": "concat",
        "DeadLetterFolder": "dead_letter_folder",
        "FileList": "files",
        "ConsumerGroup": "kafka.group",
        "KafkaStream": "kafka.stream",
        "KafkaTopic": "kafka.topic",
        "Mix": "concat",
        "Produced": "kafka.produce",
        "Producer": "kafka.producer",
        "RecordIO": "recordio",
        "ShardSet": "shards",
        "TFRecords": "tfrecord",
        "Table": "table",
        "Tally": "kafka.produce",
        "Topics": "kafka.topics",
    },
)
