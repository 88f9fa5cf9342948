"""Kafka topics and file shards to GPU training batches, through NVIDIA DALI: exact order and resume, bad data survived.

Importing this loads none of torch, DALI, CuPy and confluent_kafka: each is loaded by what needs it.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.external_sources import (
        MDS,
        Arrays,
        Concat,
        FileList,
        KafkaStream,
        KafkaTopic,
        Mix,
        Producer,
        RecordIO,
        Secret,
        ShardSet,
        Table,
        TFRecords,
    )
    from dali_feed.loader import DataLoader, Info
    from dali_feed.options import BadRecords, Cache, Decode, Tuning
    from dali_feed.plan.order import Shuffle
    from dali_feed.transforms.mixing import Mixing

__all__ = [
    "MDS",
    "Arrays",
    "BadRecords",
    "Cache",
    "Concat",
    "DataLoader",
    "Decode",
    "FileList",
    "Info",
    "KafkaStream",
    "KafkaTopic",
    "Mix",
    "Mixing",
    "Producer",
    "RecordIO",
    "Secret",
    "ShardSet",
    "Shuffle",
    "TFRecords",
    "Table",
    "Tuning",
    "__version__",
]

_get = lazily(
    __name__,
    dict.fromkeys(__all__, "external_sources")  # of sources, which are at home there
    | {
        "BadRecords": "options",
        "Cache": "options",
        "DataLoader": "loader",
        "Decode": "options",
        "Info": "loader",
        "Mixing": "transforms.mixing",
        "Shuffle": "plan.order",
        "Tuning": "options",
    },
)


def _printable(record: logging.LogRecord) -> bool:
    """Names of files and topics go into the log without what a terminal would obey."""
    text = record.getMessage()
    if not text.isprintable():
        record.msg, record.args = "".join(each if each.isprintable() or each == "\n" else " " for each in text), None
    return True


for _name in ("dali_feed", "dali_feed.kafka"):  # a filter is of its own logger alone
    logging.getLogger(_name).addFilter(_printable)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("dali-feed")
    return _get(name)
