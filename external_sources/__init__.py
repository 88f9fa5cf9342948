"""Sources: records in, bytes out.

Never: torch, DALI, CuPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.external_sources.arrow_rows import ArrowRows
    from dali_feed.external_sources.concat import Concat
    from dali_feed.external_sources.dead_letter_folder import DeadLetterFolder
    from dali_feed.external_sources.files import FileList
    from dali_feed.external_sources.kafka.claim import Claim
    from dali_feed.external_sources.kafka.dead_letter_topic import DeadLetterTopic
    from dali_feed.external_sources.kafka.fleet import Fleet
    from dali_feed.external_sources.kafka.producer import Produced, Producer
    from dali_feed.external_sources.kafka.secrets import FromEnv, FromFile
    from dali_feed.external_sources.kafka.stream import KafkaStream
    from dali_feed.external_sources.kafka.tally import Tally
    from dali_feed.external_sources.kafka.topic import KafkaTopic
    from dali_feed.external_sources.kafka.topics import Topics
    from dali_feed.external_sources.kafka.writes import Copied, Payload, Values
    from dali_feed.external_sources.mix import Mix
    from dali_feed.external_sources.shards import ShardSet

__all__ = [
    "ArrowRows",
    "Claim",
    "Concat",
    "Copied",
    "DeadLetterFolder",
    "DeadLetterTopic",
    "FileList",
    "Fleet",
    "FromEnv",
    "FromFile",
    "KafkaStream",
    "KafkaTopic",
    "Mix",
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
        "Claim": "kafka.claim",
        "Concat": "concat",
        "Copied": "kafka.writes",
        "DeadLetterFolder": "dead_letter_folder",
        "DeadLetterTopic": "kafka.dead_letter_topic",
        "FileList": "files",
        "Fleet": "kafka.fleet",
        "FromEnv": "kafka.secrets",
        "FromFile": "kafka.secrets",
        "KafkaStream": "kafka.stream",
        "KafkaTopic": "kafka.topic",
        "Mix": "mix",
        "Payload": "kafka.writes",
        "Produced": "kafka.producer",
        "Producer": "kafka.producer",
        "ShardSet": "shards",
        "Tally": "kafka.tally",
        "Topics": "kafka.topics",
        "Values": "kafka.writes",
    },
)
