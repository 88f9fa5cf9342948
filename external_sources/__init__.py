"""Sources: records in, bytes out.

Never: torch, DALI, CuPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.external_sources.arrow_rows import ArrowRows
    from dali_feed.external_sources.dead_letter_folder import DeadLetterFolder
    from dali_feed.external_sources.dead_letter_topic import DeadLetterTopic
    from dali_feed.external_sources.files import FileList
    from dali_feed.external_sources.kafka import KafkaTopic
    from dali_feed.external_sources.kafka_producer import Produced, Producer
    from dali_feed.external_sources.kafka_tally import Tally
    from dali_feed.external_sources.kafka_topics import Topics
    from dali_feed.external_sources.kafka_writes import Copied, Payload, Values
    from dali_feed.external_sources.secrets import FromEnv, FromFile
    from dali_feed.external_sources.shards import ShardSet

__all__ = [
    "ArrowRows",
    "Copied",
    "DeadLetterFolder",
    "DeadLetterTopic",
    "FileList",
    "FromEnv",
    "FromFile",
    "KafkaTopic",
    "Payload",
    "Produced",
    "Producer",
    "ShardSet",
    "Tally",
    "Topics",
    "Values",
]

__getattr__ = lazily(
    __name__,
    {
        "ArrowRows": "arrow_rows",
        "Copied": "kafka_writes",
        "DeadLetterFolder": "dead_letter_folder",
        "DeadLetterTopic": "dead_letter_topic",
        "FileList": "files",
        "FromEnv": "secrets",
        "FromFile": "secrets",
        "KafkaTopic": "kafka",
        "Payload": "kafka_writes",
        "Produced": "kafka_producer",
        "Producer": "kafka_producer",
        "ShardSet": "shards",
        "Tally": "kafka_tally",
        "Topics": "kafka_topics",
        "Values": "kafka_writes",
    },
)
