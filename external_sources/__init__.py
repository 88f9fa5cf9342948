"""Sources: records in, bytes out.

Never: torch, DALI, CuPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily
from dali_feed.secrets import FromEnv, FromFile

if TYPE_CHECKING:
    from dali_feed.external_sources.array_shards import ArrayShards
    from dali_feed.external_sources.arrow_files import ArrowFiles
    from dali_feed.external_sources.arrow_rows import ArrowRows
    from dali_feed.external_sources.concat import Concat
    from dali_feed.external_sources.dead_letter_folder import DeadLetterFolder
    from dali_feed.external_sources.files import FileList
    from dali_feed.external_sources.kafka.claims import Claim
    from dali_feed.external_sources.kafka.dead_letters import DeadLetterTopic
    from dali_feed.external_sources.kafka.group import Fleet
    from dali_feed.external_sources.kafka.producer import Produced, Producer
    from dali_feed.external_sources.kafka.stream import KafkaStream
    from dali_feed.external_sources.kafka.topic import KafkaTopic
    from dali_feed.external_sources.kafka.topics import Topics
    from dali_feed.external_sources.kafka.writes import Copied, Payload, Values
    from dali_feed.external_sources.mix import Mix
    from dali_feed.external_sources.parquet_rows import ParquetRows
    from dali_feed.external_sources.record_files.mds import MDS
    from dali_feed.external_sources.record_files.recordio import RecordIO
    from dali_feed.external_sources.record_files.tfrecords import TFRecords
    from dali_feed.external_sources.renamed import Renamed
    from dali_feed.external_sources.shards import DiskCache, ShardSet
    from dali_feed.records.tally import Tally

__all__ = [
    "MDS",
    "ArrayShards",
    "ArrowFiles",
    "ArrowRows",
    "Claim",
    "Concat",
    "Copied",
    "DeadLetterFolder",
    "DeadLetterTopic",
    "DiskCache",
    "FileList",
    "Fleet",
    "FromEnv",
    "FromFile",
    "KafkaStream",
    "KafkaTopic",
    "Mix",
    "ParquetRows",
    "Payload",
    "Produced",
    "Producer",
    "RecordIO",
    "Renamed",
    "ShardSet",
    "TFRecords",
    "Tally",
    "Topics",
    "Values",
]

__getattr__ = lazily(
    __name__,
    {
        "MDS": "record_files.mds",
        "ArrayShards": "array_shards",
        "ArrowFiles": "arrow_files",
        "ArrowRows": "arrow_rows",
        "Claim": "kafka.claims",
        "Concat": "concat",
        "Copied": "kafka.writes",
        "DeadLetterFolder": "dead_letter_folder",
        "DeadLetterTopic": "kafka.dead_letters",
        "DiskCache": "shards",
        "FileList": "files",
        "Fleet": "kafka.group",
        "KafkaStream": "kafka.stream",
        "KafkaTopic": "kafka.topic",
        "Mix": "mix",
        "ParquetRows": "parquet_rows",
        "Payload": "kafka.writes",
        "Produced": "kafka.producer",
        "Producer": "kafka.producer",
        "RecordIO": "record_files.recordio",
        "Renamed": "renamed",
        "ShardSet": "shards",
        "TFRecords": "record_files.tfrecords",
        "Tally": "kafka.tally",
        "Topics": "kafka.topics",
        "Values": "kafka.writes",
    },
)
