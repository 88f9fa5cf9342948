"""A record with a header whose name is not UTF-8, as some clients write them, is a bad record, whoever reads it."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from kit.broker.handle import Kafka, OpenedStream

from dali_feed import BadRecords, DataLoader
from dali_feed.columns import Bytes, JsonValue
from dali_feed.external_sources import DeadLetterFolder, KafkaStream, KafkaTopic, Producer
from dali_feed.external_sources.kafka.by_column import librdkafka

TOPIC, PARTITION, VALUE, FLAGS, HEADER, COPIED = 1, 3, 4, 7, 9, 2  # of rd_kafka_producev
NAMES = b"label", b"label\xff", b"label"
SAID = "the names of its headers must be"


def fill(kafka: Kafka) -> str:
    """A topic of three records, the second of which has such a name."""
    if (path := librdkafka()) is None:
        pytest.skip("confluent_kafka has no librdkafka beside it")
    topic, lib, wrong = kafka.create(kafka.topic, 1), ctypes.CDLL(path), ctypes.create_string_buffer(512)
    lib.rd_kafka_conf_new.restype = lib.rd_kafka_new.restype = ctypes.c_void_p
    conf = ctypes.c_void_p(lib.rd_kafka_conf_new())
    lib.rd_kafka_conf_set(conf, b"bootstrap.servers", kafka.servers.encode(), wrong, ctypes.c_size_t(512))
    client = ctypes.c_void_p(lib.rd_kafka_new(0, conf, wrong, ctypes.c_size_t(512)))
    for n, name in enumerate(NAMES):
        value = TOPIC, topic.encode(), PARTITION, 0, VALUE, b"v%d" % n, ctypes.c_size_t(2)
        assert not lib.rd_kafka_producev(client, *value, FLAGS, COPIED, HEADER, name, b"1", ctypes.c_ssize_t(1), 0)
    assert not lib.rd_kafka_flush(client, 60_000)
    lib.rd_kafka_destroy(client)
    return topic


def test_an_epoch_goes_on(embedded: Kafka, tmp_path: Path) -> None:
    """It is a dead letter by its coordinates; the snapshot and the members are those of the others."""
    source = KafkaTopic(fill(embedded), embedded.servers)
    assert [member.name for member in source.members()] == ["value", "timestamp", "label"]
    letters = DeadLetterFolder(tmp_path)
    columns = {"value": Bytes("value"), "headers": JsonValue("headers.*")}
    with DataLoader(source, 3, columns=columns, bad=BadRecords(limit=1, dead_letter=letters), info=True) as loader:
        ((batch, info),) = loader
        loader.state_dict()
    assert info.ok.tolist() == [True, False, True]
    assert {bytes(value) for value in batch["value"]} == {b"v0", b"v2"}
    (letter,) = letters.read()
    assert letter.where == f"{embedded.topic}[0]@1"
    assert SAID in letter.reason


def test_a_stream_goes_on(embedded: Kafka) -> None:
    """Its row has the fault, and the position is behind it."""
    stream = KafkaStream(fill(embedded), embedded.servers, start="earliest", label="label")
    reader, faults, rows, position = OpenedStream(stream), list[str](), 0, dict[int, int]()
    while position.get(0) != len(NAMES):
        got = reader.poll(1, float("inf"), 60)
        faults += (fault.reason for fault in got.block.faults.values())
        rows += len(got.block.ids)
        position |= got.position
    reader.close()
    assert rows == len(NAMES)
    assert [SAID in reason for reason in faults] == [True]


def test_a_copy_counts_it(embedded: Kafka) -> None:
    """The others are copied."""
    source = KafkaTopic(fill(embedded), embedded.servers)
    produced = Producer(embedded.create(f"{embedded.topic}-copy", 1), embedded.servers).run(source, copy=True)
    assert (produced.tally.records, produced.tally.failed) == (2, 1)
    assert [SAID in reason for reason in produced.tally.failures] == [True]
