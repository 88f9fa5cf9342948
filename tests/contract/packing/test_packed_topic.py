"""A topic's records as shards: what a run over them gives is what a run over the topic gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.blocks import rows
from kit.broker.handle import Kafka
from kit.images import QUICK, jpeg
from kit.inside import Extents, Feed
from torchvision.transforms import v2

from dali_feed import Shuffle
from dali_feed.external_sources import KafkaTopic, ShardSet
from dali_feed.packing import pack
from dali_feed.testing import Message, assert_resumes_anywhere

CROP = v2.RandomResizedCrop(16)
PARTITIONS = 3


@pytest.fixture
def topic(embedded: Kafka) -> KafkaTopic:
    """30 labelled images in three partitions of ten, with two that no decoder takes, a key here and a header there."""
    records = [
        Message(
            b"no image" if n in (7, 20) else jpeg(n % 16),
            key=b"key %d" % n if n % 2 else None,
            headers=(("label", b"%d" % n), *((("rare", b"!"),) if n == 11 else ())),
            partition=n % PARTITIONS,
        )
        for n in range(30)
    ]
    embedded.publish(embedded.topic, records, PARTITIONS)
    return KafkaTopic(embedded.topic, embedded.servers)


def opened(folder: Path) -> ShardSet:
    """The set in a folder."""
    return ShardSet(folder / f"{folder.name}.dfset")


def dealt(source: Any, state: dict[str, Any] | None = None, stop: int = 99) -> tuple[list[Any], dict[str, Any]]:
    """Ids, labels, ok and pixels of an epoch's batches, from a state on; and the state after `stop` of them."""
    with Feed(source, 4, shuffle=Shuffle(2, 3), transform=CROP, seed=3, lanes=2, tuning=QUICK) as feed:
        if state is not None:
            feed.load_state_dict(state)
        found = []
        for _, batch in zip(range(stop), feed, strict=False):
            pixels = np.array(np.from_dlpack(batch))
            found.append((batch.ids.tolist(), batch.fields["label"].tolist(), batch.ok.tolist(), pixels))
        return found, feed.state_dict()


def same(a: list[Any], b: list[Any]) -> bool:
    """Whether two runs gave the same."""
    return len(a) == len(b) and all(x[:3] == y[:3] and np.array_equal(x[3], y[3]) for x, y in zip(a, b, strict=True))


def test_a_replay_from_shards_is_the_topic_and_its_states_go_on_there(topic: KafkaTopic, tmp_path: Path) -> None:
    """Ids, labels, ok and pixels of every batch are equal; a state of the topic's run goes on from shards, and back."""
    done = pack(topic, tmp_path / "set", shard_bytes=6000)
    assert done.tally.records == 30
    assert done.shards > PARTITIONS
    shards = opened(tmp_path / "set")
    whole, _ = dealt(topic)
    assert same(dealt(shards)[0], whole)
    for first, then in ((topic, shards), (shards, topic)):
        begun, state = dealt(first, stop=3)
        assert same([*begun, *dealt(then, state)[0]], whole)


def test_keys_are_offsets_and_all_that_a_record_has_is_kept(topic: KafkaTopic, tmp_path: Path) -> None:
    """Key, timestamp and each header as members, also one that hardly any record has."""
    pack(topic, tmp_path / "set", shard_bytes=10_000_000)
    shards = opened(tmp_path / "set")
    found = rows(shards, "key", "cls", "rare", "timestamp.txt", extents=Extents.one(2, 0, 10))
    assert [row["cls"] for row in found] == [b"%d" % n for n in range(2, 30, 3)]
    assert [row["rare"] for row in found] == [None] * 3 + [b"!"] + [None] * 6
    assert found[1]["key"] == b"key 5"
    assert int(found[0]["timestamp.txt"]) > 1_600_000_000_000
    assert shards.where(1, 4).endswith("[1]@4 (set-000001.tar#4)")
    whole = (tmp_path / "set" / "set-000001.tar").read_bytes()
    assert b"p00001-0000000000004.jpg" in whole


def test_a_set_of_a_topic_resumes_anywhere(topic: KafkaTopic, tmp_path: Path) -> None:
    """The contract of sources holds, where a record could not be packed too: its offset is absent."""
    pack(topic, tmp_path / "set", shard_bytes=6000, resize=8)
    source = opened(tmp_path / "set")
    found = rows(source, extents=Extents.one(1, 0, 10))
    assert [k for k, row in enumerate(found) if not row] == [2]
    assert [int(row["label"]) for row in found if row] == [1, 4, *range(10, 30, 3)]
    assert_resumes_anywhere(source, transform=CROP)
