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
    from dali_feed.external_sources.kafka_topics import Topics
    from dali_feed.external_sources.secrets import FromEnv, FromFile
    from dali_feed.external_sources.shards import ShardSet

__all__ = [
    "ArrowRows",
    "DeadLetterFolder",
    "DeadLetterTopic",
    "FileList",
    "FromEnv",
    "FromFile",
    "KafkaTopic",
    "ShardSet",
    "Topics",
]

__getattr__ = lazily(
    __name__,
    {
        "ArrowRows": "arrow_rows",
        "DeadLetterFolder": "dead_letter_folder",
        "DeadLetterTopic": "dead_letter_topic",
        "FileList": "files",
        "FromEnv": "secrets",
        "FromFile": "secrets",
        "KafkaTopic": "kafka",
        "ShardSet": "shards",
        "Topics": "kafka_topics",
    },
)
