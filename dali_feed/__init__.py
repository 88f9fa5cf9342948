"""From Kafka topics and file shards to GPU training batches, through NVIDIA DALI: exact, resumable, calm.

Importing this loads none of torch, DALI, CuPy and confluent_kafka: each is loaded by what needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dali_feed.packages import needed

if TYPE_CHECKING:
    from dali_feed.loader import DataLoader
    from dali_feed.mixing import Mixing
    from dali_feed.options import BadRecords, Tuning
    from dali_feed.plan import Shuffle
    from dali_feed.views import Views

__all__ = ["BadRecords", "DataLoader", "Mixing", "Shuffle", "Tuning", "Views", "__version__"]

_HOME = {
    "BadRecords": "options",
    "DataLoader": "loader",
    "Mixing": "mixing",
    "Shuffle": "plan",
    "Tuning": "options",
    "Views": "views",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        with needed():
            return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("dali-feed")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
