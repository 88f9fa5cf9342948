"""Memory that C fills is taken ahead of the records: it makes no read fail, goes back, and is filled once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from kit.broker.handle import Kafka, payloads

from dali_feed.errors import ClosedError
from dali_feed.external_sources import KafkaTopic
from dali_feed.external_sources.kafka import reader as reading
from dali_feed.external_sources.kafka.cluster import Witness
from dali_feed.external_sources.kafka.reader import ByColumn, KafkaReader
from dali_feed.external_sources.kafka.rows import CellsWanted, Filled, OffsetRun
from dali_feed.native.kafka import EMPTY, RunInC
from dali_feed.native.library import library
from dali_feed.records.extents import Extents
from dali_feed.records.slabs import SlabPool
from dali_feed.testing import Message

pytestmark = pytest.mark.skipif(library() is None, reason="the loops in C are not compiled")

SLAB = 1 << 16
FIRST, ALL = 50, 300  # records of the first read, and of both
MOST = 4_500_000  # bytes that the embedded broker keeps
GOOD, BAD = (("label", b"7"),), (("label", b"-7"),)  # what C takes, and what it leaves to Python


KafkaParts = tuple[str | None, tuple[str, ...]] | None


def _plain(size: int, label: Any = GOOD) -> Message:
    return Message(bytes(size), None, label)


# Records, the first ones of which say little of the others, and what is asked of them.
SHAPES: dict[str, tuple[Callable[[int], Message], KafkaParts]] = {
    "keys beside large values": (lambda n: Message(bytes(10_000), b"%04d" % n, GOOD), (None, ("key",))),
    "times beside large values": (lambda _: _plain(10_000), (None, ("timestamp",))),
    "large, then small": (lambda n: _plain(30_000 if n < FIRST else 300), None),
    "small, then large": (lambda n: _plain(300 if n < 3 * FIRST else 25_000), None),
    "values, then tombstones": (lambda n: _plain(30_000) if n < FIRST else Message(None, None, GOOD), None),
    "for C, then for Python": (lambda n: _plain(3_000, GOOD if n < FIRST else BAD), None),
    "for C and for Python in turn": (lambda n: _plain(3_000, (GOOD, BAD)[n % 2]), None),
    "tiny beside more than a slab": (lambda n: _plain(70_000 if n % 6 == 5 else 5), None),
    "half a slab, or a byte more": (lambda n: _plain(SLAB // 2 + n % 2 if n % 3 else 9), None),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_read_that_fits_by_message_fits_by_column(
    embedded: Kafka, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """Whatever the read before was like: a lease takes two slabs more at most, while it is filled too."""
    make, asked = SHAPES[shape]
    records, left = list[Message](), MOST
    while len(records) < ALL and (left := left - len((record := make(len(records))).value or b"")) > 0:
        records.append(record)
    embedded.publish(embedded.topic, records, partitions=1)
    source: Any = KafkaTopic(embedded.topic, embedded.servers)
    source = source if asked is None else source.giving(*asked)
    took = list[int]()
    for fast in (False, True):
        pool = SlabPool(SLAB, most=max(took) + 2 * SLAB if took else None)
        with monkeypatch.context() as patch:
            if not fast:
                patch.setattr(reading, "by_column", lambda _: False)
            reader = source.reader(pool)
            for start, stop in ((0, FIRST), (FIRST, len(records)), (0, len(records))):
                block = reader.read(Extents.one(0, start, stop))
                if asked is None:
                    assert payloads(block) == [each.value or b"" for each in records[start:stop]]
                size = block.lease.size
                if fast:
                    assert size <= took.pop(0) + 2 * SLAB
                else:
                    took.append(size)
                block.lease.release()
            reader.close()
        assert pool.leased == 0


@pytest.mark.parametrize("most", [900, 30_000, 70_000])
def test_what_is_taken_anew_takes_no_more_memory(embedded: Kafka, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Records that came in doubt of which topic it is, again and again: into the memory that they had."""
    values = [b"%04d" % n + bytes(most * (n % 7) // 7) for n in range(min(600, 2 * MOST // most))]
    embedded.publish(embedded.topic, [(each, n) for n, each in enumerate(values)], partitions=1)
    made, make, left = list[Filled](), Filled.__init__, [0]

    def noted(filled: Filled, *told: Any) -> None:
        make(filled, *told)
        made[:] = [filled]

    def doubts(_: Witness, __: str) -> bool:
        doubted = left[0] > 0 and bool(made and made[0].taken.any())
        left[0] -= doubted
        return doubted

    monkeypatch.setattr(Filled, "__init__", noted)
    monkeypatch.setattr(Witness, "doubts", doubts)
    pool, sizes = SlabPool(SLAB), list[int]()
    for times in (0, 5):
        reader = KafkaTopic(embedded.topic, embedded.servers).reader(pool)
        for _ in range(2):  # of the second one it is known how much it takes
            left[0] = times
            block = reader.read(Extents.one(0, 0, len(values)))
            assert payloads(block) == values
            sizes.append(block.lease.size)
            block.lease.release()
            assert left == [0]
        reader.close()
    assert max(sizes[2:]) <= max(sizes[:2]) * 5 / 4 + SLAB  # other records may come into a memory than before


def test_records_with_memory_of_their_own_are_no_reason_not_to_look_around(
    embedded: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C comes back for the memory of each; where the time is over, a stop and the client's events are seen then."""
    monkeypatch.setattr(reading, "SLICE_SECONDS", 0.0)
    large = [b"%03d" % n + bytes(SLAB + n) for n in range(60)]
    embedded.publish(embedded.topic, [(each, n) for n, each in enumerate(large)], partitions=1)
    received, come = list[int](), ByColumn.come

    def noted(way: ByColumn, run: OffsetRun, most: int) -> bool:
        before = run.received
        found = come(way, run, most)
        received.append(run.received - before)
        return found

    monkeypatch.setattr(ByColumn, "come", noted)
    reader = KafkaTopic(embedded.topic, embedded.servers).reader(SlabPool(SLAB))
    assert payloads(reader.read(Extents.one(0, 0, len(large)))) == large
    reader.close()
    assert max(received) <= 2 * len(large[-1])


def test_a_reader_that_another_thread_closes_ends_its_read(embedded: Kafka) -> None:
    """With ClosedError, at whatever place of the read it is, and nothing is used after it was given back."""
    values = [b"%06d" % n * 20 for n in range(20_000)]
    embedded.publish(embedded.topic, [(each, n) for n, each in enumerate(values)], partitions=1)
    said = list[BaseException]()
    for turn in range(30):
        reader, begun = KafkaTopic(embedded.topic, embedded.servers).reader(), threading.Event()

        def work(reader: KafkaReader = reader, begun: threading.Event = begun) -> None:
            try:
                while True:
                    reader.read(Extents.one(0, 0, len(values))).lease.release()
                    begun.set()
            except BaseException as error:  # noqa: BLE001  the test looks at it
                said.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        for _ in range(turn * 60_000):  # to another place of a read in each turn
            pass
        reader.close()
        thread.join()
    assert {type(error) for error in said} == {ClosedError}
    assert len(said) == 30


def test_a_queue_that_was_closed_gives_nothing(embedded: Kafka) -> None:
    """As where a signal's handler closes the reader in the middle of a read: no crash, and no record."""
    embedded.publish(embedded.topic, [(b"x", 1)] * 9, partitions=1)
    reader = KafkaTopic(embedded.topic, embedded.servers).reader()
    reader.read(Extents.one(0, 0, 4))
    way = reader._way
    assert isinstance(way, ByColumn)
    queue = way._queue
    assert queue is not None
    reader.close()
    told = RunInC(want=4, stop=9)
    assert queue.take(told, Filled(CellsWanted(value=True), 9, SlabPool().lease()).told, 0) == EMPTY
    assert (told.want, queue.waits, queue.offset) == (4, False, None)
