"""Insides that contract/topics/test_by_column.py needs not: they go with what they test."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit.broker.handle import Kafka, in_transactions, rows
from kit.two_ways import NAMES, record, shown

from dali_feed.errors import ClosedError
from dali_feed.external_sources import KafkaTopic
from dali_feed.external_sources.kafka import reader as reading
from dali_feed.external_sources.kafka.reader import ByColumn, ByMessage, KafkaReader
from dali_feed.external_sources.kafka.rows import OffsetRun
from dali_feed.native.kafka import Queue
from dali_feed.native.library import library
from dali_feed.records.extents import Extents
from dali_feed.records.slabs import SlabPool
from dali_feed.testing import Message

pytestmark = pytest.mark.skipif(library() is None, reason="the loops in C are not compiled")

PARTITIONS, RECORDS = 3, 420
LOOK_EACH = 16  # records between two looks at the clock, in kafka.c
CLAIM = 17  # every so many records with an empty value say where it lies
ASKS: list[tuple[str | None, tuple[str, ...]] | None] = [
    None,  # the value and its label
    (None, ("value",)),
    (None, ("value", "key", "timestamp", "a")),
    (None, ("key",)),
    (None, ("a", "größe", "headers.key", "headers.value")),
    (None, ("timestamp",)),
    (None, NAMES),
    (None, NAMES[:16]),
    (None, ("value", "a;b")),  # one of two names: by message alone
    ("value", ()),
    ("value", ("value", "key", "a", "timestamp")),
]


class Both:
    """A topic's readers, kept over many reads: by column and by message, for each thing that can be asked."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka, self.folder = kafka, folder
        self.pool = SlabPool(1 << 16)
        self._readers: dict[tuple[int, bool, bool], KafkaReader] = {}

    def reader(self, ask: int, *, claims: bool, fast: bool) -> KafkaReader:
        """The one of a way."""
        found = self._readers.get((ask, claims, fast))
        if found is None:
            asked = ASKS[ask]
            source: Any = KafkaTopic(self.kafka.topic, self.kafka.servers, claims=self.folder if claims else None)
            source = source if asked is None else source.giving(*asked)
            found = self._readers[ask, claims, fast] = source.reader(self.pool)
        return found

    def close(self) -> None:
        """All of them."""
        for reader in self._readers.values():
            reader.close()


def _by_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "by_column", lambda _: False)


def _publish(kafka: Kafka, folder: Path) -> None:
    """Records of every shape; on the real broker some of them in transactions, of which each third is aborted."""
    records = [record(n, n % PARTITIONS) for n in range(RECORDS)]
    for n in range(5, RECORDS, CLAIM):
        payload = b"claimed %d" % n * (1 + n % 3)
        digest = hashlib.sha256(payload).hexdigest()
        if n % 4:  # else it is not there
            (folder / digest).write_bytes(payload)
        size = b"%d" % (len(payload) + n % 2)
        told: Any = (("label", b"5"), ("claim.uri", digest.encode()), ("claim.size", size))
        records[n] = Message(b"", b"k", (*told, ("claim.sha256", digest.encode())), n % PARTITIONS)
    kafka.create(kafka.topic, PARTITIONS)
    kafka.publish(kafka.topic, records[: RECORDS // 2])
    if kafka.name == "real":
        in_transactions(kafka, kafka.topic, records[RECORDS // 2 :], 10, lambda k: k % 3 == 1)
    else:
        kafka.publish(kafka.topic, records[RECORDS // 2 :])


@pytest.fixture(scope="module")
def real_both(real_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """A topic on Apache Kafka, with its holes."""
    kafka, folder = Kafka("real", real_broker), tmp_path_factory.mktemp("claims")
    _publish(kafka, folder)
    both = Both(kafka, folder)
    yield both
    both.close()


def _same(both: Both, ask: int, runs: list[tuple[int, int, int]], *, claims: bool) -> None:
    """Read runs in both ways, and compare."""
    found = []
    for fast in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not fast:
                _by_message(patch)
            reader = both.reader(ask, claims=claims, fast=fast)
            block = reader.read(rows(*runs))
        found.append(shown(block))
        block.lease.release()
        wants_it = fast and ASKS[ask] not in ((None, NAMES), (None, ("value", "a;b")))
        assert isinstance(reader._way, ByColumn if wants_it else ByMessage)
    for what, mine in found[0].items():
        assert mine == found[1][what], what
    assert both.pool.leased == 0


_RUNS = st.lists(
    st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 139), st.integers(1, 60)).map(
        lambda run: (run[0], run[1], min(run[1] + run[2], 140))
    ),
    min_size=1,
    max_size=6,
)


@given(st.integers(0, len(ASKS) - 1), _RUNS, st.booleans())
@example(3, [(1, 0, 1)], False)  # an empty key, and nothing that needs memory
def test_both_ways_give_the_same_rows(
    real_both: Both,
    ask: int,
    runs: list[tuple[int, int, int]],
    claims: bool,
) -> None:
    """Whatever is asked for, and in whatever order: overlapping, backwards, over holes, across partitions."""
    _same(real_both, ask, runs, claims=claims)


@pytest.mark.parametrize("ask", range(len(ASKS)))
def test_whole_partitions_are_the_same(real_both: Both, ask: int) -> None:
    """Every record of the topic, for each thing that can be asked."""
    _same(real_both, ask, [(p, 0, 140) for p in range(PARTITIONS)], claims=True)


def test_what_was_fetched_ahead_of_a_partition_is_given_back(embedded: Kafka) -> None:
    """A reader that has gone on to another partition holds nothing of those before it: no megabytes of each of many."""
    partitions, each = 6, 150
    records = [record(n, n % partitions, large=False) for n in range(partitions * each)]
    embedded.publish(embedded.topic, records, partitions=partitions)
    reader = KafkaTopic(embedded.topic, embedded.servers).reader()
    for partition in [*range(partitions)] * 3:
        reader.read(Extents.one(partition, 20, 24)).lease.release()
    way = reader._way
    assert isinstance(way, ByColumn)
    length = way._own.librdkafka.rd_kafka_queue_length
    length.argtypes, length.restype = (ctypes.c_void_p,), ctypes.c_size_t
    left = []
    for partition in range(partitions - 1):
        queue = Queue(way._own, way._handle, embedded.topic, partition)
        left.append(length(queue._source.queue))
        queue.close()
    reader.close()
    assert left == [0] * (partitions - 1)


@pytest.mark.parametrize("size", [3_000, 20_000, 33_000, 70_000])
def test_a_lease_is_as_well_filled_as_by_message(embedded: Kafka, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Reads that fit into `Tuning(memory=)` by message fit into it by column: an eighth more at most, and a slab."""
    slab, count = 1 << 16, 40
    embedded.publish(embedded.topic, [(bytes(size + n), n) for n in range(count)], partitions=1)
    sizes = []
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr(reading, "by_column", lambda _: False)
        reader = KafkaTopic(embedded.topic, embedded.servers).reader(SlabPool(slab))
        sizes.append(reader.read(Extents.one(0, 0, count)).lease.size)
        reader.close()
    assert sizes[0] <= sizes[1] * 9 / 8 + slab


@pytest.mark.parametrize(("size", "at_once"), [(200_000, 1), (20_000, LOOK_EACH)])
def test_a_long_read_looks_around(real_kafka: Kafka, monkeypatch: pytest.MonkeyPatch, size: int, at_once: int) -> None:
    """C comes back in time, where a stop and the client's events are seen, and goes on from there."""
    monkeypatch.setattr(reading, "SLICE_SECONDS", 0.0)
    large = [b"%03d" % n + bytes(size + n) for n in range(80)]
    real_kafka.publish(real_kafka.topic, [(each, n) for n, each in enumerate(large)], partitions=1)
    received, come, stop = list[int](), ByColumn.come, threading.Event()

    def noted(way: ByColumn, run: OffsetRun, most: int) -> bool:
        before = run.received
        found = come(way, run, most)
        received.append(run.received - before)
        if stopping and run.received:
            stop.set()
        return found

    monkeypatch.setattr(ByColumn, "come", noted)
    stopping, pool = False, SlabPool(32 << 20)
    reader = KafkaTopic(real_kafka.topic, real_kafka.servers).reader(pool, stop)
    block = reader.read(Extents.one(0, 0, len(large)))
    assert [bytes(view or b"") for view in block.payloads] == large
    block.lease.release()
    assert max(received) <= at_once * len(large[-1])
    stopping = True
    with pytest.raises(ClosedError):
        reader.read(Extents.one(0, 0, len(large)))
    reader.close()
    assert pool.leased == 0
