"""Memory: slabs leased from a pool and given back whole; what is used again, never while anybody looks at it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.records.slabs import ALIGNED, LITTLE, SLAB_BYTES, Reused, SlabPool

SLAB = 4096


def span(view: memoryview) -> tuple[int, int]:
    """First address of a view, and the one after its last."""
    start = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return start, start + len(view)


@given(st.lists(st.lists(st.integers(0, 3 * SLAB), max_size=20), max_size=5))
def test_views_that_are_out_at_once_are_disjoint(leases: list[list[int]]) -> None:
    """No byte belongs to two views of any leases, whatever the sizes; each view has its size and can be written."""
    pool = SlabPool(SLAB)
    out = [pool.lease() for _ in leases]
    views = []
    for k in range(max(map(len, leases), default=0)):  # leases grow in turn
        for lease, sizes in zip(out, leases, strict=True):
            if k < len(sizes):
                views.append(lease.room(sizes[k]))
                assert len(views[-1]) == sizes[k]
                assert not views[-1].readonly
    spans = sorted(span(view) for view in views if len(view))
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert sum(map(len, views)) <= pool.leased
    for lease in out:
        lease.release()
    assert pool.leased == 0


@given(st.lists(st.one_of(st.integers(0, 3 * SLAB), st.none()), max_size=40))
def test_the_pool_counts_what_is_out_and_the_most_that_was(steps: list[int | None]) -> None:
    """`leased` returns to zero after every release, `peak` is the highest it ever was, both in bytes."""
    pool = SlabPool(SLAB)
    lease, highest = pool.lease(), 0
    for size in steps:
        if size is None:
            lease.release()
            assert pool.leased == 0
        else:
            lease.room(size)
            highest = max(highest, pool.leased)
    lease.release()
    lease.release()
    assert pool.leased == 0
    assert pool.peak == highest


def test_a_returned_slab_is_used_again_and_no_more_than_told_are_kept() -> None:
    """A new lease gets the pages of an old one; what is above `keep_bytes` goes back to the system."""
    pool = SlabPool(SLAB, keep_bytes=2 * SLAB)
    leases = [pool.lease() for _ in range(4)]
    first = {span(lease.room(SLAB // 2))[0] for lease in leases}
    for lease in leases:
        lease.release()
    again = [pool.lease() for _ in range(2)]
    assert {span(lease.room(SLAB // 2))[0] for lease in again} <= first
    assert len(pool._idle) == 0
    for lease in again:
        lease.release()
    assert len(pool._idle) == 2


@given(st.lists(st.tuples(st.integers(1, 2 * SLAB), st.booleans()), max_size=12))
def test_lent_memory_is_not_given_again_while_it_is_looked_at(blocks: list[tuple[int, bool]]) -> None:
    """Whatever the lease has been told; and it is the loader's no more once that is released."""
    pool, kept = SlabPool(SLAB), list[tuple[memoryview, int]]()
    for k, (size, keeps) in enumerate(blocks):
        lease = pool.lent()
        assert lease.dense
        view = lease.room(size)
        view[:] = bytes([k]) * size
        if keeps:
            kept.append((view[size // 2 :], k))
        del view
        lease.release()
        assert pool.leased == 0
    assert all(bytes(view) == bytes([k]) * len(view) for view, k in kept)


def test_lent_memory_comes_back_with_its_last_view() -> None:
    """The last that came is the next that goes, while it is in the processor's cache; nothing is asked of a lock."""
    pool = SlabPool(SLAB)
    lease = pool.lent()
    view = lease.room(100)
    where = span(view)[0]
    lease.release()
    with pool._lock:  # as a garbage collector may find it
        del view
    assert span(pool.lent().room(SLAB))[0] == where


def test_small_rooms_share_a_slab() -> None:
    """A lease takes no second slab before the first is full, also after a large room between."""
    pool = SlabPool(SLAB)
    lease = pool.lease()
    for size in (SLAB // 4, SLAB // 4, SLAB // 4, SLAB // 4):
        lease.room(size)
    assert pool.leased == SLAB
    lease.room(SLAB // 2 + 1)
    lease.room(SLAB // 4)
    assert pool.leased == 2 * SLAB


def mapped(start: int) -> dict[str, str]:
    """What the system says of the map that an address of this process lies in: its range's rights, and its flags."""
    flags: dict[str, str] = {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, told = line.partition(" ")
        if name.endswith(":"):
            flags[name] = told
        else:
            first, last = (int(each, 16) for each in name.split("-"))
            if flags.get("here"):
                break
            flags = {"here": told} if first <= start < last else {}
    return flags


huge_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no huge pages"
)


@huge_pages
def test_slabs_are_private_memory_of_huge_pages() -> None:
    """A new one is written into without a page fault for each 4 KiB, and a child's writes stay the child's."""
    lease = SlabPool().lease()
    start, _ = span(lease.room(1))
    flags = mapped(start)
    assert flags["here"].startswith("rw-p")
    assert "hg" in flags["VmFlags:"].split()
    lease.release()


@huge_pages
@pytest.mark.parametrize(
    ("expects", "rooms", "huge"),
    [
        (LITTLE, [100], [False]),  # to clear a page of 2 MB for it takes longer than to fill it
        (LITTLE + 1, [100], [True]),
        (100, [SLAB_BYTES // 2, SLAB_BYTES // 2, 100], [False, False, True]),  # they were more than was expected
        (100, [SLAB_BYTES, 2 * SLAB_BYTES], [False, True]),
    ],
)
def test_a_slab_for_a_few_bytes_is_of_small_pages(expects: int, rooms: list[int], huge: list[bool]) -> None:
    """And it is private memory as well; a read that outgrows what was expected goes on in huge pages."""
    lease = SlabPool().lease(expects)
    here = [mapped(span(lease.room(size))[0]) for size in rooms]
    assert [each["here"][:4] for each in here] == ["rw-p"] * len(rooms)
    assert ["hg" in each["VmFlags:"].split() for each in here] == huge
    lease.release()


def address(memory: Any) -> int:
    """Where it begins."""
    return int(memory.__array_interface__["data"][0])


@pytest.mark.parametrize(
    "look",
    [
        lambda _: None,
        lambda memory: memory[8:16].view(np.float32).reshape(1, 2),
        lambda memory: np.asarray(np.asarray(memory)[3:][1:]),
        lambda memory: torch.from_numpy(memory)[5:].numpy()[1:],
        lambda memory: memoryview(memory)[2:3],
        lambda memory: np.frombuffer(memory, np.uint8)[7:],
    ],
)
def test_memory_that_is_looked_at_is_not_given_again(look: Callable[[Any], Any]) -> None:
    """However a view was made and cut, it keeps the bytes until it is deleted itself; then they come again."""
    reused = Reused()
    memory = reused(SLAB)
    where, kept = address(memory), look(memory)
    del memory
    if kept is not None:
        assert address(reused(SLAB)) != where
    del kept
    assert address(reused(SLAB)) == where


@pytest.mark.parametrize("size", [1, 100, SLAB, 5 << 20])
def test_memory_begins_with_a_line(size: int) -> None:
    """Whatever its size, so that vectors and lines of a cache lie in it as they lie in memory."""
    reused = Reused()
    held = [reused(size) for _ in range(3)]
    assert [address(memory) % ALIGNED for memory in held] == [0, 0, 0]
