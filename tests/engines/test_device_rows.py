"""Rows in the memory of a device: given for what they were made with, within a limit, without an error when it ends."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dali_feed.engines.device_cache import DeviceRows

CPU = torch.device("cpu")
ON = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def images(ids: NDArray[np.int64], device: torch.device = CPU) -> torch.Tensor:
    """Images that tell their records."""
    return torch.from_numpy(ids.astype(np.float32)).to(device).reshape(-1, 1, 1).repeat(1, 2, 3)


def no_keys(ids: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Of a recipe without parameters."""
    return np.zeros((len(ids), 0), np.uint8)


@ON
@pytest.mark.parametrize("limit", [0, 23, 24, 7 * 24 + 5, 10**6])
def test_rows_are_those_that_were_kept(device: str, limit: int) -> None:
    """The first that came, as many as there is room for, in any order and at any slots."""
    place, numbers = torch.device(device), np.random.default_rng(0)
    rows = DeviceRows(limit, place)
    rows.forget(40)
    for _ in range(6):
        ids = numbers.integers(0, 40, 12)
        rows.keep(ids, no_keys(ids), images(ids, place))
    assert len(rows) <= limit // 24
    assert rows.held <= limit
    ids = numbers.permutation(40)
    at = rows.find(ids, no_keys(ids))
    there = np.flatnonzero(at >= 0)
    assert len(there) == len(rows) == (rows.hits if limit else 0)
    if len(there):
        out = rows.new(40)
        rows.give(at[there], there, out)
        assert torch.equal(out[torch.from_numpy(there)].cpu(), images(ids[there]))


@given(st.lists(st.integers(0, 99), min_size=1, max_size=60), st.integers(1, 30), st.integers(1, 2**10))
def test_pieces_are_one(records: list[int], batch: int, limit: int) -> None:
    """Wherever the borders of the memory's pieces lie, a record's row is the record's."""
    rows = DeviceRows(limit * 24, CPU)
    rows.forget(100)
    rows.first = 48  # bytes: many pieces
    every = np.array(records)
    for k in range(0, len(every), batch):
        ids = every[k : k + batch]
        rows.keep(ids, no_keys(ids), images(ids))
    kept = list(dict.fromkeys(records))[:limit]
    assert len(rows) == len(kept)
    at = rows.find(np.array(kept), no_keys(np.array(kept)))
    out = rows.new(len(kept))
    rows.give(at, np.arange(len(kept)), out)
    assert torch.equal(out, images(np.array(kept)))


def test_other_parameters_are_another_image() -> None:
    """A row is not given for a record that was made with others, and the first stays."""
    rows = DeviceRows(10**6, CPU)
    rows.forget(8)
    ids, keys = np.arange(4), np.arange(8, dtype=np.uint8).reshape(4, 2)
    rows.keep(ids, keys, images(ids))
    other = keys.copy()
    other[2, 1] += 1
    rows.keep(ids, other, images(ids + 50))
    assert rows.find(ids, keys).tolist() == [0, 1, 2, 3]
    assert rows.find(ids, other).tolist() == [0, 1, -1, 3]
    assert (rows.hits, rows.misses) == (7, 1)


def test_an_image_of_another_shape_is_not_kept() -> None:
    """Rows are of one shape and one dtype."""
    rows = DeviceRows(10**6, CPU)
    rows.forget(8)
    ids = np.arange(2)
    rows.keep(ids, no_keys(ids), images(ids))
    for odd in (images(ids)[:, :1].contiguous(), images(ids).to(torch.float16)):
        rows.keep(ids + 2, no_keys(ids), odd)
    assert len(rows) == 2


def test_what_was_forgotten_is_gone() -> None:
    """With its memory; and images of another shape may come."""
    rows = DeviceRows(10**6, CPU)
    rows.forget(8)
    ids = np.arange(4)
    rows.keep(ids, no_keys(ids), images(ids))
    rows.forget(8)
    assert (len(rows), rows.held) == (0, 0)
    assert rows.find(ids, no_keys(ids)).tolist() == [-1] * 4
    rows.keep(ids, no_keys(ids), images(ids)[:, :1].contiguous())
    assert len(rows) == 4


@ON
def test_a_device_without_memory_keeps_nothing(device: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is one line in the log."""
    place = torch.device(device)
    rows = DeviceRows(1 << 60, place)
    rows.forget(8)
    ids = np.arange(1)
    huge = torch.zeros((1, 1), dtype=torch.uint8, device=place).expand(1, 1 << 52)
    for _ in range(3):
        rows.keep(ids, no_keys(ids), huge)
    assert (len(rows), rows.held) == (0, 0)
    assert [line for line in caplog.messages if "has no memory" in line] == caplog.messages
    assert len(caplog.messages) == 1


def test_memory_that_ends_later_leaves_what_is_there(caplog: pytest.LogCaptureFixture) -> None:
    """Of the limit a part: the rows that are kept are given on."""
    rows = DeviceRows(1 << 40, CPU)
    rows.forget(100)
    side = 32 << 20  # bytes: 16 of them are the first piece, and no worker has room for another one lying about
    ids = np.arange(20)
    many = torch.arange(20, dtype=torch.uint8).reshape(-1, 1).expand(-1, side)
    rows.keep(ids[:16], no_keys(ids[:16]), many[:16])
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + (32 << 20), before[1]))
    try:
        rows.keep(ids[16:], no_keys(ids[16:]), many[16:])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    rows.keep(ids[16:], no_keys(ids[16:]), many[16:])
    assert (len(rows), len(caplog.messages)) == (16, 1)
    assert "16 images in 537 of" in caplog.text
    at = rows.find(ids, no_keys(ids))
    assert at.tolist() == [*range(16), *[-1] * 4]
    out = rows.new(16)
    rows.give(at[:16], np.arange(16), out)
    assert torch.equal(out, many[:16])
