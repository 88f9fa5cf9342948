"""Pixels of photographs on the CPU: the host engine's are torchvision's bit for bit, and DALI's lie close to them.

The draws are the same, so what differs is arithmetic: torchvision rounds to whole levels after each of a resize's two
passes, DALI once at the end.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit.recipes import CASES, FLOAT, INVERT, INVERTED, JITTER, PERMUTE, SMALL, X, Y
from kit.torchvision_way import assert_equal, by_dali, by_host, distance
from nvidia.dali import Pipeline, fn, types

from dali_feed.engines.dali.graph import compile_dali
from dali_feed.errors import TransformError
from dali_feed.transforms import colour as colours
from dali_feed.transforms.colour import Grayscale, RandomPhotometricDistort
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.crops import CenterCrop, Flip, Pad, RandomCrop
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.filters import GaussianBlur
from dali_feed.transforms.nest import RandomApply, RandomOrder
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.pointwise import Pointwise
from dali_feed.transforms.resize import RandomResizedCrop, Resize
from dali_feed.transforms.settings import DType, Layout
from dali_feed.transforms.warps import RandomAffine, RandomPerspective, Rotation

pytestmark = [pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning"), pytest.mark.slow]


@pytest.mark.parametrize("name", CASES)
def test_pixels_of_either_engine(name: str) -> None:
    """The host engine's are torchvision's, whatever the ops; DALI's lie within what was measured, dtypes are equal.

    Windows are cut by the decoder, and by the first resize.
    """
    ops, *bounds = CASES[name]
    theirs = assert_equal(Recipe(ops))
    for k, (mean, most) in enumerate(bounds):
        ours = by_dali(Recipe(ops), region_decode=not k)
        assert [image.dtype for image in ours] == [image.dtype for image in theirs]
        found = distance(ours, theirs)
        assert found[0] <= mean, found
        assert found[1] <= most, found


def test_large_differences_stand_at_the_border() -> None:
    """Inside, a resize differs by one level at most: DALI repeats the edge, torchvision reweighs it; windows alike."""
    for size in (256, (64, 96), (224, 320)):
        recipe = Recipe((Resize(size),))
        assert distance(by_dali(recipe), by_host(recipe), edge=2)[1] <= 1
    crop = Recipe((RandomResizedCrop((224, 224)),))
    cut, sampled = (by_dali(crop, region_decode=region) for region in (True, False))
    assert distance(cut, sampled, edge=4)[1] <= 1


def test_rotation_of_floats_fills_in_their_units() -> None:
    """A fill of 0.5 behind ToDtype(scale=True) is the middle gray that torchvision fills with."""
    recipe = Recipe((ToFloat(), Rotation((45.0, 45.0), fill=0.5)))
    for one, other in zip(by_dali(recipe), by_host(recipe), strict=True):
        assert abs(float(one[0, 0, 0]) - 0.5) < 0.003
        assert float(other[0, 0, 0]) == 0.5


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_float_types(dtype: DType) -> None:
    """Pixels of a whole crop, converted and normalised, are torchvision's float32 rounded once to the type."""
    crop = CenterCrop((90, 90))
    ours = by_dali(Recipe((crop, ToFloat(dtype), FLOAT[1])))
    exact = by_host(Recipe((crop, *FLOAT)))
    for one, other in zip(ours, exact, strict=True):
        assert one.dtype == getattr(torch, dtype)
        torch.testing.assert_close(one.float(), other, rtol=torch.finfo(one.dtype).eps, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_last_erasing_is_exact(dtype: DType, layout: Layout) -> None:
    """One that only flips and floats follow writes its value into floats, whatever it is, into the same rectangles."""
    recipe = Recipe((SMALL, Y, ToFloat(dtype), FLOAT[1], RandomErasing(1.0, value=(9.0, -0.1, 0.0)), X), layout)
    for ours, theirs in zip(by_dali(recipe), by_host(recipe), strict=True):
        value = torch.tensor([9.0, -0.1, 0.0], dtype=ours.dtype)
        value = value[:, None, None] if layout == "NCHW" else value
        assert (theirs == value).any()
        assert torch.equal(ours == value, theirs == value)


def test_what_is_not_picked_stays_as_it_is() -> None:
    """Ops of a nest that no sample picks give the pixels of the recipe without them."""
    inner = (
        *(Flip("x", 1.0), Flip("y", 1.0), PERMUTE, JITTER, Grayscale(), INVERTED, GaussianBlur((5, 5))),
        *(Rotation((20.0, 30.0), "bilinear"), RandomAffine((9.0, 9.5), interpolation="bilinear")),
        *(Pointwise("RandomPosterize", 1.0, 2), Pointwise("RandomSolarize", 1.0, 9.0), RandomErasing(1.0, value=9.0)),
    )
    nest = RandomApply((RandomApply(inner, 1.0),), 0.0)
    crop = RandomResizedCrop((64, 80))
    assert distance(by_dali(Recipe((X, crop))), by_dali(Recipe((X, crop, nest)))) == (0, 0)


SHIFTED, NONE = (ToFloat(scale=False),), "the dali engine has no operator for it"
CONSTANT = 'the dali engine knows padding_mode="constant"; found '


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        ((Pointwise("RandomAdjustSharpness", setting=2.0),), f"RandomAdjustSharpness: {NONE}"),
        ((RandomApply((Pointwise("RandomAutocontrast"),)),), f"RandomAutocontrast: {NONE}"),
        ((RandomPerspective(),), f"RandomPerspective: {NONE}"),
        ((RandomPhotometricDistort(),), f"RandomPhotometricDistort: {NONE}"),
        ((RandomOrder(((Grayscale(),), (X,))),), "RandomOrder: the dali engine runs transforms in one order"),
        ((ToFloat(), Pointwise("RandomPosterize", setting=3)), "RandomPosterize: the dali engine needs uint8 pixels"),
        ((*SHIFTED, INVERT), r"RandomInvert: the dali engine needs uint8 pixels or floats in 0\.\.1"),
        ((*FLOAT, RandomErasing(value=9.0), RandomErasing()), "RandomErasing: the dali engine needs a value"),
        ((Pad((1, 1, 1, 1), mode="reflect"),), f'Pad: {CONSTANT}"reflect"'),
        ((RandomCrop((9, 9), pad_if_needed=True, mode="edge"),), f"RandomCrop: {CONSTANT}"),
        ((Rotation((1.0, 2.0), fill=(1.0, 2.0, 3.0)),), "RandomRotation: the dali engine takes one fill for all chan"),
    ],
)
def test_what_dali_has_no_operator_for(ops: tuple[Op, ...], said: str) -> None:
    """It is refused when the program is made, and the message names the engine that takes it."""
    with pytest.raises(TransformError, match=f"^{said}.*host engine can run it"):
        compile_dali(Recipe(ops))


def test_contrast_apart_is_contrast() -> None:
    """The form of a contrast step that stays on the GPU gives the other one's pixels, but for a last digit's level."""
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (40, 50, 3), np.uint8) // (n % 3 + 1) for n in range(24)]
    factors = rng.uniform(0, 2, 24).astype(np.float32)
    with Pipeline(24, 2, None) as pipe:
        image = fn.external_source(name="image", ndim=3, dtype=types.UINT8)
        factor = fn.external_source(name="factor", ndim=0, dtype=types.FLOAT)
        matrix, shift = factor * types.Constant(np.eye(3, dtype=np.float32)), factor * 0.5 - 0.9995
        mean = colours._gray_mean(image)
        pipe.set_outputs(
            colours._moved(image, matrix, shift + (1 - factor) * mean, types.UINT8),
            colours._contrast_apart(image, matrix, shift, 1 - factor, device="cpu"),
        )
    pipe.build()
    pipe.feed_input("image", pictures)
    pipe.feed_input("factor", list(factors))
    one, other = (output.as_array().astype(int) for output in pipe.run())
    assert np.abs(one - other).max() <= 1
    assert np.mean(one != other) < 1e-3
