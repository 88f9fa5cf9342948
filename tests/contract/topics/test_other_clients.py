"""Records that other clients of Kafka wrote are read, and ours by them: Java, kafka-python and kcat."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.broker.handle import Kafka
from kit.other_clients import (
    ABORTED,
    FIRST,
    RECORDS,
    Other,
    by_kcat,
    java,
    java_missing,
    kcat_missing,
    read_by_python,
    record,
    written_by_python,
)
from kit.produced import block_of, numbered, shard_of

from dali_feed.external_sources import KafkaTopic, Producer

PARTITIONS = 3
MEMBERS = ("headers.n", "key", "value", "timestamp", "headers.colour", "headers.nothing")


def _bytes(view: object) -> bytes | None:
    assert view is None or isinstance(view, bytes | memoryview)
    return None if view is None else bytes(view)


def _as_we_read(kafka: Kafka, topic: str) -> dict[int, tuple[object, ...]]:
    """The records of a topic by their numbers: key, value, timestamp and the headers' values."""
    found: dict[int, tuple[object, ...]] = {}
    source = KafkaTopic(topic, kafka.servers, label=None)
    for partition in range(PARTITIONS):
        block = block_of(source, partition, *MEMBERS)
        columns = [block.values[name] for name in MEMBERS]
        for there, n, key, value, timestamp, *headers in zip(block.usable(), *columns, strict=True):
            if not there:
                continue  # an offset without a record
            number = int(bytes(n))
            assert number not in found
            found[number] = (_bytes(key), _bytes(value), timestamp, *map(_bytes, headers))
        block.lease.release()
    return found


def _as_written(numbers: range | list[int]) -> dict[int, tuple[object, ...]]:
    want: dict[int, tuple[object, ...]] = {}
    for n in numbers:
        key, value, headers = record(n)
        want[n] = (key, value, FIRST + n, *(text for _, text in headers[1:]))
    return want


def _ours(kafka: Kafka, folder: Path) -> list[Other]:
    """A topic of ours, and what others should find there; partitions by its keys."""
    values = numbered(RECORDS)
    source = shard_of(folder, values)
    kafka.create(kafka.topic, PARTITIONS)
    Producer(kafka.topic, kafka.servers).run(source, key="txt", headers=("txt",))
    places = _places(kafka, kafka.topic)
    return [
        Other(places[text], text, value, (("txt", text), ("label", b"%d" % n)))
        for n, value in enumerate(values)
        for text in (b"text %d" % n,)
    ]


def _places(kafka: Kafka, topic: str) -> dict[bytes, int]:
    """The partition of each key."""
    found: dict[bytes, int] = {}
    source = KafkaTopic(topic, kafka.servers, label=None)
    for partition in range(PARTITIONS):
        for key in block_of(source, partition, "key").values["key"]:
            assert key is None or found.setdefault(bytes(key), partition) == partition
    return found


def _in_order(records: list[Other]) -> list[Other]:
    """As they are, but one partition after the other."""
    return sorted(records, key=lambda each: each.partition)


def test_java_and_we_read_each_others_records(real_kafka: Kafka, tmp_path: Path) -> None:
    """Keys, headers, tombstones, times; lz4 and zstd; aborted transactions are nowhere; a key has one partition."""
    if (reason := java_missing()) is not None:
        pytest.skip(reason)
    want = _ours(real_kafka, tmp_path)
    theirs = {codec: real_kafka.create(f"{real_kafka.topic}-{codec}", PARTITIONS) for codec in ("lz4", "zstd", "gzip")}
    orders = ["write", theirs["lz4"], "lz4", "write", theirs["zstd"], "zstd"]
    orders += ["write", theirs["gzip"], "gzip", "aborting", "read", real_kafka.topic]
    read = java(real_kafka.servers, *orders)
    assert _in_order(read) == _in_order(want)
    places = _places(real_kafka, real_kafka.topic)
    for codec in ("lz4", "zstd"):
        assert _places(real_kafka, theirs[codec]).items() <= places.items()
        assert _as_we_read(real_kafka, theirs[codec]) == _as_written(range(RECORDS))
    assert _as_we_read(real_kafka, theirs["gzip"]) == _as_written([n for n in range(RECORDS) if n not in ABORTED])


@pytest.mark.filterwarnings(
    "ignore:(read|open)_text is deprecated:DeprecationWarning"
)  # kafka-python, with Python 3.11
def test_kafka_python_and_we_read_each_others_records(real_kafka: Kafka, tmp_path: Path) -> None:
    """The same, with gzip."""
    want = _ours(real_kafka, tmp_path)
    assert _in_order(list(read_by_python(real_kafka.servers, real_kafka.topic))) == _in_order(want)
    theirs = real_kafka.create(f"{real_kafka.topic}-gzip", PARTITIONS)
    written_by_python(real_kafka.servers, theirs, "gzip")
    assert _as_we_read(real_kafka, theirs) == _as_written(range(RECORDS))


def test_kcat_and_we_read_each_others_records(real_kafka: Kafka, tmp_path: Path) -> None:
    """The same, with snappy; of what kcat writes all records have the same headers."""
    if (reason := kcat_missing()) is not None:
        pytest.skip(reason)
    want = _ours(real_kafka, tmp_path)
    read = by_kcat(real_kafka.servers, "-C", "-e", "-t", real_kafka.topic, "-f", "%p %K %S %h %s\n").splitlines()
    shown = [
        f"{each.partition} {len(each.key or b'')} {len(each.value or b'')} {_shown(each)} ".encode()
        + (each.value or b"")
        for each in want
    ]
    assert sorted(read) == sorted(shown)
    theirs = real_kafka.create(f"{real_kafka.topic}-snappy", PARTITIONS)
    lines = [b"%d|%s" % (n, record(n)[1] or b"") for n in range(RECORDS)]
    headers = ("-H", "colour=grün", "-H", "n=0")
    by_kcat(real_kafka.servers, "-P", "-t", theirs, "-z", "snappy", "-K", "|", "-Z", *headers, told=b"\n".join(lines))
    source = KafkaTopic(theirs, real_kafka.servers, label=None)
    found = {}
    for partition in range(PARTITIONS):
        values = block_of(source, partition, "key", "value", "headers.colour").values
        for key, value, colour in zip(*values.values(), strict=True):
            found[int(bytes(key))] = (_bytes(value), _bytes(colour))
    assert found == {n: (record(n)[1], "grün".encode()) for n in range(RECORDS)}


def _shown(each: Other) -> str:
    return ",".join(f"{name}={(text or b'').decode()}" for name, text in each.headers)
