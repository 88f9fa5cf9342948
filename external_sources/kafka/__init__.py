"""Kafka: topics read exactly and as streams, written, looked after and told of.

Never: torch, DALI, CuPy; nor any other source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.packages import lazily

if TYPE_CHECKING:
    from dali_feed.external_sources.kafka.stream import KafkaStream
    from dali_feed.external_sources.kafka.topic import KafkaTopic

__all__ = ["KafkaStream", "KafkaTopic"]

__getattr__ = lazily(__name__, {"KafkaStream": "stream", "KafkaTopic": "topic"})
