"""Large records without an image: whole batches are read side by side, and are those that windows give."""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.inside import Feed
from kit.resumes import assert_resumes_in_turn

from dali_feed import BadRecords, DataLoader, Shuffle, Tuning
from dali_feed.columns import Array, Bytes, Column, Number
from dali_feed.errors import DataLostError, SourceChangedError
from dali_feed.external_sources import ShardSet
from dali_feed.feed import direct
from dali_feed.native import library as native
from dali_feed.packing.sinks import write_shard
from dali_feed.records.source import Block, Extents, Lease, Reader

pytestmark = pytest.mark.slow

SIZE, RECORDS = 5000, 450
COLUMNS: dict[str, Column] = {
    "x": Array("bin", "uint8", (SIZE,)),
    "raw": Bytes("odd"),
    "n": Number("cls"),
}


class Windows(ShardSet):
    """The same shards, read by windows."""

    def dense(self, members: Sequence[str]) -> bool:
        """Not side by side."""
        del members
        return False


@functools.cache
def record(k: int) -> dict[str, bytes]:
    """Bytes of one size, of several, and a number."""
    rng = np.random.default_rng(k)
    return {"bin": rng.bytes(SIZE), "odd": rng.bytes(k % 7 * 300), "cls": b"%d" % k}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three shards of unequal lengths."""
    folder = tmp_path_factory.mktemp("good")
    edges = (0, 70, 290, RECORDS)
    for k, (a, b) in enumerate(itertools.pairwise(edges)):
        write_shard(folder / f"{k}.tar", map(record, range(a, b)), first=a)
    return [folder / f"{k}.tar" for k in range(3)]


def with_other(folder: Path, others: Mapping[int, dict[str, bytes]]) -> Path:
    """A shard in which some records are others."""
    write_shard(folder / "a.tar", (others.get(k, record(k)) for k in range(RECORDS)))
    return folder / "a.tar"


Batch = tuple[list[int], list[bool], bytes, list[bytes], list[int]]


def told(batch: Any) -> Batch:
    """All of a batch."""
    fields = batch.fields
    raw = [bytes(view) for view in fields["raw"]]
    return batch.ids.tolist(), batch.ok.tolist(), fields["x"].tobytes(), raw, fields["n"].tolist()


def epochs(source: Any, count: int = 2, **how: Any) -> list[Batch]:
    """All batches of so many epochs."""
    with Feed(source, columns=COLUMNS, **how) as feed:
        return [told(batch) for _ in range(count) for batch in feed]


@pytest.fixture(params=["in C", "in Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether rows are read by the library, where there is one."""
    if request.param == "in Python":
        monkeypatch.setattr(native, "fill", lambda *_: None)
    return str(request.param)


HOWS: list[dict[str, Any]] = [
    {"batch_size": 64},
    {"batch_size": 64, "shuffle": True},
    {"batch_size": 8, "shuffle": Shuffle(window=30), "lanes": 4, "seed": 3, "drop_last": True},
    {"batch_size": 4, "shuffle": Shuffle(window=9), "lanes": 4, "rank": 1, "world_size": 2},
    {"batch_size": 200, "lanes": 2},
    {"batch_size": 2000, "shuffle": True},
    {"batch_size": 16, "sampler": [5, 5, 449, 0, *range(200, 240), 5]},
]


@pytest.fixture(scope="module")
def by_windows(good: list[Path]) -> Callable[[int], list[Batch]]:
    """What windows give."""
    return functools.cache(lambda number: epochs(Windows(good, label=None), **HOWS[number]))


@pytest.mark.parametrize("number", range(len(HOWS)), ids=lambda number: str(HOWS[number]))
def test_batches_are_those_of_windows(good: list[Path], by_windows: Any, number: int, way: str) -> None:
    """In order, shuffled, by a sampler that gives a record again, of some lanes of several, whole windows or less.

    Each has both amounts of memory, one in C and the other in Python, in turn.
    """
    how, wanted = HOWS[number], by_windows(number)
    tuning = Tuning() if (number + (way == "in C")) % 2 else Tuning(memory=64 << 20)
    assert epochs(ShardSet(good, label=None), tuning=tuning, **how) == wanted


def test_batches_are_slices_of_what_was_read(good: list[Path]) -> None:
    """So nothing was copied: in memory one begins where the one before it ends."""
    with DataLoader(ShardSet(good, label=None), 64, columns=COLUMNS, device="cpu") as loader:
        batches = [batch["x"] for batch in loader]
    ends = [batch.data_ptr() + batch.numel() for batch in batches]
    follow = [batch.data_ptr() == end for batch, end in zip(batches[1:], ends, strict=False)]
    assert sum(follow) >= len(follow) // 2


def test_a_batch_that_is_kept_keeps_its_bytes(good: list[Path]) -> None:
    """Arrays and views, of epochs ago too, whatever is written into others; a view cannot be written to."""
    with DataLoader(ShardSet(good, label=None), 64, shuffle=True, columns=COLUMNS, device="cpu") as loader:
        kept = []
        for epoch in range(3):
            for k, batch in enumerate(loader):
                if (epoch + k) % 2:
                    kept.append(batch)
                else:
                    batch["x"].zero_()
                assert all(view.readonly for view in batch["raw"])
    assert len(kept) > 10
    for batch in kept:
        for x, raw, n in zip(batch["x"], batch["raw"], batch["n"].tolist(), strict=True):
            assert (x.numpy().tobytes(), bytes(raw)) == (record(n)["bin"], record(n)["odd"])


class Counted(ShardSet):
    """The same shards, whose reads are counted when they begin."""

    begun = threading.Semaphore(0)

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        """A reader that counts."""
        reader, begun = super().reader(members, stop), self.begun
        read = reader.read

        def counted(extents: Extents, lease: Lease) -> Block:
            begun.release()
            return read(extents, lease)

        reader.read = counted  # type: ignore[method-assign]
        return reader


def test_readers_do_not_rest_while_a_chunk_is_handed_over(tmp_path: Path) -> None:
    """With its first batch, not with its last, the chunk behind those that are read is asked for."""
    write_shard(tmp_path / "a.tar", ({"bin": bytes([k % 256]) * 100_000} for k in range(800)))
    columns = {"x": Array("bin", "uint8", (100_000,))}
    with Feed(Counted(tmp_path / "a.tar", label=None), 4, columns=columns, tuning=Tuning(prefetch=1)) as feed:
        batches = iter(feed)
        for _ in range(41):  # the first of the second chunk: 160 records fit in 16 MiB
            next(batches)
        assert all(Counted.begun.acquire(timeout=20) for _ in range(4))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_run_resumes_anywhere(good: list[Path], shuffle: bool) -> None:
    """In the middle of what was read together too, at another world size."""
    assert_resumes_in_turn(ShardSet(good, label=None), batch_size=16, shuffle=shuffle, columns=COLUMNS)


BAD: list[dict[int, dict[str, bytes]]] = [
    {222: record(222) | {"bin": b"short"}},
    {k: {"odd": b"", "cls": b"1"} for k in (0, 1, 220, 221, 449)},
    {k: record(k) | {"cls": b"no number"} for k in range(40, 120)},
]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("others", BAD, ids=["one in the middle", "at both ends", "many in a row"])
@pytest.mark.parametrize(
    "how", [{"batch_size": 32}, {"batch_size": 32, "shuffle": Shuffle(window=60), "lanes": 4}], ids=str
)
def test_a_bad_record_is_replaced_as_in_a_window(tmp_path: Path, others: Any, how: dict[str, Any]) -> None:
    """In its slot, by the next good one of its window, and counted once; what follows is read as before."""
    path, found = with_other(tmp_path, others), list[tuple[list[Batch], int]]()
    for source in (ShardSet, Windows):
        with Feed(source(path, label=None), columns=COLUMNS, bad=BadRecords(limit=200), **how) as feed:
            found.append(([told(batch) for _ in range(2) for batch in feed], feed.stats().bad))
    assert found[0] == found[1]
    assert found[0][1] == 2 * len(others)


def test_a_shard_that_is_cut_off_while_it_is_read_is_told_with_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches before it are right; and no more is read ahead of the loop than a processor's cache holds."""
    monkeypatch.setattr(direct, "SLOW_SECONDS", math.inf)  # a machine that is busy is no slow disk
    same, columns = record(0)["bin"], {"x": COLUMNS["x"]}
    write_shard(tmp_path / "a.tar", ({"bin": same} for _ in range(12_000)))
    with Feed(ShardSet(tmp_path / "a.tar", label=None), 16, columns=columns) as feed:
        batches = iter(feed)
        next(batches)
        with (tmp_path / "a.tar").open("r+b") as file:
            file.truncate(60_000_000)
        right = (batch.fields["x"].tobytes() == same * 16 for batch in batches)
        with pytest.raises((DataLostError, SourceChangedError), match=r"a\.tar(#\d+)?: (the shard ends|a shard must)"):
            assert all(right)


def test_a_pass_may_end_anywhere(good: list[Path]) -> None:
    """Left in the middle, while reads are under way and chunks half used: memory goes back, and threads end."""
    for taken in (0, 1, 3, 9):
        feed = Feed(ShardSet(good, label=None), 16, shuffle=True, columns=COLUMNS)
        batches = iter(feed)
        for _ in range(taken):
            next(batches)
        feed.close()
        assert feed._slabs.leased == 0
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("dali_feed")]


@pytest.mark.parametrize("memory", [16 << 20, 24 << 20])
def test_memory_is_a_cap(tmp_path: Path, memory: int) -> None:
    """For large batches too, whose chunk is one of them."""
    write_shard(tmp_path / "a.tar", ({"bin": bytes([k]) * 400_000} for k in range(80)))
    columns = {"x": Array("bin", "uint8", (400_000,))}
    tuning = Tuning(memory=memory, prefetch=1)
    with Feed(
        ShardSet(tmp_path / "a.tar", label=None), 4, shuffle=Shuffle(window=8), columns=columns, tuning=tuning
    ) as feed:
        for _ in range(2):
            assert sum(len(batch) for batch in feed) == 80
        assert feed.stats().slab_peak <= memory
