"""The whole way from a topic to tensors, on both brokers, and beside the same records in tar shards."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from kit.broker.handle import Kafka
from kit.images import jpeg
from kit.inside import Source, write_shard
from torchvision.transforms import v2

from dali_feed import DataLoader, Shuffle, Tuning
from dali_feed.external_sources import KafkaTopic, ShardSet
from dali_feed.testing import Message

pytestmark = pytest.mark.usefixtures("each_engine")

PARTITIONS, PER_PARTITION = 3, 26
TRANSFORM = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ColorJitter(0.2)])


@functools.cache
def records() -> list[list[tuple[bytes, int]]]:
    """Labelled JPEGs of several sizes, a list per partition."""
    return [
        [(jpeg(100 * p + n, 30 + p, 32 + 3 * n % 17), 10 * p + n % 10) for n in range(PER_PARTITION)]
        for p in range(PARTITIONS)
    ]


def fill(kafka: Kafka) -> str:
    """A topic that holds `records`, partition for partition."""
    topic = kafka.create(kafka.topic, PARTITIONS)
    kafka.publish(
        topic,
        [
            Message(jpeg, headers=(("label", b"%d" % label),), partition=p)
            for p, part in enumerate(records())
            for jpeg, label in part
        ],
    )
    return topic


def batches(source: Source, state: dict[str, Any] | None = None, **options: Any) -> list[tuple[Any, ...]]:
    """One epoch, or what is left of one, as comparable values: ids, labels, pixel bytes."""
    chosen = {"batch_size": 16, "transform": TRANSFORM, "device": "cpu", "seed": 5, "info": True, **options}
    with DataLoader(source, **chosen) as loader:
        if state is not None:
            loader.load_state_dict(state)
        return [(i.ids.tolist(), labels.tolist(), images.numpy().tobytes()) for images, labels, i in loader]


def by_id(way: list[tuple[Any, ...]]) -> dict[int, tuple[int, bytes]]:
    """Label and pixels of every sample."""
    return {
        sample: (label, raw[k * len(raw) // len(ids) : (k + 1) * len(raw) // len(ids)])
        for ids, labels, raw in way
        for k, (sample, label) in enumerate(zip(ids, labels, strict=True))
    }


def test_a_topic_gives_the_batches_that_the_same_records_in_tar_shards_give(kafka: Kafka, tmp_path: Path) -> None:
    """Equal ids, draws and order give equal pixels, wherever the bytes came from."""
    topic = fill(kafka)
    for p, part in enumerate(records()):
        write_shard(tmp_path / f"train-{p}.tar", part)
    shuffle = Shuffle(extent=8, window=3)
    from_topic = batches(KafkaTopic(topic, kafka.servers), shuffle=shuffle)
    from_shards = batches(ShardSet(str(tmp_path / "train-*.tar")), shuffle=shuffle)
    assert len(from_topic) == len(from_shards)
    assert by_id(from_topic) == by_id(from_shards)


def test_a_topic_gives_one_order_whatever_reads_it(kafka: Kafka) -> None:
    """Batches are equal for one reader and three, prefetch one and four, one thread and four."""
    topic = KafkaTopic(fill(kafka), kafka.servers)
    shuffle = Shuffle(extent=8, window=3)
    plain = batches(topic, shuffle=shuffle)
    for tuning in (Tuning(readers=3, prefetch=4, threads=4), Tuning(readers=1, prefetch=1, threads=1)):
        assert batches(topic, shuffle=shuffle, tuning=tuning) == plain


def test_both_brokers_give_the_same_batches(embedded: Kafka, real_kafka: Kafka) -> None:
    """Neither the broker that holds the records nor the name of the topic decides anything about the order."""
    shuffle = Shuffle(extent=8, window=3)
    one = batches(KafkaTopic(fill(embedded), embedded.servers), shuffle=shuffle)
    assert one == batches(KafkaTopic(fill(real_kafka), real_kafka.servers), shuffle=shuffle)


def test_a_resumed_run_keeps_its_ends_while_the_topic_grows(kafka: Kafka) -> None:
    """The state brings the snapshot's ends along: records that came later do not change the epoch."""
    topic = fill(kafka)
    options: dict[str, Any] = {"batch_size": 16, "transform": TRANSFORM, "device": "cpu", "seed": 5, "shuffle": True}
    whole = batches(KafkaTopic(topic, kafka.servers), shuffle=True)
    with DataLoader(KafkaTopic(topic, kafka.servers), **options) as loader:
        run = iter(loader)
        for _ in range(3):
            next(run)
        state = json.loads(json.dumps(loader.state_dict()))
    kafka.publish(topic, [(jpeg(1, 20, 20), 1)] * 30)
    assert batches(KafkaTopic(topic, kafka.servers), state=state, shuffle=True) == whole[3:]
