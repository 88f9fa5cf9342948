"""Who takes part: a name, and the file and class of it. Importing this table loads none of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dali_feed.bench.contract import Contestant

__all__ = ["IMAGE", "KAFKA", "image_peers", "kafka_peers"]

IMAGE = {  # that read files or shards
    "spdl": "spdl_loader:Spdl",
    "webdataset": "webdataset_loader:WebDataset",
    "mosaic": "mosaic_loader:Mosaic",
    "litdata": "litdata_loader:LitData",
    "grain": "grain_loader:Grain",
    "datasets": "datasets_loader:Datasets",
    "dali-reader": "dali_reader:DaliReader",
    "dali-external-source": "dali_external_source:DaliExternalSource",
    "ray-files": "ray_files:RayFiles",
}
KAFKA = {  # that read a topic
    "confluent-kafka": "confluent_kafka_loader:ConfluentKafka",
    "kafka-python": "kafka_python_loader:KafkaPython",
    "ray-kafka": "ray_kafka:RayKafka",
}


def image_peers() -> list[Contestant]:
    """All that read files or shards, installed or not: each says by itself what it lacks."""
    return [_made(line) for line in IMAGE.values()]


def kafka_peers() -> list[Contestant]:
    """All that read a topic, likewise."""
    return [_made(line) for line in KAFKA.values()]


def _made(line: str) -> Contestant:
    file, _, name = line.partition(":")
    peer: Contestant = getattr(importlib.import_module(f"dali_feed.bench.peers.{file}"), name)()
    return peer
