"""Rows copied by one call of C: the bytes they are, nothing beside them, and nothing of what lies in no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.native import rows as native
from dali_feed.native.library import library

MEMORIES = [memoryview(np.random.default_rng(k).bytes(size)) for k, size in enumerate((60, 5000, 0, 300))]
GUARD = 64

pytestmark = pytest.mark.skipif(library() is None, reason="the loops in C are not compiled")


def guarded(rows: int, width: int) -> tuple[Any, Callable[[], None]]:
    """An output between bytes that must stay as they are, and what looks whether they did."""
    whole = np.full(rows * width + 2 * GUARD, 0xA5, np.uint8)

    def check() -> None:
        assert (whole[:GUARD] == 0xA5).all()
        assert (whole[len(whole) - GUARD :] == 0xA5).all()

    return whole[GUARD : len(whole) - GUARD].reshape(rows, width), check


@given(st.data(), st.sampled_from([0, 1, 7, 16, 60, 300, 4096, 4999]))
def test_rows_come_side_by_side(data: st.DataObject, width: int) -> None:
    """From any of many memories, one over the other too, none at all, of no bytes."""
    large = [k for k, memory in enumerate(MEMORIES) if len(memory) >= width]
    of = np.array(data.draw(st.lists(st.sampled_from(large), max_size=30)), np.int64)
    at = np.array([data.draw(st.integers(0, len(MEMORIES[k]) - width)) for k in of], np.int64)
    out, check = guarded(len(of), width)
    assert native.together(native.Memories.of(MEMORIES), of, at, out)
    check()
    wanted = [bytes(MEMORIES[k][a : a + width]) for k, a in zip(of.tolist(), at.tolist(), strict=True)]
    assert [row.tobytes() for row in out] == wanted


@given(st.data(), st.integers(0, 70))
def test_rows_are_padded(data: st.DataObject, width: int) -> None:
    """With zeros, also those that have none; what is longer than the row is cut."""
    of = np.array(data.draw(st.lists(st.sampled_from([-1, 0, 1, 3]), max_size=30)), np.int64)
    at = np.array([0 if k < 0 else data.draw(st.integers(0, len(MEMORIES[k]))) for k in of], np.int64)
    size = [0 if k < 0 else data.draw(st.integers(0, len(MEMORIES[k]) - int(a))) for k, a in zip(of, at, strict=True)]
    out, check = guarded(len(of), width)
    assert native.padded(native.Memories.of(MEMORIES), of, at, np.array(size, np.int64), out)
    check()
    for row, k, a, n in zip(out, of.tolist(), at.tolist(), size, strict=True):
        assert row.tobytes() == (b"" if k < 0 else bytes(MEMORIES[k][a : a + n]))[:width].ljust(width, b"\0")


WRONG = [(-1, 0), (4, 0), (0, -1), (0, 53), (2, 0), (0, 2**62), (0, 2**63 - 1), (0, -(2**63)), (2**62, 0)]


@pytest.mark.parametrize("way", ["C", "Python"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_row_that_lies_in_no_memory_is_refused(way: str, wrong: tuple[int, int], monkeypatch: Any) -> None:
    """Wherever it stands among good ones, and whatever its numbers are, nothing has been copied."""
    if way == "Python":
        monkeypatch.setattr(native, "_calls", lambda: None)
    memories, (out, check) = native.Memories.of(MEMORIES), guarded(3, 8)
    of, at = np.array([0, wrong[0], 1], np.int64), np.array([0, wrong[1], 1], np.int64)
    with pytest.raises(ValueError, match=r"must lie in .*for row 1"):
        native.together(memories, of, at, out)
    if wrong[0] != -1:
        with pytest.raises(ValueError, match="must lie in"):
            native.padded(memories, of, at, np.full(3, 8, np.int64), out)
    check()
    assert (out == 0xA5).all()


def test_an_output_that_does_not_hold_them_is_refused() -> None:
    """Its rows are as many, of bytes, without gaps, and can be written: C would write to it all the same."""
    rows, known, out = np.zeros(3, np.int64), native.Memories.of(MEMORIES), np.zeros((3, 8), np.uint8)
    for odd in (out[:2], out.astype(np.int64), np.zeros((3, 16), np.uint8)[:, ::2]):
        with pytest.raises(ValueError, match="out must be contiguous uint8"):
            native.together(known, rows, rows, odd)  # type: ignore[arg-type]
    out.setflags(write=False)
    with pytest.raises(ValueError, match="can be written"):
        native.padded(known, rows, rows, rows, out)


def test_numbers_of_any_kind_of_array_are_taken() -> None:
    """Every second one of an array, and of 32 bits."""
    of, at = np.array([0, 9, 1, 9], np.int64)[::2], np.array([3, 4], np.int32)
    out, _ = guarded(2, 5)
    assert native.together(native.Memories.of(MEMORIES), of, at, out)  # type: ignore[arg-type]
    assert [row.tobytes() for row in out] == [bytes(MEMORIES[0][3:8]), bytes(MEMORIES[1][4:9])]


def test_memory_stays_while_it_is_known() -> None:
    """Though the view that it was known by has been released, what an address tells of is not freed."""
    data = bytearray(10)
    view = memoryview(data)
    known = native.Memories.of([view])
    view.release()
    with pytest.raises(BufferError):
        data.extend(b"more")
    del known
    data.extend(b"more")
