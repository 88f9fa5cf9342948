"""Kafka topics and file shards to GPU training batches, through NVIDIA DALI: exact order and resume, bad data survived.

Importing this loads none of torch, DALI, CuPy and confluent_kafka: each is loaded by what needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.loader import DataLoader, Info
    from dali_feed.options import BadRecords, Cache, Decode, Tuning
    from dali_feed.plan.order import Shuffle
    from dali_feed.transforms.mixing import Mixing

__all__ = ["BadRecords", "Cache", "DataLoader", "Decode", "Info", "Mixing", "Shuffle", "Tuning", "__version__"]

_get = lazily(
    __name__,
    {
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


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("dali-feed")
    return _get(name)
