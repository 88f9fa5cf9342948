"""A batch of a topic that no client can unpack costs its own records, whoever reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as Client
from kit.broker.handle import Kafka, Opened, OpenedStream, payloads
from kit.groups import group_of_tests, until
from kit.inside import Extents, unpack_ids
from kit.produced import values_in

from dali_feed import BadRecords, DataLoader
from dali_feed.columns import Bytes
from dali_feed.external_sources import DeadLetterFolder, KafkaStream, KafkaTopic, Producer

pytestmark = pytest.mark.slow

LARGE = 20 << 20  # of zeros: some kilobytes in their batch
CONFIG = {"receive.message.max.bytes": 9 << 20}  # what a client unpacks at most
COUNT = 40
SPOILT = range(9, 20)


def fill(kafka: Kafka, partitions: int = 1) -> str:
    """Records that say their offset, of which some come in one batch with one that is too large to be unpacked."""
    topic = kafka.create(kafka.topic, partitions)
    options = {"compression.type": "zstd", "message.max.bytes": 2 * LARGE, "batch.size": 2 * LARGE, "linger.ms": 60_000}
    client = Client({"bootstrap.servers": kafka.servers, "log_level": 0, **options})
    for n in range(COUNT):
        if n in (SPOILT.start, SPOILT.stop):
            client.flush(60)
        client.produce(topic, bytes(LARGE) if n == 13 else b"%d" % n, partition=0)
    client.flush(60)
    return topic


@pytest.mark.parametrize("holes", ["auto", "scan"])
def test_a_topic_is_read_but_for_the_records_of_that_batch(kafka: Kafka, holes: Any) -> None:
    """They are rows with a fault that says why, wherever a read begins, and a scan counts them."""
    source = KafkaTopic(fill(kafka), kafka.servers, config=CONFIG, holes=holes)
    assert len(source.snapshot()) == COUNT
    reader = Opened(source, "value")
    for start in (0, 12, SPOILT.stop - 1):
        block = reader.read(Extents.one(0, start, COUNT))
        assert sorted(block.faults) == [n - start for n in SPOILT if n >= start]
        assert all("must be one that can be unpacked" in fault.reason for fault in block.faults.values())
        assert payloads(block) == [None if n in SPOILT else b"%d" % n for n in range(start, COUNT)]
    reader.close()


def test_an_epoch_goes_on_and_keeps_them_as_dead_letters(embedded: Kafka, tmp_path: Path) -> None:
    """Slots do not shift, and each letter says that the record cannot be had."""
    source = KafkaTopic(fill(embedded), embedded.servers, config=CONFIG)
    letters = DeadLetterFolder(tmp_path)
    bad = BadRecords(limit=len(SPOILT), dead_letter=letters)
    with DataLoader(source, 8, columns={"value": Bytes("value")}, bad=bad, info=True, num_workers=1) as loader:
        batches = [(batch["value"], info.ok) for batch, info in loader]
        loader.state_dict()
    assert [len(values) for values, _ in batches] == [8] * 5
    assert sum(int((~ok).sum()) for _, ok in batches) == len(SPOILT)
    assert {letter.position for letter in letters.read()} == set(SPOILT)
    assert all(letter.gone for letter in letters.read())


@pytest.mark.parametrize("member", [False, True])
def test_a_stream_and_a_worker_go_on_behind_it(real_kafka: Kafka, member: bool) -> None:
    """Each record comes once, those of the batch as faults; the position is behind it."""
    group = group_of_tests(real_kafka.topic) if member else None
    stream = KafkaStream(fill(real_kafka), real_kafka.servers, start="earliest", label=None, config=CONFIG, group=group)
    reader = OpenedStream(stream)
    offsets: list[int] = []
    faults: list[int] = []
    position: dict[int, int] = {}

    def turn() -> None:
        got = reader.poll(16, float("inf"), 0.1)
        offsets.extend(unpack_ids(got.block.ids)[1].tolist())
        faults.extend(offsets[row - len(got.block.ids)] for row in got.block.faults)
        position.update(got.position)

    until(lambda: len(offsets) >= COUNT, turn)
    assert (offsets, faults, position) == (list(range(COUNT)), list(SPOILT), {0: COUNT})
    reader.close()


def test_a_copy_counts_them(embedded: Kafka) -> None:
    """What cannot be copied is a failure with its coordinates, and the others are there."""
    source, to = KafkaTopic(fill(embedded), embedded.servers, config=CONFIG), embedded.create(f"{embedded.topic}-to")
    done = Producer(to, embedded.servers).run(source, copy=True)
    assert (done.tally.records, done.tally.failed) == (COUNT - len(SPOILT), len(SPOILT))
    assert values_in(embedded.servers, to) == [[b"%d" % n for n in range(COUNT) if n not in SPOILT]]
