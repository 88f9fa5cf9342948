"""Rows that C fills are the rows that are filled by message: the same bytes, types, faults and errors."""

from __future__ import annotations

import gc
import hashlib
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit import left_readers
from kit.broker.handle import Kafka, Opened, labels, made, payloads, read, value
from kit.inside import Extents, SlabPool, library
from kit.limits import LONG
from kit.two_ways import record

from dali_feed.errors import ConfigError, SourceNotFoundError
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import Message


@pytest.mark.parametrize("name", ["label", "no header \ud800", "nor\0this"])
def test_headers_of_any_name_can_be_asked_for(embedded: Kafka, name: str) -> None:
    """One that C cannot be told of is looked for by message, and not found."""
    embedded.publish(embedded.topic, [Message(b"x", None, (("label", b"1"),))], partitions=1)
    source = KafkaTopic(embedded.topic, embedded.servers, label=name)
    block = made(source, read(source, Extents.one(0, 0, 1)))
    assert any(fault.stage == "source" for fault in block.faults.values()) == (name != "label")


@pytest.mark.parametrize(("first", "then"), [(40_000, 900), (900, 40_000), (9_000, 70_000), (100, 100)])
def test_records_of_another_size_than_those_before(embedded: Kafka, first: int, then: int) -> None:
    """Memory for all of a read is taken at once, as large as records were; larger ones, and smaller ones, are whole."""
    sizes = [first + n for n in range(30)] + [then + n * (1 + n % 5) for n in range(60)]
    values = [b"%03d" % n + bytes([n]) * size for n, size in enumerate(sizes)]
    embedded.publish(embedded.topic, [(each, n) for n, each in enumerate(values)], partitions=1)
    pool = SlabPool(1 << 16)
    reader = Opened(KafkaTopic(embedded.topic, embedded.servers), pool=pool)
    for start, stop in ((0, 30), (30, 90), (0, 90), (85, 90)):
        block = reader.read(Extents.one(0, start, stop))
        assert payloads(block) == values[start:stop]
        block.lease.release()
    reader.close()
    assert pool.leased == 0


def test_a_read_that_is_too_large_leaves_the_reader_as_it_was(kafka: Kafka) -> None:
    """`Tuning(memory=)` ends a read in its middle, by an error; the next one is right, and no slab is missing."""
    kafka.publish(kafka.topic, [(value(n) * 40, n) for n in range(200)], partitions=1)
    pool = SlabPool(1 << 14, most=1 << 16)
    reader = Opened(KafkaTopic(kafka.topic, kafka.servers), pool=pool)
    for start in (0, 50, 7):
        with pytest.raises(ConfigError, match="must hold each read"):
            reader.read(Extents.one(0, 0, 200))
        block = reader.read(Extents.one(0, start, start + 4))
        assert labels(block) == list(range(start, start + 4))
        block.lease.release()
        assert pool.leased == 0
    reader.close()


def test_many_small_reads_leave_nothing_behind(embedded: Kafka) -> None:
    """After two thousand reads the process holds no more than after a few hundred, and all slabs are given back."""
    embedded.publish(embedded.topic, [record(n, n % 3, large=False) for n in range(600)], partitions=3)
    pool = SlabPool(1 << 16)
    reader = Opened(KafkaTopic(embedded.topic, embedded.servers), pool=pool)
    held = []
    for n in range(2_000):
        block = reader.read(Extents.one(n // 9 % 3, n % 190, n % 190 + 1))  # mostly the next record
        assert len(block.ids) == 1
        block.lease.release()
        if n in (300, 1_999):
            gc.collect()
            held.append(int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE)
    reader.close()
    assert pool.leased == 0
    assert held[1] - held[0] < 16 << 20


def test_what_taking_a_record_raises_leaves_the_reader_as_it_was(kafka: Kafka, tmp_path: Path) -> None:
    """The folder of claims is not mounted: an error in the middle of a read; mounted, the same reader reads all."""
    payload, folder = b"elsewhere" * 9, tmp_path / "claims"
    digest = hashlib.sha256(payload).hexdigest().encode()
    told: Any = (("claim.uri", digest), ("claim.size", b"%d" % len(payload)), ("claim.sha256", digest))
    records = [Message(b"here", None, (("label", b"%d" % n),), 0) for n in range(9)]
    records[4] = Message(b"", None, (("label", b"4"), *told), 0)
    kafka.publish(kafka.topic, records, partitions=1)
    reader = Opened(KafkaTopic(kafka.topic, kafka.servers, claims=folder))
    with pytest.raises(SourceNotFoundError, match="must be the folder of the payloads"):
        reader.read(Extents.one(0, 0, 9))
    folder.mkdir()
    (folder / digest.decode()).write_bytes(payload)
    for start in (0, 3):
        block = reader.read(Extents.one(0, start, 9))
        assert labels(block) == list(range(start, 9))
        assert payloads(block) == [payload if n == 4 else b"here" for n in range(start, 9)]
    reader.close()


WAYS = ["dropped", "open_at_the_end", "reading_at_the_end", "forked", "many_threads", "interrupted"]


@pytest.mark.skipif(library() is None, reason="the loops in C are not compiled")
@pytest.mark.parametrize("how", WAYS)
def test_a_reader_that_is_left_open_harms_nobody(embedded: Kafka, how: str) -> None:
    """Dropped, open as the interpreter ends, or reading then, forked, in threads, interrupted: no hang, no crash."""
    records = [
        Message(b"%06d" % n * 99, None, (("label", b"%d" % (n // 2)),), n % 2) for n in range(2 * left_readers.COUNT)
    ]
    embedded.publish("t", records, partitions=2)
    command = [sys.executable, left_readers.__file__, how, embedded.servers]
    done = subprocess.run(command, cwd=Path.cwd(), capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
