"""Insides that contract/topics/test_claims.py needs not: they go with what they test."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from kit.broker.handle import Kafka

from dali_feed.external_sources import KafkaStream
from dali_feed.external_sources.kafka.topic import messages
from dali_feed.testing import Message


def made(folder: Path) -> Path:
    """An empty folder beside the shard."""
    claims = folder / "claims"
    claims.mkdir()
    return claims


def claimed(folder: Path, payload: bytes, uri: str | None = None, **instead: bytes) -> Message:
    """A record whose payload is in the folder, or whose headers say so; `instead`: of the headers' texts."""
    digest = hashlib.sha256(payload).hexdigest()
    (folder / digest[:2]).mkdir(exist_ok=True)
    (folder / digest[:2] / digest).write_bytes(payload)
    told = {
        "uri": (f"{digest[:2]}/{digest}" if uri is None else uri).encode(),
        "size": b"%d" % len(payload),
        "sha256": digest.encode(),
    }
    headers = [(f"claim.{name}", text) for name, text in (told | instead).items() if text or name == "uri"]
    return Message(b"", None, (("label", b"7"), *headers), 0)


def test_what_a_worker_gives_up_leaves_the_weight_of_the_rest(embedded: Kafka, tmp_path: Path) -> None:
    """Payloads count for `batch_bytes` wherever they lie, before partitions go and after."""
    folder = made(tmp_path)
    records = [replace(claimed(folder, b"%d" % n * 5_000), partition=n % 2) for n in range(4)]
    embedded.publish(embedded.topic, records, partitions=2)
    stream = KafkaStream(embedded.topic, embedded.servers, label=None, fleet=embedded.topic, claims=folder)
    reader: Any = stream.live()
    to, decoding = reader._to, reader._decoding
    reader._taken = [each for p in (0, 1) for each in messages(to, p, 0, 2)]
    reader._filled = sum(map(decoding.claims.weigh, reader._taken))
    assert reader._filled == 4 * 5_000
    reader._forget([1])
    assert reader._filled == 2 * 5_000
    reader.close()
