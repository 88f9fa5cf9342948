"""Pieces, a sequence of views that is arrays: whatever is done with it, it is as the list of those views; Filling."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.native import library as native
from dali_feed.records import pieces as filling
from dali_feed.records.pieces import Filling, Pieces
from dali_feed.records.slabs import SlabPool

MEMORIES = [memoryview(bytearray(range(k, k + 60))) for k in (0, 60, 120)]
ROW = st.tuples(st.integers(-1, 2), st.integers(0, 40), st.integers(0, 20))


def both_ways(test: Callable[..., None]) -> Callable[..., None]:
    """A test whose rows are copied by the library, where there is one, and then without it: each example by both."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        test(*args, **named)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "_calls", lambda: None)
            test(*args, **named)

    return run


def made(rows: list[tuple[int, int, int]]) -> Pieces:
    """Rows as (which memory, from, how many bytes)."""
    of, at, size = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    return Pieces(MEMORIES, of, at, size)


def listed(rows: list[tuple[int, int, int]]) -> list[bytes | None]:
    """The same rows, taken out one by one."""
    return [None if of < 0 else bytes(MEMORIES[of][at : at + size]) for of, at, size in rows]


def told(pieces: Any) -> list[bytes | None]:
    """What a reader sees of pieces."""
    return [None if view is None else bytes(view) for view in pieces]


@given(
    rows=st.lists(ROW, max_size=12),
    more=st.lists(ROW, min_size=1, max_size=12),
    picked=st.lists(st.integers(0, 2**16), max_size=5),
    place=st.integers(0, 2**16),
)
@both_ways
def test_pieces_are_the_list_of_their_views(
    rows: list[tuple[int, int, int]], more: list[tuple[int, int, int]], picked: list[int], place: int
) -> None:
    """Looked at, cut, chosen from, joined and written over, they hold what a list would."""
    pieces, views = made(rows), listed(rows)
    assert told(pieces) == views
    assert told(pieces[k] for k in range(len(pieces))) == views
    assert told(pieces[1:4]) == views[1:4]
    chosen = np.array([k % len(rows) for k in picked] if rows else [], np.int64)
    assert told(pieces[chosen]) == [views[k] for k in chosen]
    assert pieces.missing.tolist() == [view is None for view in views]
    assert told(Pieces.joined([pieces, made(more), pieces])) == [*views, *listed(more), *views]

    written, wanted = made(more).copy(), listed(more)
    slot = place % len(more)
    written[slot], wanted[slot] = memoryview(b"another"), b"another"
    written[0:1], wanted[0:1] = made(more)[-1:], listed(more)[-1:]
    written[len(more) - 1], wanted[len(more) - 1] = None, None
    assert told(written) == wanted
    assert told(made(more)) == listed(more)


@given(st.lists(ROW, max_size=12), st.integers(-12, 12), st.integers(0, 12))
@both_ways
def test_rows_that_follow_each_other_are_chosen_as_any(
    rows: list[tuple[int, int, int]], first: int, count: int
) -> None:
    """By their numbers, counted from either end; to write over them leaves those that they were chosen from."""
    numbers = np.arange(first, first + count)
    if len(numbers) and not -len(rows) <= first <= first + count - 1 < len(rows):
        with pytest.raises(IndexError):
            told(made(rows)[numbers])
        return
    pieces, wanted = made(rows), [listed(rows)[k] for k in numbers]
    chosen = pieces[numbers]
    assert told(chosen) == wanted
    for k in range(count):
        chosen[k] = memoryview(b"another")
    assert told(pieces) == listed(rows)


@given(st.lists(st.tuples(ROW, st.integers(1, 40)), max_size=6))
@both_ways
def test_views_of_neighbours_are_those_of_each(runs: list[tuple[tuple[int, int, int], int]]) -> None:
    """However long the runs of rows in one memory are, and where rows have none between them."""
    rows = [row for row, times in runs for _ in range(times)]
    assert told(made(rows).views()) == listed(rows)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 20)), max_size=12),
    st.booleans(),
    st.booleans(),
)
@both_ways
def test_bytes_are_those_of_the_views(rows: list[tuple[int, int, int]], large: bool, even: bool) -> None:
    """Of small rows, which are copied together, of one size or several, and of large ones. No collector sees them."""
    if even and rows:
        rows = [(of, at, rows[0][2]) for of, at, _ in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "_SMALL", 0 if large else 4096)
        found = made(rows).as_bytes()
    assert found == listed(rows)
    assert {type(each) for each in found} <= {bytes}
    assert not any(map(gc.is_tracked, found))


@both_ways
def test_views_are_of_the_memory_itself() -> None:
    """Nothing is copied before a batch is made."""
    view = made([(1, 5, 4)])[np.array([0, 0])][1]
    assert view is not None
    assert np.shares_memory(np.frombuffer(view, np.uint8), np.frombuffer(MEMORIES[1], np.uint8))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 56)), max_size=40), st.integers(0, 4), st.booleans())
@both_ways
def test_bytes_come_together_wherever_rows_lie(rows: list[tuple[int, int]], size: int, given_room: bool) -> None:
    """At one distance from each other, backwards, anywhere or twice, in memory that is given or in its own."""
    pieces = made([(of, at, size) for of, at in rows])
    room = np.full(len(rows) * size, 255, np.uint8) if given_room else None
    found = pieces.together(size, room)
    assert found.shape == (len(rows), size)
    assert [row.tobytes() for row in found] == told(pieces)
    assert room is None or room.tobytes() == found.tobytes()


@both_ways
def test_short_texts_are_padded() -> None:
    """Rows of several sizes, and none, from several memories; nothing is read beyond one."""
    rows = [(0, 57, 3), (-1, 0, 0), (2, 0, 4), (1, 60, 0)]
    found = made(rows).padded(4)
    assert [row.tobytes() for row in found] == [(text or b"").ljust(4, b"\0") for text in listed(rows)]


@pytest.mark.parametrize("wrong", [(-1, 0, 0), (0, 53, 8), (1, -1, 8)])
@both_ways
def test_a_row_that_is_missing_or_leaves_its_memory_does_not_come_together(wrong: tuple[int, int, int]) -> None:
    """An error says which; no other bytes stand in its place."""
    with pytest.raises(ValueError, match="must lie in .* for row 1"):
        made([(0, 0, 8), wrong, (2, 0, 8)]).together(8)


@both_ways
def test_other_memories_are_looked_up() -> None:
    """After one of a piece's rows has been given bytes that lie elsewhere, they are what comes together."""
    pieces = made([(0, 0, 8), (1, 0, 8)])
    pieces.together(8)
    cut = pieces[:]
    pieces[1] = memoryview(b"eight by")
    assert pieces.together(8)[1].tobytes() == b"eight by"
    assert cut[0:1].together(8).tobytes() == bytes(MEMORIES[0][:8])


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 52)), max_size=4), min_size=1, max_size=4))
@both_ways
def test_joined_rows_come_together(parts: list[list[tuple[int, int]]]) -> None:
    """Of parts that share a list of memories or have one each, looked up before or not."""
    pieces = [made([(of, at, 8) for of, at in rows]) for rows in parts]
    pieces[0].together(8)
    others = [Pieces(list(MEMORIES), each.of, each.at, each.size) for each in pieces]
    joined = Pieces.joined([*pieces, *others, *pieces])
    assert [row.tobytes() for row in joined.together(8)] == told(joined)
    assert told(joined) == 3 * [view for each in pieces for view in told(each)]


TEXT = (
    st.binary(max_size=3) | st.integers(0, 10**18 - 1).map(lambda n: b"%d" % n) | st.sampled_from([b"007", b"9" * 19])
)


@given(st.lists(st.none() | TEXT, max_size=8) | st.lists(st.integers(0, 10**18 - 1).map(lambda n: b"%d" % n)))
@both_ways
def test_decimal_digits_are_numbers(texts: list[bytes | None]) -> None:
    """Of every row, or there is none: 1 to 18 digits, and nothing else, not a sign nor a space."""
    pieces = Pieces.none(len(texts))
    for row, text in enumerate(texts):
        pieces[row] = None if text is None else memoryview(b"1" + text + b"1")[1:-1]
    found = pieces.decimals()
    good = all(text is not None and text.isdigit() and len(text) <= 18 for text in texts)
    assert (None if found is None else found.tolist()) == ([int(text or b"") for text in texts] if good else None)


COPIED = st.one_of(st.none(), st.binary(max_size=300), st.binary(max_size=20).map(bytearray))


@given(st.permutations(range(12)), st.lists(COPIED, min_size=12, max_size=12), st.integers(1, 400))
@both_ways
def test_rows_are_what_was_copied_in_whatever_order(
    order: list[int], rows: list[bytes | bytearray | None], at_once: int
) -> None:
    """Copied (bytes here), kept where they lie in the lease (bytearrays) or absent, in memories of any size."""
    lease = SlabPool(256).lease()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "AT_ONCE", at_once)
        made = Filling(len(rows), lease)
        for row in order:
            data = rows[row]
            if isinstance(data, bytes):
                made.copy(row, data)
            else:
                view = None
                if data is not None:
                    view = lease.room(len(data))
                    view[:] = data
                made.keep(row, view)
        found = made.pieces()
    assert [None if view is None else bytes(view) for view in found] == [r if r is None else bytes(r) for r in rows]


@both_ways
def test_no_row_is_looked_at_by_the_collector() -> None:
    """A thousand rows leave it a few objects more."""
    lease = SlabPool(1 << 20).lease()
    gc.collect()
    before = len(gc.get_objects())
    made = Filling(1000, lease)
    for row in range(1000):
        made.copy(row, b"%04d" % row)
    found = made.pieces()
    assert len(gc.get_objects()) - before < 50
    assert bytes(found[999] or b"") == b"0999"


@both_ways
def test_rows_of_lent_memory_that_lie_side_by_side_are_not_copied() -> None:
    """Nor is what is cut of them; all else is: rows in another order, of several memories, what nobody lent or told."""
    whole = bytearray(range(60))
    at, size = np.arange(0, 60, 6), np.full(10, 6)
    lent = Pieces([memoryview(whole)], np.zeros(10, np.int64), at, size, lent=True, even=6)
    cut = lent[2:5].as_they_lie(6)
    assert cut is not None
    cut[0, 0] = 255
    assert whole[12] == 255
    assert cut.tobytes() == bytes(whole[12:30])
    others = Pieces.joined([lent, Pieces([memoryview(whole)], np.zeros(1, np.int64), at[:1], size[:1], lent=True)])
    for pieces in (lent[np.array([0, 2])], lent[::-1], lent[:0], others, made([(0, 0, 6), (0, 6, 6)]), lent[:1].copy()):
        assert pieces.as_they_lie(6) is None or bytes(pieces.as_they_lie(6)) == bytes(whole[:6])  # type: ignore[arg-type]
    mended = lent.copy()
    mended[3] = memoryview(b"others")
    assert mended.as_they_lie(6) is None
    assert lent.as_they_lie(5) is None
    assert Pieces(lent.memories, lent.of, at, size, lent=True).as_they_lie(6) is None
