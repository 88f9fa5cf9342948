"""Crops, padding and affine moves of the DALI engine beside the host engine, which is torchvision's bit for bit.

The draws are the same, so what differs is arithmetic. Measured differences stand beside their bounds.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from dali_way import REGION, both, distance

from dali_feed.compiler.dali import compile_recipe
from dali_feed.compiler.program import unfit
from dali_feed.errors import TransformError
from dali_feed.transforms.colour import ColorJitter
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import CenterCrop, Flip, Pad, RandomCrop
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.resize import RandomResizedCrop, Resize
from dali_feed.transforms.warps import RandomAffine, Rotation

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

EXACT: dict[str, tuple[Op, ...]] = {
    "crop": (RandomCrop((64, 80)),),
    "crop behind flips": (Flip("x"), Flip("y"), RandomCrop((64, 80)), Flip("x")),
    "crop of a crop": (RandomCrop((90, 100)), RandomCrop((64, 80))),
    "crop, then an enlarged one": (RandomCrop((64, 80)), RandomCrop((300, 20), (9, 8, 7, 6), True, (1.0, 2.0, 3.0))),
    "padded": (Pad((1, 2, 3, 4), (200.0, 7.0, 90.0)),),
    "padded behind flips": (Flip("x"), Flip("y"), Pad((1, 2, 3, 4), 9.0), RandomCrop((90, 70), (5, 0, 0, 9))),
}


@REGION
@pytest.mark.parametrize("name", EXACT)
def test_crops_and_padding_are_exact(name: str, region_decode: bool) -> None:
    """Both engines cut the same windows and fill them alike, wherever flips and other crops stand."""
    assert distance(*both(Recipe(EXACT[name]), region_decode=region_decode)) == (0, 0)


def test_a_crop_behind_a_resize_is_folded_into_it() -> None:
    """Resize, then RandomCrop: one resampling of the window alone, within a level of torchvision's two steps."""
    mean, most = distance(*both(Recipe((Resize(120), RandomCrop((96, 96)), ToFloat("float32", scale=False)))))
    assert mean <= 0.25  # 0.185
    assert most <= 1


@pytest.mark.parametrize(("interpolation", "mean"), [("nearest", 0.022), ("bilinear", 0.43)])  # 0.016, 0.325
@pytest.mark.parametrize("flips", [(), (Flip("x"),), (Flip("y"),), (Flip("x"), Flip("y"))])
def test_affine_moves_are_torchvisions(
    interpolation: Literal["nearest", "bilinear"], mean: float, flips: tuple[Op, ...]
) -> None:
    """Turned, moved, scaled and sheared the same way behind any flips; nearest takes other pixels at ties alone."""
    move = RandomAffine((-40.0, 40.0), (0.1, 0.2), (0.7, 1.4), (-9.0, 9.0, -5.0, 5.0), interpolation, 77.0)
    found = distance(*both(Recipe((*flips, move))))
    assert found[0] <= mean, found


def test_affine_moves_about_a_point() -> None:
    """A centre of its own is given in pixels of the image as it is seen."""
    move = RandomAffine((9.0, 20.0), scale=(1.2, 1.3), interpolation="bilinear", center=(20.0, 90.0))
    assert distance(*both(Recipe((Flip("x"), move))))[0] <= 0.33  # 0.25


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_channels_last_has_the_same_values(dtype: str) -> None:
    """A batch of layout NHWC is that of NCHW with its axes moved."""
    floats: tuple[Op, ...] = (ToFloat(), Normalize((0.5,), (0.25,))) if dtype == "float32" else ()
    ops = (RandomResizedCrop((64, 96)), Flip("x"), Flip("y"), *floats)
    planes, last = (both(Recipe(ops, layout))[0] for layout in ("NCHW", "NHWC"))
    for one, other in zip(planes, last, strict=True):
        assert other.shape == (64, 96, 3)
        assert torch.equal(one, other.permute(2, 0, 1))


@pytest.mark.parametrize(
    ("op", "told"),
    [
        (Pad((1, 1, 1, 1), mode="reflect"), 'Pad: the dali engine knows padding_mode="constant"; found "reflect"'),
        (RandomCrop((9, 9), pad_if_needed=True, mode="edge"), 'RandomCrop: the dali engine knows padding_mode="cons'),
        (Rotation((1.0, 2.0), fill=(1.0, 2.0, 3.0)), "RandomRotation: the dali engine takes one fill for all channels"),
        (RandomAffine((1.0, 2.0), fill=(1.0, 2.0, 3.0)), "RandomAffine: the dali engine takes one fill"),
    ],
)
def test_what_dali_has_no_operator_for(op: Op, told: str) -> None:
    """It is refused when the program is made, and the message names the engine that takes it."""
    with pytest.raises(TransformError, match=f"^{told}.*host engine can run it"):
        compile_recipe(Recipe((op,)), region_decode=True)


def test_images_that_an_op_cannot_take_are_known_by_their_size() -> None:
    """The sizes that reach RandomCrop and Pad decide, whatever stands before them; absent rows are nobody's."""
    sizes = np.array([[20, 40], [10, 40], [0, 0], [40, 10], [9, 9]], np.int32)

    def rows(*ops: Op) -> list[int]:
        return sorted(unfit(Recipe(ops), sizes))

    assert rows(RandomCrop((10, 20))) == [3, 4]
    assert rows(RandomCrop((10, 20), (6, 0, 5, 1))) == []
    assert rows(RandomCrop((10, 20), pad_if_needed=True)) == []
    assert rows(Resize(20), RandomCrop((10, 20))) == []
    assert rows(CenterCrop((8, 8)), RandomCrop((8, 9))) == [0, 1, 3, 4]
    assert rows(Pad((1, 2, 1, 2)), ColorJitter((1.0, 1.0)), RandomCrop((12, 12))) == [4]
    assert (
        "RandomCrop: 20x10 must fit into the image; found 10x40; give pad_if_needed=True"
        in unfit(Recipe((RandomCrop((10, 20)),)), sizes)[3]
    )
