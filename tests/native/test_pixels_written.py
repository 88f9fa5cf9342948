"""Images written into a batch by C: the bytes of a plain look-up, and not one outside their place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.native import pixels
from dali_feed.native.library import library
from dali_feed.native.pixels import PixelWriter, steps_of

GUARD = 64  # values on either side of a place in a batch
DTYPES = (torch.uint8, torch.int16, torch.int32)

needs_library = pytest.mark.skipif(library() is None, reason="the library was not compiled")
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


@needs_library
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
        patch.setattr(pixels, "FAR", 0 if far else 1 << 60)
        written = pixels.writer(None if dtype is None else table.numpy(), channels_last=channels_last)
        assert written is not None
        assert written.write(image, out, mirrored=mirrored, upside_down=upside_down)
    axes = [axis for axis, on in ((-1, mirrored), (-2, upside_down)) if on]
    levels = image.expand(3, -1, -1).flip(axes).long()
    wanted = torch.stack([table[c][levels[c]] for c in range(3)])
    assert torch.equal(out, wanted.permute(1, 2, 0) if channels_last else wanted)
    assert (memory[: GUARD + off] == 77).all()
    assert (memory[GUARD + off + height * width * 3 :] == 77).all()


@needs_library
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
    writer = pixels.writer(np.zeros((3, 256), np.int32), channels_last=False)
    assert writer is not None
    gaps = torch.zeros((3, 4, 6), dtype=torch.int32)[..., :5]  # the C writes one run of memory
    for out in (torch.full(place, 7, dtype=dtype), gaps):
        before = out.clone()
        assert not writer.write(torch.ones(image, dtype=torch.uint8), out)
        assert torch.equal(out, before)


@needs_library
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
