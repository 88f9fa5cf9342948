"""Windows cut out of a batch: as one image after another is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.engines.device_cache import cut_out
from dali_feed.transforms.crops import crop
from dali_feed.transforms.keys import Key
from dali_feed.transforms.settings import Fill, as_list

ROW = Key("crop0")
CORNERS = st.lists(st.tuples(st.integers(-9, 12), st.integers(-9, 12)), min_size=1, max_size=6)


def check(place: str, corners: list[tuple[int, int]], size: tuple[int, int], fill: Fill) -> None:
    """Every window, inside, across the border and beyond it."""
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (len(corners), 7, 9, 3), np.uint8))
    rows = np.array([(y, x, *size) for y, x in corners], np.int32)
    colour = torch.tensor(as_list(fill)).to(torch.uint8)
    made = cut_out(images.to(place), torch.from_numpy(rows[:, :2].astype(np.int64)).to(place), size, colour.to(place))
    one = crop(ROW, fill)
    want = [one(image.permute(2, 0, 1), {ROW: rows}, n).permute(1, 2, 0) for n, image in enumerate(images)]
    assert made.dtype == torch.uint8
    assert torch.equal(made.cpu(), torch.stack(want))


@given(CORNERS, st.tuples(st.integers(1, 9), st.integers(1, 9)), st.sampled_from([0.0, 3.7, (9.0, 255.0, 1.0)]))
def test_a_window_is_the_images_own(corners: list[tuple[int, int]], size: tuple[int, int], fill: Fill) -> None:
    """Pixels, and the colour outside, cut off to a whole level, are those that the host engine gives."""
    near = [(min(max(y, 1 - size[0]), 6), min(max(x, 1 - size[1]), 8)) for y, x in corners]  # it touches the image
    check("cpu", near, size, fill)


@pytest.mark.gpu
def test_a_window_on_a_gpu_is_the_images_own() -> None:
    """The same."""
    check("cuda", [(-3, -2), (0, 0), (2, 3), (5, 7), (-4, 8)], (5, 4), (9.0, 255.0, 1.0))
