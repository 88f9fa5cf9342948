"""Sources: records in, bytes out. Nothing here imports DALI, torch or CuPy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dali_feed.packages import needed

if TYPE_CHECKING:
    from dali_feed.external_sources.arrow_rows import ArrowRows
    from dali_feed.external_sources.dead_letter_folder import DeadLetterFolder
    from dali_feed.external_sources.dead_letter_topic import DeadLetterTopic
    from dali_feed.external_sources.files import FileList
    from dali_feed.external_sources.kafka import KafkaTopic
    from dali_feed.external_sources.shards import ShardSet

__all__ = ["ArrowRows", "DeadLetterFolder", "DeadLetterTopic", "FileList", "KafkaTopic", "ShardSet"]

_HOME = {
    "ArrowRows": "arrow_rows",
    "DeadLetterFolder": "dead_letter_folder",
    "DeadLetterTopic": "dead_letter_topic",
    "FileList": "files",
    "KafkaTopic": "kafka",
    "ShardSet": "shards",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        with needed():
            return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
