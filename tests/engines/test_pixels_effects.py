"""Effects and nests of the DALI engine beside the host engine, which is torchvision's bit for bit.

The draws are the same, so what differs is arithmetic. Measured differences stand beside their bounds.
"""

from __future__ import annotations

import pytest
import torch
from dali_way import REGION, both, distance
from kit.photographs import photographs
from kit.torchvision_way import ran
from recipes import FLOAT, SMALL, simclr
from torchvision.transforms import v2

from dali_feed.compiler.dali import compile_recipe
from dali_feed.errors import TransformError
from dali_feed.transforms.colour import ColorJitter, Grayscale, RandomGrayscale
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.crops import Flip, RandomCrop
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.filters import GaussianBlur
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply, RandomChoice, RandomOrder
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.pointwise import (
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from dali_feed.transforms.resize import RandomResizedCrop
from dali_feed.transforms.settings import DType, Layout
from dali_feed.transforms.warps import RandomAffine, RandomPerspective, Rotation

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
# Ops; bounds on the worst image's mean and on the largest difference, measured ones behind each.
CASES: dict[str, tuple[tuple[Op, ...], float, float]] = {
    "gray": ((Grayscale(),), 0.0011, 1),  # 0.00083, 1
    "gray, sometimes": ((RandomGrayscale(0.5),), 0.0011, 1),  # 0, 0
    "gray floats": ((ToFloat(), Grayscale()), 0.0009, 0.0021),  # 0.00068, 0.0020: half a level
    "blur": ((GaussianBlur((9, 5), (0.1, 2.0)),), 2.3e-5, 1),  # 1.7e-5, 1
    "large blur": ((GaussianBlur((23, 23), (1.0, 9.0)),), 1.4e-4, 1),  # 1.0e-4, 1
    "blur of floats": ((ToFloat(), GaussianBlur((9, 5), (0.1, 2.0))), 0.0013, 0.0021),  # 0.0010, 0.0020
    "invert": ((RandomInvert(0.5),), 0, 0),
    "invert floats": ((ToFloat(), RandomInvert(0.5)), 1e-7, 2e-7),  # 5.7e-8, 1.2e-7
    "posterize": ((RandomPosterize(3, 0.5),), 0, 0),
    "posterize, no bits": ((RandomPosterize(0, 1.0),), 0, 0),
    "solarize": ((RandomSolarize(150.5, 0.5),), 0, 0),
    "solarize floats": ((ToFloat(), RandomSolarize(0.4, 0.5)), 1e-7, 2e-7),  # 3.4e-8, 8.9e-8
    "erase": ((RandomErasing(0.8, value=77.9),), 0, 0),
    "erase with a colour, behind flips": (
        (Flip("x"), Flip("y"), RandomErasing(1.0, value=(200.0, 7.0, 90.0)), Flip("x")),
        0,
        0,
    ),
    "erase floats": ((ToFloat(), RandomErasing(1.0, value=0.5), RandomErasing(0.0)), 0.0007, 0.0021),  # 0.00054, 0.0020
    "erase twice behind normalize": (  # 0.0020, 0.0082: half a level of the first
        (Flip("x"), *FLOAT, RandomErasing(1.0), RandomErasing(0.5)),
        0.0026,
        0.0088,
    ),
}


@REGION
@pytest.mark.parametrize("name", CASES)
def test_each_effect(name: str, region_decode: bool) -> None:
    """Of uint8 or of floats, wherever flips stand, within what was measured."""
    ops, mean, most = CASES[name]
    found = distance(*both(Recipe((SMALL, *ops)), region_decode=region_decode))
    assert found[0] <= mean, found
    assert found[1] <= most, found


@REGION
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_last_erasing_is_exact(dtype: DType, layout: Layout, region_decode: bool) -> None:
    """One that only flips and floats follow writes its value into floats, whatever it is, into the same rectangles."""
    ops = (SMALL, Flip("y"), ToFloat(dtype), FLOAT[1], RandomErasing(1.0, value=(9.0, -0.1, 0.0)), Flip("x"))
    for ours, theirs in zip(*both(Recipe(ops, layout), region_decode=region_decode), strict=True):
        value = torch.tensor([9.0, -0.1, 0.0], dtype=ours.dtype)
        value = value[:, None, None] if layout == "NCHW" else value
        assert (theirs == value).any()
        assert torch.equal(ours == value, theirs == value)


NESTS: dict[str, tuple[tuple[Op, ...], float, float]] = {
    "apply": (
        (
            RandomApply((Flip("x"), GaussianBlur((9, 5)), RandomErasing(0.8), RandomPosterize(3)), 0.5),
            RandomApply((RandomInvert(), Flip("y"), RandomSolarize(99.0), Grayscale()), 0.5),
        ),
        4.1e-4,  # 3.1e-4
        1,
    ),
    "apply colour": (
        (RandomApply((ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1)),), 0.6),),
        0.06,
        3,
    ),  # 0.047, 2
    "apply turns": (
        (
            RandomApply((Rotation((-30.0, 30.0), "bilinear"),), 0.5),
            RandomApply((RandomAffine((-9.0, 9.0), (0.1, 0.1), interpolation="bilinear"),), 0.5),
        ),
        0.33,  # 0.25, 61: as without a nest, at the border of the moved image
        80,
    ),
    "choice": ((RandomChoice(((Grayscale(),), (Flip("x"), RandomInvert(1.0)), ()), (1.0, 2.0, 3.0)),), 0, 0),
    "a window of what may be mirrored": (
        (RandomApply((Flip("x", 1.0), RandomChoice(((Flip("y", 1.0),), ()))), 0.6), RandomCrop((64, 80))),
        0,
        0,
    ),
    "choice in apply": ((RandomApply((RandomChoice(((Grayscale(),), (RandomInvert(1.0),))),)), RandomInvert()), 0, 0),
}


@pytest.mark.parametrize("name", NESTS)
def test_nests(name: str) -> None:
    """An inner op changes nothing of the images that did not pick it."""
    ops, mean, most = NESTS[name]
    found = distance(*both(Recipe((SMALL, *ops))))
    assert found[0] <= mean, found
    assert found[1] <= most, found


def test_a_recipe_of_self_supervised_training() -> None:
    """SimCLR's views and their kind, whole: 0.36 levels on average of the worst image, 0.0056 in normalised units."""
    found = distance(*both(lower(simclr(v2))))
    assert found[0] <= 0.0073, found  # 0.0056


def test_what_is_not_picked_stays_as_it_is() -> None:
    """Ops of a nest that no sample picks give the pixels of the recipe without them."""
    inner = (
        *(Flip("x", 1.0), Flip("y", 1.0), ColorJitter((0.5, 1.5), (0.5, 1.5), (0.5, 1.5), (-0.2, 0.2)), Grayscale()),
        *(Rotation((20.0, 30.0), "bilinear"), RandomAffine((9.0, 9.5), interpolation="bilinear"), RandomInvert(1.0)),
        *(GaussianBlur((5, 5)), RandomPosterize(2, 1.0), RandomSolarize(9.0, 1.0), RandomErasing(1.0, value=9.0)),
    )
    nest = RandomApply((RandomApply(inner, 1.0),), 0.0)
    crop = RandomResizedCrop((64, 80))
    (plain, _), (nested, _) = both(Recipe((Flip("x"), crop))), both(Recipe((Flip("x"), crop, nest)))
    assert distance(plain, nested) == (0, 0)


SHIFTED = (ToFloat(scale=False),)


@pytest.mark.parametrize(
    ("ops", "told"),
    [
        ((RandomAdjustSharpness(2.0),), "RandomAdjustSharpness: the dali engine has no operator for it"),
        ((RandomApply((RandomAutocontrast(),)),), "RandomAutocontrast: the dali engine has no operator for it"),
        ((RandomPerspective(),), "RandomPerspective: the dali engine has no operator for it"),
        ((RandomEqualize(),), "RandomEqualize: the dali engine has no operator for it"),
        ((RandomOrder(((Grayscale(),), (Flip("x"),))),), "RandomOrder: the dali engine runs transforms in one order"),
        ((ToFloat(), RandomPosterize(3)), "RandomPosterize: the dali engine needs uint8 pixels; found float32"),
        ((*SHIFTED, RandomInvert()), r"RandomInvert: the dali engine needs uint8 pixels or floats in 0\.\.1"),
        ((*SHIFTED, RandomSolarize(0.5)), "RandomSolarize: the dali engine needs uint8 pixels or floats"),
        ((*FLOAT, RandomErasing(value=9.0), RandomErasing()), "RandomErasing: the dali engine needs a value"),
    ],
)
def test_what_dali_has_no_operator_for(ops: tuple[Op, ...], told: str) -> None:
    """It is refused when the program is made, and the message names the engine that takes it."""
    with pytest.raises(TransformError, match=f"^{told}.*host engine can run it"):
        compile_recipe(Recipe(ops), region_decode=True)
    assert ran(Recipe((SMALL, *ops)), photographs()[:1], [0])
