"""Rows and images written by C: the bytes of a plain copy and look-up, and not one outside their place or memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.native import library as native
from dali_feed.native.library import PixelWriter, library, steps_of

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


@given(st.data())
def test_rows_come_end_to_end(data: st.DataObject) -> None:
    """From any of many memories, one over the other too, none at all, of no bytes, of one size or of many."""
    of = np.array(data.draw(st.lists(st.sampled_from(range(len(MEMORIES))), max_size=30)), np.int64)
    widths = st.sampled_from([0, 1, 7, 16, 60, 300, 4096, 4999])
    size = np.array([min(data.draw(widths), len(MEMORIES[k])) for k in of], np.int64)
    at = np.array([data.draw(st.integers(0, len(MEMORIES[k]) - n)) for k, n in zip(of, size, strict=True)], np.int64)
    out, check = guarded(int(size.sum()), 1)
    assert native.together(native.Memories.of(MEMORIES), of, at, size, out.reshape(-1))
    check()
    rows = zip(of.tolist(), at.tolist(), size.tolist(), strict=True)
    assert out.tobytes() == b"".join(bytes(MEMORIES[k][a : a + n]) for k, a, n in rows)


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
        native.together(memories, of, at, np.full(3, 8, np.int64), out.reshape(-1))
    check()
    assert (out == 0xA5).all()


def test_an_output_that_does_not_hold_them_is_refused() -> None:
    """Its rows are as many, of bytes, without gaps, and can be written: C would write to it all the same."""
    rows, known, out = np.zeros(3, np.int64), native.Memories.of(MEMORIES), np.zeros(24, np.uint8)
    for flat in (np.zeros(23, np.uint8), np.zeros(24, np.int64), np.zeros(48, np.uint8)[::2]):
        with pytest.raises(ValueError, match="out must be contiguous uint8"):
            native.together(known, rows, rows, rows + 8, flat)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must lie in its memory"):
        native.together(known, rows, rows, rows - 8, np.zeros(0, np.uint8))
    out.setflags(write=False)
    with pytest.raises(ValueError, match="can be written"):
        native.together(known, rows, rows, rows + 8, out)


def test_numbers_of_any_kind_of_array_are_taken() -> None:
    """Every second one of an array, and of 32 bits."""
    of, at = np.array([0, 9, 1, 9], np.int64)[::2], np.array([3, 4], np.int32)
    out, _ = guarded(2, 5)
    size = np.full(2, 5, np.int16)
    assert native.together(native.Memories.of(MEMORIES), of, at, size, out.reshape(-1))  # type: ignore[arg-type]
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


CONTENT = np.random.default_rng(9).bytes(3 << 20)


@pytest.fixture(scope="module")
def files() -> Iterator[list[int]]:
    """Two open files, in the page cache: all of `CONTENT`, and its first 5,000 bytes."""
    with tempfile.TemporaryFile() as whole, tempfile.TemporaryFile() as part:
        whole.write(CONTENT)
        part.write(CONTENT[:5000])
        for each in (whole, part):
            each.flush()
        yield [whole.fileno(), part.fileno()]


ROWS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 6000), st.sampled_from([0, 1, 7, 500, 5000, 2 << 20])), max_size=40
)


@given(ROWS, st.booleans(), st.sampled_from([0, 3]))
def test_rows_of_files_come_side_by_side(
    files: list[int], rows: list[tuple[int, int, int]], ordered: bool, apart: int
) -> None:
    """Neighbours or not, over each other, large ones: all that their files have, and no byte beside."""
    rows = sorted(rows) if ordered else rows
    of, at, size = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    to = np.cumsum(size + apart) - size
    out, check = guarded(1, int((size + apart).sum()) + apart)
    out[:] = 0x5A
    order = np.random.default_rng(len(rows)).permutation(len(rows)) if apart else None
    filled = native.fill(np.array([files[0], -1, files[1]], np.int32), of * 2, at, size, to, out[0], order)
    assert filled is not None
    came = np.ones(len(rows), bool)
    came[filled.late] = False
    held = np.array([len(CONTENT), 5000])[of]
    assert came[at + size <= held].all()
    assert not came[(at + size > held) & (size > 0)].any()
    assert filled.reads <= len(rows)
    assert filled.bytes == size[came].sum()
    wanted = bytearray(b"\x5a" * out.size)
    for (_, a, n), begin, whole in zip(rows, to.tolist(), came.tolist(), strict=True):
        wanted[begin : begin + n] = CONTENT[a : a + n] if whole else out[0][begin : begin + n].tobytes()
    assert out.tobytes() == bytes(wanted)
    check()


def test_neighbours_in_a_file_are_one_read(files: list[int]) -> None:
    """With up to 4 KB between them, which are read over; as many as a read may have pieces."""
    for gap, most in ((0, 1), (512, 3), (4096, 3), (4097, 1000)):
        at = np.arange(1000) * (50 + gap) % (len(CONTENT) - 50)
        size = np.full(1000, 50)
        out = np.empty(50_000, np.uint8)
        zeros = np.zeros(1000, np.int64)
        filled = native.fill(np.array(files[:1], np.int32), zeros, at, size, np.arange(1000) * 50, out)
        assert filled is not None
        wraps = int((np.diff(at) < 0).sum())
        assert filled.reads <= most + wraps
        assert out.tobytes() == b"".join(CONTENT[a : a + 50] for a in at.tolist())


@pytest.mark.parametrize(
    "wrong",
    [
        (-1, 0, 5, 0),
        (1, 0, 5, 0),
        (0, -1, 5, 0),
        (0, 0, -1, 0),
        (0, 0, 5, -1),
        (0, 0, 5, 96),
        (0, 0, 2**62, 2**62),
        (0, 0, 101, 0),
    ],
)
def test_a_row_that_goes_nowhere_is_refused(files: list[int], wrong: tuple[int, int, int, int]) -> None:
    """Nothing has been read: C would write behind the output all the same."""
    file, at, size, to = np.array([(0, 0, 5, 0), wrong], np.int64).T.copy()
    out, fds = np.zeros(100, np.uint8), np.array(files[:1], np.int32)
    for order in (None, np.array([0, 1]), np.array([1])):
        with pytest.raises(ValueError, match=r"lie in one of 1 files and go to .*for row 1"):
            native.fill(fds, file, at, size, to, out, order)
    for odd in (-1, 1):
        with pytest.raises(ValueError, match=rf"must be one of 1 rows.*for row {odd}"):
            native.fill(fds, file[:1], at[:1], size[:1], to[:1], out, np.array([0, odd]))
    assert not out.any()
    out.setflags(write=False)
    with pytest.raises(ValueError, match="can be written"):
        native.fill(fds, file[:1], at[:1], size[:1], to[:1], out)


def test_rows_of_files_without_a_descriptor_are_late(files: list[int]) -> None:
    """So are those of others that end too soon; the rest of both have come."""
    file, size = np.array([1, 0, 1, 0]), np.full(4, 10)
    at, out = np.array([0, 0, 10, len(CONTENT) - 5]), np.zeros(40, np.uint8)
    filled = native.fill(
        np.array([files[0], -1], np.int32), file, at, size, np.arange(4) * 10, out, np.array([1, 3, 0])
    )
    assert filled is not None
    assert (filled.reads, filled.bytes, filled.late.tolist()) == (2, 10, [3, 0])
    assert out[10:20].tobytes() == CONTENT[:10]
    assert not out[:10].any()


DTYPES = (torch.uint8, torch.int16, torch.int32)

sides = st.integers(1, 40)


def image_of(form: str, height: int, width: int, rng: np.random.Generator) -> torch.Tensor:
    """An image (3 or 1, height, width) that lies in memory as its `form` says."""
    if form == "decoded":
        return torch.from_numpy(rng.integers(0, 256, (height, width, 3), np.uint8)).permute(2, 0, 1)
    if form == "gray":
        return torch.from_numpy(rng.integers(0, 256, (1, height, width), np.uint8))
    larger = torch.from_numpy(rng.integers(0, 256, (height + 3, 2 * width + 5, 3), np.uint8)).permute(2, 0, 1)
    if form == "window":
        return larger[:, 2 : 2 + height, 5 : 5 + width]
    if form == "every other pixel":
        return larger[:, :height, : 2 * width : 2]
    if form == "turned":
        return larger.transpose(1, 2)[:, :height, :width] if width <= height + 3 else larger[:, :height, :width]
    return larger[:, :height, :width].contiguous()


@given(
    st.sampled_from(["decoded", "gray", "window", "every other pixel", "turned", "planes"]),
    st.tuples(sides, sides),
    st.sampled_from([None, *DTYPES]),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    st.integers(0, 3),
)
def test_each_value_is_the_one_of_the_table(
    form: str, size: tuple[int, int], dtype: Any, how: tuple[bool, bool, bool, bool], off: int
) -> None:
    """An image of any strides, size and mirror becomes what a look-up makes of it, and nothing beside it is touched."""
    mirrored, upside_down, channels_last, far = how
    rng = np.random.default_rng(off)
    image = image_of(form, *size, rng)
    image = image[:, : size[0], : size[1]]
    height, width = image.shape[1:]
    table = torch.from_numpy(rng.integers(0, 2**31, (3, 256))).to(dtype or torch.uint8)
    if dtype is None:
        table = torch.arange(256, dtype=torch.uint8).expand(3, 256)
    memory = torch.full((height * width * 3 + 2 * GUARD + off,), 77, dtype=table.dtype)
    flat = memory[GUARD + off : GUARD + off + height * width * 3]
    out = flat.view((height, width, 3) if channels_last else (3, height, width))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "FAR", 0 if far else 1 << 60)
        written = native.writer(None if dtype is None else table.numpy(), channels_last=channels_last)
        assert written is not None
        assert written.write(image, out, mirrored=mirrored, upside_down=upside_down)
    axes = [axis for axis, on in ((-1, mirrored), (-2, upside_down)) if on]
    levels = image.expand(3, -1, -1).flip(axes).long()
    wanted = torch.stack([table[c][levels[c]] for c in range(3)])
    assert torch.equal(out, wanted.permute(1, 2, 0) if channels_last else wanted)
    assert (memory[: GUARD + off] == 77).all()
    assert (memory[GUARD + off + height * width * 3 :] == 77).all()


@pytest.mark.parametrize(
    ("image", "place", "dtype"),
    [
        ((3, 4, 5), (3, 4, 6), torch.int32),
        ((3, 4, 5), (4, 5, 3), torch.int32),
        ((4, 4, 5), (3, 4, 5), torch.int32),
        ((4, 5), (3, 4, 5), torch.int32),
        ((3, 4, 5), (3, 4, 5), torch.int16),
    ],
)
def test_what_does_not_fit_is_left_alone(image: tuple[int, ...], place: tuple[int, ...], dtype: torch.dtype) -> None:
    """A place of another shape or dtype, or an image of other channels, is refused before anything is written."""
    writer = native.writer(np.zeros((3, 256), np.int32), channels_last=False)
    assert writer is not None
    gaps = torch.zeros((3, 4, 6), dtype=torch.int32)[..., :5]  # the C writes one run of memory
    for out in (torch.full(place, 7, dtype=dtype), gaps):
        before = out.clone()
        assert not writer.write(torch.ones(image, dtype=torch.uint8), out)
        assert torch.equal(out, before)


@pytest.mark.parametrize("table", [np.zeros((3, 255), np.int32), np.zeros((1, 256), np.int32), np.zeros((3, 256))])
def test_a_table_of_another_form_is_refused(table: Any) -> None:
    """A table has 256 values of 1, 2 or 4 bytes for each of three channels, as the C reads it."""
    found = library()
    assert found is not None
    with pytest.raises(ValueError, match=r"Pixels: table must be \(3, 256\)"):
        PixelWriter(found, table, channels_last=False)


def test_numbers_that_make_other_floats_are_not_taken() -> None:
    """What the C may compute are the floats of the table, bit for bit, or it looks them up."""
    levels = np.arange(256, dtype=np.float32) * np.float32(1 / 255)
    table = np.stack([(levels - np.float32(mean)) / np.float32(0.2) for mean in (0.1, 0.2, 0.3)])
    assert steps_of(1 / 255, (0.1, 0.2, 0.3), (0.2,), table.view(np.int32)) is not None
    table[1, 77] = np.nextafter(table[1, 77], np.float32(9))
    assert steps_of(1 / 255, (0.1, 0.2, 0.3), (0.2,), table.view(np.int32)) is None
