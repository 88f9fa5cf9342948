"""Insides that contract/feed/test_memory.py needs not: they go with what they test."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.images import jpeg, padded
from kit.inside import leased

from dali_feed.columns import Bytes
from dali_feed.errors import ConfigError
from dali_feed.external_sources import Table
from dali_feed.feed import Feed
from dali_feed.options import Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.testing import ScriptedSource

KIB, MIB = 1 << 10, 1 << 20


def misled(count: int, size: int, memory: int, told: int = 10, **options: Any) -> Feed:
    """A feed of records of `size` bytes whose source says that they have `told`."""
    payload = padded(jpeg(0), size)
    source = ScriptedSource([(payload, n) for n in range(count)], extent=16)
    feed = Feed(
        source, options.pop("batch", 8), tuning=Tuning(threads=1, readers=2, prefetch=6, memory=memory), **options
    )
    feed._epochs.planning._snapshot = dataclasses.replace(feed.snapshot, record_bytes=told)
    return feed


def epoch(feed: Feed) -> int:
    """Records of an epoch whose trainer is slower than the source: it waits for all that was asked for."""
    count = 0
    for batch in feed:
        count += len(batch)
        assert feed._machine.pool is not None
        with feed._machine.pool._idle:
            feed._machine.pool._idle.wait_for(lambda: not feed._machine.pool._unfinished, 10)  # type: ignore[union-attr]
    return count


@pytest.mark.parametrize("lanes", [1, 2])
def test_reads_ahead_keep_to_the_memory_by_what_was_read(lanes: int) -> None:
    """Records 128 times as large as the sample says: windows of 7 MiB pass through what holds two of them a lane."""
    options: dict[str, Any] = {"told": KIB, "shuffle": Shuffle(1, 56), "lanes": lanes}
    with misled(448, 128 * KIB, 16 * MIB * lanes, **options) as feed:
        for _ in range(2):
            assert epoch(feed) == 448
            assert feed.stats().slab_peak <= feed.tuning.memory_bytes
    assert leased(feed) == 0


def test_a_window_that_does_not_fit_is_an_error_with_its_size() -> None:
    """No order is changed to make room: the run ends, and says which records, their size and what would do."""
    with misled(96, 128 * KIB, 4 * MIB, 8 * KIB, shuffle=Shuffle(16, 3)) as feed:
        with pytest.raises(
            ConfigError,
            match=r"memory=4194304.* the window of 48 .*from scripted\[0\]@\d+, .* take \d+ bytes, .* 8192 bytes per",
        ):
            list(feed)
        assert leased(feed) == 0


def test_fewer_lanes_are_a_cure() -> None:
    """Where memory is too small for the windows of several lanes: nobody may have asked for so many."""
    options: dict[str, Any] = {"told": 128 * KIB, "shuffle": Shuffle(1, 56)}
    for lanes, said in (
        (2, r"narrower Shuffle\(window=...\), or lanes=1, as each lane"),
        (1, r"Shuffle\(window=...\)$"),
    ):
        with misled(448, 128 * KIB, 1 * MIB, lanes=lanes, **options) as feed, pytest.raises(ConfigError, match=said):
            iter(feed)


def test_a_read_that_does_not_fit_ends_before_it_is_whole() -> None:
    """One read of more than all the memory stops at the limit, and is named."""
    with misled(64, 128 * KIB, 1 * MIB, shuffle=Shuffle(64, 1)) as feed:
        with pytest.raises(ConfigError, match=r"memory=1048576.* each read") as caught:
            list(feed)
        assert any("Read: 64 records from scripted[0]@0" in note for note in caught.value.__notes__)
        assert feed.stats().slab_peak <= 2 * feed.tuning.memory_bytes  # of two readers
        assert leased(feed) == 0


@pytest.mark.parametrize("told", [10, 3 * MIB])
def test_records_larger_than_a_slab(told: int) -> None:
    """Records of 3 MiB and slabs of 2.5 MiB: the memory holds as many as it has room for, whatever the sample says."""
    with misled(48, 3 * MIB, 80 * MIB, told, shuffle=Shuffle(1, 2), batch=2) as feed:
        assert sum(len(batch) for batch in feed) == 48
        assert feed.stats().slab_peak <= 80 * MIB
    assert leased(feed) == 0


def test_what_readers_keep_from_read_to_read_is_of_the_memory(tmp_path: Path) -> None:
    """Two groups of a table each, which are half of it: no more is read ahead than the other half holds."""
    columns = {"x": [bytes([n % 256]) * 4000 for n in range(3000)]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=500)
    source, order = Table(tmp_path / "a.parquet", image=None), Shuffle(extent=50, window=20)
    tuning = Tuning(readers=2, memory=16 * MIB)
    with Feed(source, 10, shuffle=order, columns=[Bytes("x")], lanes=1, tuning=tuning) as feed:
        assert epoch(feed) == 3000
        assert 12 * MIB < feed.stats().slab_peak <= 16 * MIB
    assert leased(feed) == feed._machine.slabs.kept == 0
