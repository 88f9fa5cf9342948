"""A topic's batches while the number of its readers, and what they fetch, change."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kit.broker.handle import Kafka
from kit.images import jpeg
from torchvision.transforms import v2

from dali_feed import DataLoader, Shuffle, Tuning
from dali_feed.columns import Image, Number
from dali_feed.external_sources import KafkaTopic
from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.feed import Feed
from dali_feed.feed import adapting as steering
from dali_feed.feed.adapting import Bounds, Decision, Facts, Reading, Standing
from dali_feed.testing import Message


def test_a_topic_gives_one_order_while_readers_and_fetches_change(
    embedded: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that changes them at random after each read leaves batches and states as they are, with columns too."""
    monkeypatch.setattr(steering, "SECONDS", 0.0)
    monkeypatch.setattr(steering, "READS", 0)
    rng = random.Random(1)
    topic = embedded.topic
    embedded.publish(topic, [Message(jpeg(n), headers=(("label", b"%d" % n),)) for n in range(96)], partitions=3)

    def chaos(standing: Standing, facts: Facts, bounds: Bounds) -> tuple[Standing, Decision]:
        new = Reading(rng.randint(bounds.least, bounds.most), rng.randint(1, bounds.fetch))
        return Standing(new), Decision(standing.reading, new, str(facts))

    times = set[int]()
    fetch_times = KafkaReader.fetch_times

    def noted(reader: KafkaReader, given: int) -> None:
        times.add(given)
        fetch_times(reader, given)

    monkeypatch.setattr(KafkaReader, "fetch_times", noted)

    def run(tuning: Tuning) -> list[Any]:
        source, crop = KafkaTopic(topic, embedded.servers), v2.RandomResizedCrop(16)
        columns = {"image": Image("value", crop), "label": Number("label")}
        shuffle = Shuffle(extent=4, window=1)
        with DataLoader(
            source, 4, columns=columns, shuffle=shuffle, device="cpu", info=True, tuning=tuning, seed=3
        ) as loader:
            assert isinstance(loader._feed, Feed)
            loader._feed._machine.policy = chaos
            seen: list[Any] = []
            for _ in range(2):
                for batch, info in loader:
                    seen += [info.ids.tolist(), batch["label"].tolist(), batch["image"].numpy().tobytes()]
                    seen.append(loader.state_dict())
            return seen

    pinned = run(Tuning(threads=1, readers=1))
    assert times == {1}
    assert run(Tuning(threads=1, readers="auto")) == pinned
    assert times == {1, 2}
