"""What lies on users' disks and in their topics: bytes of before, which others read and later versions must."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from kit import api, golden_files
from kit.shelf import Shelf

from dali_feed.testing import Message, publish


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """A folder for all of them, and an embedded broker."""
    with Shelf(tmp_path_factory.mktemp("files")) as made:
        yield made


@pytest.mark.parametrize("name", golden_files.places())
def test_what_is_written_is_what_was_written(shelf: Shelf, name: str) -> None:
    """Manifests, indexes, shards, letters and records: the same bytes."""
    assert golden_files.bytes_of(name, shelf) == golden_files.frozen()[name]


def test_no_frozen_file_is_without_a_maker() -> None:
    """What is taken out of the table goes out of the file with it."""
    assert list(golden_files.frozen()) == golden_files.places()


def test_a_commit_says_of_how_many_partitions_its_group_began(
    needs_kafka: None, request: pytest.FixtureRequest
) -> None:
    """Offsets of the next records, and the note by which later workers know which partitions are new."""
    servers, topic = request.getfixturevalue("real_broker").servers, "frozen-commit"
    publish(servers, topic, [Message(b"%d" % n, partition=n % 2) for n in range(12)], partitions=2)
    with api.loader(
        api.shared_stream(topic, servers, "frozen"), 6, columns={"value": api.column("Bytes", "value")}
    ) as loader:
        batches = iter(loader)
        given = [next(batches), next(batches)]
        loader.commit()
    ids = [sample for _, info in given for sample in info.ids.tolist()]
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "frozen", "log_level": 0})
    found = consumer.committed([TopicPartition(topic, p) for p in range(2)], timeout=30)
    consumer.close()
    assert sorted(ids) == [p << 40 | n for p in range(2) for n in range(6)]
    assert [(each.offset, each.metadata) for each in found] == [(6, "partitions=2")] * 2
