"""Records that C takes: rows, memory and errors are those of records that Python takes; the client is the user's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit.broker.handle import Kafka, Opened, in_transactions, payloads, rows, value
from kit.claimed import claimed
from kit.two_ways import NAMES, by_message, record, shown

from dali_feed.errors import ClosedError, ConfigError
from dali_feed.external_sources import KafkaTopic
from dali_feed.external_sources.kafka import by_column
from dali_feed.external_sources.kafka import reader as reading
from dali_feed.external_sources.kafka.by_column import ByColumn, Event, FilledByC, OffsetRun
from dali_feed.external_sources.kafka.reader import ByMessage
from dali_feed.external_sources.kafka.rows import Cells, KafkaParts
from dali_feed.native.kafka import EMPTY, Queue, RunInC
from dali_feed.native.library import library
from dali_feed.records.extents import Extents
from dali_feed.records.slabs import SlabPool
from dali_feed.testing import Message

pytestmark = pytest.mark.skipif(library() is None, reason="the loops in C are not compiled")

PARTITIONS, RECORDS = 3, 420
LOOK_EACH = 16  # records between two looks at the clock, in kafka.c
CLAIM = 17  # every so many records with an empty value say where it lies
SLAB = 1 << 16
FIRST, ALL = 50, 300  # records of the first read, and of both
MOST = 4_500_000  # bytes that the embedded broker keeps
LABEL = (("label", b"7"),)

ASKS: list[tuple[str, ...]] = [
    ("value", "label"),
    ("value",),
    ("value", "key", "timestamp", "a"),
    ("key",),
    ("a", "größe", "headers.key", "headers.value"),
    ("timestamp",),
    NAMES[:16],
    ("value", "a;b"),
    ("value", "key", "a", "timestamp"),
    NAMES,
    ("value", "headers.*", "headers[]"),  # what can only be had by message
]
BY_MESSAGE = {len(ASKS) - 1}


class Both:
    """A topic's readers, kept over many reads: by column and by message, for each thing that can be asked."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self._topics = [KafkaTopic(kafka.topic, kafka.servers, claims=claims) for claims in (None, folder)]
        self._readers: dict[tuple[int, bool, bool], Opened] = {}
        self._last = 0, False
        self.pool = SlabPool(SLAB)

    def same(self, ask: int, runs: list[tuple[int, int, int]], *, claims: bool) -> None:
        """Read runs in both ways, and compare."""
        if (ask, claims) != self._last:  # or each of forty asks fifty times a second for what comes behind its records
            for fast in (True, False):
                if (idle := self._readers.get((*self._last, fast))) is not None:
                    idle.own._consumer.unassign()
                    idle.own._forget()
            self._last = ask, claims
        found = []
        for fast in (True, False):
            way = ask, claims, fast
            if way not in self._readers:
                self._readers[way] = Opened(self._topics[claims], *ASKS[ask], pool=self.pool)
            with by_message(not fast):
                block = self._readers[way].read(rows(*runs))
            found.append(shown(block))
            block.lease.release()
            kind = ByColumn if fast and ask not in BY_MESSAGE else ByMessage
            assert isinstance(self._readers[way].own._way, kind)
        for what, mine in found[0].items():
            assert mine == found[1][what], what
        assert self.pool.leased == 0

    def close(self) -> None:
        """All of them."""
        for reader in self._readers.values():
            reader.close()


@pytest.fixture(scope="module")
def real_both(real_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Records of every shape on Apache Kafka, some of them in transactions, of which each third is aborted."""
    kafka, folder = Kafka("real", real_broker), tmp_path_factory.mktemp("claims")
    records = [record(n, n % PARTITIONS) for n in range(RECORDS)]
    for n in range(5, RECORDS, CLAIM):
        payload = b"claimed %d" % n * (1 + n % 3)
        other: Any = {"size": b"%d" % (len(payload) + n % 2)}
        told = claimed(folder, payload, **other) if n % 4 else claimed(folder, payload, "nowhere", **other)
        records[n] = Message(b"", b"k", told.headers, n % PARTITIONS)
    kafka.create(kafka.topic, PARTITIONS)
    kafka.publish(kafka.topic, records[: RECORDS // 2])
    in_transactions(kafka, kafka.topic, records[RECORDS // 2 :], 10, lambda k: k % 3 == 1)
    both = Both(kafka, folder)
    yield both
    both.close()


_RUNS = st.lists(
    st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 139), st.integers(1, 60)).map(
        lambda run: (run[0], run[1], min(run[1] + run[2], 140))
    ),
    min_size=1,
    max_size=6,
)


def _whole_partitions(test: Any) -> Any:
    """Every record of the topic, for each thing that can be asked."""
    for ask in range(len(ASKS)):
        test = example(ask, [(p, 0, 140) for p in range(PARTITIONS)], True)(test)
    return test


@given(st.integers(0, len(ASKS) - 1), _RUNS, st.booleans())
@example(3, [(1, 0, 1)], False)  # an empty key, and nothing that needs memory
@_whole_partitions
def test_both_ways_give_the_same_rows(
    real_both: Both, ask: int, runs: list[tuple[int, int, int]], claims: bool
) -> None:
    """Whatever is asked for, and in whatever order: overlapping, backwards, over holes, whole partitions."""
    real_both.same(ask, runs, claims=claims)


def _plain(size: int) -> Message:
    return Message(bytes(size), None, LABEL)


PAIR = ("value", "label")
# Records, the first ones of which say little of the others, and what is asked of them.
SHAPES: dict[str, tuple[Callable[[int], Message], tuple[str, ...]]] = {
    "keys beside large values": (lambda n: Message(bytes(10_000), b"%04d" % n, LABEL), ("key",)),
    "times beside large values": (lambda _: _plain(10_000), ("timestamp",)),
    "large, then small": (lambda n: _plain(30_000 if n < FIRST else 300), PAIR),
    "small, then large": (lambda n: _plain(300 if n < 3 * FIRST else 25_000), PAIR),
    "values, then tombstones": (lambda n: _plain(30_000) if n < FIRST else Message(None, None, LABEL), PAIR),
    "tiny beside more than a slab": (lambda n: _plain(70_000 if n % 6 == 5 else 5), PAIR),
    "half a slab, or a byte more": (lambda n: _plain(SLAB // 2 + n % 2 if n % 3 else 9), PAIR),
    "a little more each time": (lambda n: _plain(20_000 + n), PAIR),
    "more than a slab each": (lambda n: _plain(70_000 + n), PAIR),
    "of all sizes below a slab's eighth": (lambda n: _plain(n * 371 % (SLAB // 8)), PAIR),
}


def _lease_bytes(records: list[Message], asked: tuple[str, ...]) -> int:
    """What a lease takes where room is asked for each record by itself."""
    lease = SlabPool(SLAB).lease()
    for each in records:
        parts = {"value": each.value, "key": each.key, "label": b"7"}
        lease.room(sum(len(parts.get(name) or b"") for name in asked))
    return lease.size


@pytest.mark.parametrize("shape", SHAPES)
def test_both_ways_take_what_the_records_need(embedded: Kafka, shape: str) -> None:
    """Whatever the read before was like: a lease takes two slabs more at most, while it is filled too."""
    make, asked = SHAPES[shape]
    records, left = list[Message](), MOST
    while len(records) < ALL and (left := left - len((record := make(len(records))).value or b"")) > 0:
        records.append(record)
    embedded.publish(embedded.topic, records, partitions=1)
    source, runs = KafkaTopic(embedded.topic, embedded.servers), ((0, FIRST), (FIRST, len(records)), (0, len(records)))
    needed = [_lease_bytes(records[start:stop], asked) for start, stop in runs]
    for fast in (False, True):
        pool = SlabPool(SLAB, most=max(needed) + 2 * SLAB)
        with by_message(not fast):
            reader = Opened(source, *asked, pool=pool)
            for (start, stop), need in zip(runs, needed, strict=True):
                block = reader.read(Extents.one(0, start, stop))
                if "value" in asked:
                    assert payloads(block) == [each.value for each in records[start:stop]]
                assert block.lease.size <= need + 2 * SLAB
                block.lease.release()
            reader.close()
        assert pool.leased == 0


def test_what_was_fetched_ahead_of_a_partition_is_given_back(embedded: Kafka) -> None:
    """A reader that has gone on to another partition holds nothing of those before it: no megabytes of each of many."""
    partitions, each = 6, 150
    records = [record(n, n % partitions, large=False) for n in range(partitions * each)]
    embedded.publish(embedded.topic, records, partitions=partitions)
    reader = Opened(KafkaTopic(embedded.topic, embedded.servers))
    for partition in [*range(partitions)] * 3:
        reader.read(Extents.one(partition, 20, 24)).lease.release()
    way = reader.own._way
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


@pytest.mark.parametrize(("size", "at_once"), [(20_000, LOOK_EACH), (SLAB, 2)])
def test_a_long_read_looks_around(embedded: Kafka, monkeypatch: pytest.MonkeyPatch, size: int, at_once: int) -> None:
    """C comes back after a slice of time, for records with memory of their own too; a stop is seen then."""
    monkeypatch.setattr(by_column, "SLICE_SECONDS", 0.0)
    large = [b"%03d" % n + bytes(size + n) for n in range(min(80, MOST // size))]
    embedded.publish(embedded.topic, [(each, n) for n, each in enumerate(large)], partitions=1)
    received, fetch, stop = [0], ByColumn.fetch, threading.Event()

    def noted(way: ByColumn, run: OffsetRun, most: int) -> Event | None:
        found = fetch(way, run, most)
        received.append(run.received)
        if run.received >= len(large[0]) * len(large) // 2:
            stop.set()
        return found

    monkeypatch.setattr(ByColumn, "fetch", noted)
    reader = Opened(KafkaTopic(embedded.topic, embedded.servers), pool=SlabPool(SLAB), stop=stop)
    with pytest.raises(ClosedError):
        reader.read(Extents.one(0, 0, len(large)))
    reader.close()
    assert max(np.diff(received)) <= at_once * len(large[-1])
    assert reader.pool.leased == 0


def test_a_reader_that_another_thread_closes_ends_its_read(embedded: Kafka) -> None:
    """With ClosedError, at whatever place of the read it is, and nothing is used after it was given back."""
    values = [b"%06d" % n * 20 for n in range(5_000)]
    embedded.publish(embedded.topic, [(each, n) for n, each in enumerate(values)], partitions=1)
    said = list[BaseException]()
    for turn in range(30):
        reader, begun = Opened(KafkaTopic(embedded.topic, embedded.servers)), threading.Event()

        def work(reader: Opened = reader, begun: threading.Event = begun) -> None:
            try:
                while True:
                    reader.read(Extents.one(0, 0, len(values))).lease.release()
                    begun.set()
            except BaseException as error:  # noqa: BLE001  the test looks at it
                said.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        for _ in range(turn * 15_000):  # to another place of a read in each turn
            pass
        reader.close()
        thread.join()
    assert {type(error) for error in said} == {ClosedError}
    assert len(said) == 30


def test_a_queue_that_was_closed_gives_nothing(embedded: Kafka) -> None:
    """As where a signal's handler closes the reader in the middle of a read: no crash, and no record."""
    embedded.publish(embedded.topic, [(b"x", 1)] * 9, partitions=1)
    reader = Opened(KafkaTopic(embedded.topic, embedded.servers))
    reader.read(Extents.one(0, 0, 4))
    way = reader.own._way
    assert isinstance(way, ByColumn)
    queue = way._queue
    assert queue is not None
    reader.close()
    told = RunInC(want=4, stop=9)
    filled = FilledByC(Cells(KafkaParts(["value"]), 9, SlabPool().lease()))
    assert queue.take(told, filled.rows, 0) == EMPTY
    assert (told.want, queue.waits) == (4, False)


# Its client.

PLUGIN = """
int calls;
int conf_init(void *conf, void **opaque, char *said, unsigned long size) {
    (void)conf, (void)opaque, (void)said, (void)size;
    calls++;
    return 0;
}
"""


@pytest.fixture
def filled(embedded: Kafka) -> Kafka:
    """A topic of two partitions with some records."""
    embedded.publish(embedded.topic, [(value(n), n) for n in range(60)], partitions=2)
    return embedded


def _reader(kafka: Kafka, **config: Any) -> Opened:
    return Opened(KafkaTopic(kafka.topic, kafka.servers, config=config))


def _reads(reader: Opened, way: type[ByColumn | ByMessage] = ByColumn) -> None:
    want = payloads(reader.read(rows((0, 5, 20), (1, 0, 10))))
    assert want == payloads(reader.read(rows((0, 5, 20), (1, 0, 10))))
    assert None not in want
    assert isinstance(reader.own._way, way)


def _read_on(reader: Opened) -> None:
    while True:
        _reads(reader)


def test_plugins_of_the_users_are_loaded_too(filled: Kafka, tmp_path: Path) -> None:
    """`plugin.library.paths` of a source's config: its plugin is asked once for each client, and ours as well."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source, made = tmp_path / "theirs.c", tmp_path / "theirs.so"
    source.write_text(PLUGIN)
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    reader = _reader(filled, **{"plugin.library.paths": str(made)})
    _reads(reader)
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(made)), "calls").value >= 1
    reader.close()


def test_what_a_users_function_raises_ends_the_read_and_not_the_reader(filled: Kafka) -> None:
    """A `stats_cb` that raises: its error comes out of `read`; the next read is whole."""
    calls: list[str] = []

    def once(text: str) -> None:
        calls.append(text)
        if len(calls) == 1:
            msg = "theirs"
            raise LookupError(msg)

    reader = _reader(filled, stats_cb=once, **{"statistics.interval.ms": 5})
    with pytest.raises(LookupError, match="theirs"):
        _read_on(reader)
    _reads(reader)
    reader.close()


def test_a_client_whose_handle_is_not_known_is_read_by_message(filled: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library cannot be named as a plugin (`;` in its path) all is as without it."""
    monkeypatch.setattr(reading, "plugin", lambda _: "/a;b/_native.so")
    reader = _reader(filled)
    _reads(reader, ByMessage)
    reader.close()


@pytest.mark.parametrize("option", [{"fetch.min.bytes": -5}, {"no.such.option": 1}, {"ssl.ca.pem": "nonsense"}])
def test_a_client_that_cannot_be_made_is_not_mistaken_for_the_next(filled: Kafka, option: dict[str, Any]) -> None:
    """A wrong option is named; a reader that is made after it in the same thread has the handle of its own client."""
    secured = {"security.protocol": "ssl"} if "ssl.ca.pem" in option else {}
    with pytest.raises(ConfigError, match="must hold options of librdkafka"):
        _reader(filled, **option, **secured).read(Extents.one(0, 0, 1))
    first, second = _reader(filled), _reader(filled)
    for _ in range(2):
        _reads(first)
        _reads(second)
    handles: Any = first.own._way, second.own._way
    assert handles[0]._handle != handles[1]._handle
    first.close()
    _reads(second)
    second.close()


def test_a_partition_that_is_not_there_is_the_same_error(filled: Kafka) -> None:
    """By column and by message, word for word; and the reader reads on."""
    said = []
    for fast in (True, False):
        with by_message(not fast):
            reader = Opened(KafkaTopic(filled.topic, filled.servers, timeout=3))
            with pytest.raises(Exception) as caught:
                reader.read(Extents.one(7, 0, 5))
            said.append((type(caught.value), str(caught.value)))
            _reads(reader, ByColumn if fast else ByMessage)
            reader.close()
    assert said[0] == said[1]
