"""Insides of caches, in memory and on a disk, that the contract of both needs not: they go with what they test."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.cached_feeds import feed, scripted
from kit.images import labelled
from kit.properties import documents
from kit.shelf import Shelf

from dali_feed import Cache
from dali_feed.columns import Column, Image
from dali_feed.columns.column import Faults
from dali_feed.columns.request import RequestReader
from dali_feed.errors import ClosedError
from dali_feed.external_sources import FileList
from dali_feed.feed.disk_rows import DiskRows, decoded_row, encoded_row, key_of
from dali_feed.records.source import Block, Member
from dali_feed.testing.scripted import ScriptedSource

CACHES = {
    "bytes": Cache("1MB"),
    "few bytes": Cache(20_000),
    "pixels": Cache("1MB", pixels=True),
    "few pixels": Cache(50_000, pixels=True),
}


def test_another_snapshot_is_another_cache() -> None:
    """What was kept of a source as it was is not given of the source as it is."""
    source = scripted()
    with feed(source, CACHES["bytes"]) as made:
        for _ in made:
            pass
        cache = made._machine.cache
        assert cache is not None
        snapshot = source.snapshot()
        assert made._machine.pool is not None
        cache.begin(snapshot, made._machine.pool)
        assert cache.stats().records
        cache.begin(replace(snapshot, fingerprint="another"), made._machine.pool)
        assert not cache.stats().records


def test_what_cannot_be_copied_is_not_kept() -> None:
    """A value of a type that nobody knows is read every time."""

    @dataclass(frozen=True)
    class AsItIs(Column):
        member: str

        def read(self, values: Any, faults: Faults) -> Any:
            return values

    class Odd(ScriptedSource):
        def members(self) -> tuple[Member, ...]:
            return *super().members(), Member("odd", 1.0, 0)

        def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Any:
            return RequestReader(super().reader([name for name in members if name != "odd"], stop), odd)

    def odd(block: Block) -> Block:
        block.values["odd"] = [object() for _ in block.ids]
        return block

    columns = {"image": Image("value"), "odd": AsItIs("odd")}
    with feed(Odd(labelled(8)), CACHES["bytes"], columns=columns, transform=None) as made:
        for _ in range(2):
            for batch in made:
                assert len(batch.fields["odd"]) == 8
        assert made.stats().cache.records == 0  # type: ignore[union-attr]


def test_a_payload_that_is_read_again_ends_with_the_pass() -> None:
    """A source that hangs while a dead letter's record is read anew does not hold up close()."""
    source, free = scripted(), threading.Event()
    with feed(source, CACHES["pixels"]) as made:
        for _ in made:
            pass
        partition: list[Any] = source._items[1]
        cache = made._machine.cache
        assert cache is not None
        at = next(k for k, item in enumerate(partition) if item.label is not None)
        partition[at] = partition[at]._replace(stall=free)
        ended = []

        def read() -> None:
            with pytest.raises(ClosedError):
                cache.payload((1 << 40) | at, None)
            ended.append(True)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
    thread.join(20)
    assert ended


FORM = '[["label", null]]'


def taken(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def kept(rows: DiskRows, samples: range, body: bytes) -> DiskRows:
    """The rows of a key, with more of them, written."""
    for sample in samples:
        rows.keep(sample, FORM, (memoryview(body), sample))
    while rows._writer is not None:
        rows._writer.join()
    rows.look()
    return rows


def held(rows: DiskRows, samples: range, body: bytes) -> list[int]:
    """The records that are there, each equal to what was kept."""
    found = zip(samples, rows.find(samples, FORM), strict=True)
    there = {sample: row for sample, row in found if row is not None}
    assert all((bytes(row[0]), row[1]) == (body, sample) for sample, row in there.items())
    return list(there)


def test_the_limit_holds_and_old_sources_make_room(tmp_path: Path) -> None:
    """What no process uses goes, what was used longest ago first; what one uses stays, and nothing more is kept."""
    body, limit = bytes(1 << 20), 64 << 20
    made = {}
    for n, key in enumerate("abc"):
        made[key] = kept(DiskRows(tmp_path, limit, key), range(6), body)
        os.utime(tmp_path / f"rows-{key}", (n, n))
        assert taken(tmp_path) <= limit
    assert [each.records for each in made.values()] == [6, 6, 6]
    made["b"].close()
    made["c"].close()
    os.utime(tmp_path / "rows-b", (0, 0))
    more = kept(DiskRows(tmp_path, limit, "d"), range(60), body)
    assert sorted(path.name for path in tmp_path.glob("rows-*")) == ["rows-a", "rows-d"]
    assert taken(tmp_path) <= limit + (8 << 20)
    assert 30 < more.records == len(held(more, range(60), body)) < 60
    assert held(made["a"], range(6), body) == [*range(6)]


def test_what_is_wanted_by_another_form_is_not_read(tmp_path: Path) -> None:
    """Rows whose fields are of another kind are none, and none of them is kept beside those that are there."""
    one, two = (DiskRows(tmp_path, 1 << 30, "a") for _ in range(2))
    kept(one, range(4), b"x")
    two.keep(7, '[["label", ["<i8", []]]]', (None, np.int64(3)))
    kept(two, range(0), b"")
    assert two.find(range(8), '[["label", ["<i8", []]]]') == [None] * 8
    assert held(two, range(8), b"x") == [0, 1, 2, 3]


def test_several_threads_and_connections(tmp_path: Path) -> None:
    """Rows that wait for the disk, are on it, or come from another process's file are found by all threads alike."""
    one, two = (DiskRows(tmp_path, 1 << 30, "a") for _ in range(2))
    wrong = []

    def run(rows: DiskRows, first: int) -> None:
        for sample in range(first, 200, 2):
            rows.keep(sample, FORM, (memoryview(b"%d" % sample * 900), sample))
            (row,) = rows.find([sample], FORM)
            if row is None or bytes(row[0]) != b"%d" % sample * 900:
                wrong.append(sample)

    threads = [threading.Thread(target=run, args=(rows, k)) for k in range(2) for rows in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.close()
    two.close()
    assert not wrong
    last = DiskRows(tmp_path, 1 << 30, "a")
    assert last.records == 200 == sum(row is not None for row in last.find(range(200), FORM))
    last.close()


def test_a_process_that_stands_still_in_a_transaction_holds_nothing_up(tmp_path: Path) -> None:
    """Rows are read, and none are kept before the next pass."""
    rows = kept(DiskRows(tmp_path, 1 << 30, "a"), range(9), b"x")
    other = DiskRows(tmp_path, 1 << 30, "a")
    with other._connection() as file:
        file.execute("BEGIN IMMEDIATE")
        rows.keep(9, FORM, (memoryview(b"x"), 9))
        while not rows.full:
            assert held(rows, range(9), b"x") == [*range(9)]
            if (writer := rows._writer) is not None:  # it tries for a second
                writer.join(0.1)
        file.execute("ROLLBACK")
    rows.look()
    assert held(kept(rows, range(20), b"x"), range(30), b"x") == [*range(20)]
    rows.close()
    other.close()


@pytest.mark.slow
def test_a_full_disk_only_stops_keeping(tmp_path: Path) -> None:
    """Where no byte more can be written, one warning; the rows that are there are read."""
    rows = kept(DiskRows(tmp_path, 1 << 30, "a"), range(9), bytes(2000))
    with rows._connection() as file:
        (pages,) = file.execute("PRAGMA page_count").fetchone()
        file.execute(f"PRAGMA max_page_count = {pages}")  # of this connection, which is the next to write
    for sample in range(9, 400):
        rows.keep(sample, FORM, (memoryview(bytes(2000)), sample))
    while rows._writer is not None:
        rows._writer.join()
    assert rows.full
    assert held(rows, range(9), bytes(2000)) == [*range(9)]
    rows.close()


VIEWS: Any = st.binary().map(memoryview)
NUMBERS: Any = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary()
)
VALUES: Any = documents(NUMBERS | VIEWS, st.text() | st.integers(), longest=10, leaves=12, tuples=True)


def same(a: Any, b: Any) -> bool:
    """Equal, of one type all through, NaN too."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray | np.generic):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    return bool(a == b) or repr(a) == repr(b)


@given(payload=st.none() | VIEWS, values=st.lists(VALUES), cut=st.integers(1, 40))
def test_a_row_comes_back_as_it_was(payload: memoryview | None, values: list[Any], cut: int) -> None:
    """Of any values, and with their types; of a part of its bytes, or of more than them, there is no row."""
    values += [np.arange(6, dtype=">i2").reshape(2, 3), np.float32(1.5), np.array("ab"), np.zeros((0, 2)), "\ud800"]
    row = (payload, *values)
    body = encoded_row(row)
    assert same(decoded_row(bytearray(body)), row)
    for wrong in (body[:-cut], body + b"N", b"", bytes(8), body.replace(b"<f4", b"|O8")):
        assert decoded_row(bytearray(wrong)) is None


@pytest.mark.parametrize("odd", [np.array([object()]), np.datetime64("2026-01-01"), object(), {1, 2}])
def test_values_without_a_form_on_disks_are_not_kept(odd: Any) -> None:
    """The row is read again in each run instead: nothing is pickled."""
    with pytest.raises(TypeError, match="cannot be kept"):
        encoded_row((None, odd))


def test_equal_sources_have_one_name(tmp_path: Path) -> None:
    """Whatever objects are one and however sets are ordered; what is signed anew is the same; what differs is not."""
    text = str(b"ab", "ascii")  # equal, and not the same object

    def name(*made: object) -> str:
        return key_of(FileList(["a"]), (), "f", made)

    assert name("ab", "ab") == name("ab", text)
    assert name({"b", "a", text}) == name({text, "a", "b"})
    assert name({"a"}) != name({"b"}) != name(("b",))
    assert name("s3://b/x?X-Amz-Signature=1") == name("s3://b/x?X-Amz-Signature=2") != name("s3://b/y")


@pytest.mark.parametrize(
    "kind", ["tar", "files", "parquet", "arrow files", "arrays", "tfrecords", "mds", "recordio", "concat"]
)
def test_files_that_are_written_again_are_other_records(tmp_path: Path, kind: str) -> None:
    """Even if they have the same sizes, and what a fingerprint looks at is the same."""
    with Shelf(tmp_path) as shelf:
        source = shelf.source(kind)

        def name() -> str:
            """As in another process, which has read nothing."""
            return key_of(pickle.loads(pickle.dumps(source)), (), "fingerprint", ())

        before = name()
        assert before == name()
        for path in tmp_path.rglob("*"):
            if path.is_file() and path.suffix != ".dfidx":
                os.utime(path, ns=(1, 1))
        assert name() != before
