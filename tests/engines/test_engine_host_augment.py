"""The host engine's AutoAugment and its kind: torchvision v2's own classes, given our draws, make the same pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit.images import png
from kit.photographs import decoded, photographs
from kit.torchvision_auto import replayed, with_weights
from kit.torchvision_way import assert_equal, ran, together
from recipes import MAKERS
from torchvision import transforms as v1
from torchvision.transforms import autoaugment, v2
from torchvision.transforms.v2 import functional

from dali_feed.compiler.host import compile_host
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply
from dali_feed.transforms.op import Recipe
from dali_feed.transforms.resize import Resize

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")


@pytest.mark.parametrize("count", [40, pytest.param(150, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", MAKERS)
def test_torchvisions_own_class_makes_the_same_of_our_draws(name: str, count: int) -> None:
    """Choice, strength, sign and pixels, on so many samples of 41x50, whose edges no strength divides."""
    recipe, ids = lower(MAKERS[name]()), range(count)
    payloads = [png(n % 10, 41, 50) for n in ids]
    sizes = np.full((count, 2), (41, 50), np.int32)
    weights = compile_host(recipe).parameters(sizes, np.arange(count), 0, 0).arrays.get(Key("effect0_weights"))
    for n, ours in zip(ids, ran(recipe, payloads, ids), strict=True):
        transform = MAKERS[name]()
        if weights is not None:
            transform = with_weights(transform, weights[n])
        assert torch.equal(replayed(transform, decoded(payloads[n]), n), ours), n


@pytest.mark.parametrize("name", MAKERS)
def test_on_photographs_behind_other_ops_and_in_nests(name: str) -> None:
    """Strengths are of the size that an image has there, choices of the place in the recipe."""
    (op,) = lower(MAKERS[name]()).ops
    assert_equal(Recipe((op, Resize((60, 90)), Flip("x"), op, RandomApply((Flip("y"), op)))), photographs()[2:4])


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_v1s_operations_are_a_level_away(mode: str) -> None:
    """On tensors, at every strength; Solarize differs at its threshold alone, of which the two differ by a last bit."""
    ours, theirs = v2.TrivialAugmentWide(), v1.TrivialAugmentWide()
    strengths = theirs._augmentation_space(31)
    image = functional.resize(decoded(photographs()[3]), [60, 90])
    for name, (make, _) in ours._AUGMENTATION_SPACE.items():
        for k, strong in enumerate([None] if (found := make(31, 60, 90)) is None else found):
            one = ours._apply_image_or_video_transform(image, name, float(strong or 0), mode, {"others": 7.0})
            strength = 0.0 if strong is None else float(strengths[name][0][k])
            other = autoaugment._apply_op(image, name, strength, v2.InterpolationMode(mode), [7.0] * 3)
            near = (one.int() - other.int()).abs() <= 1
            assert (near | (name == "Solarize") & (image == round(strength))).all(), name


def test_a_batch_of_many_equals_its_images_one_by_one() -> None:
    """What a sample chooses does not depend on the batch it is in."""
    recipe = Recipe((Resize((30, 40)), *(op for make in MAKERS.values() for op in lower(make()).ops)))
    payloads = [png(n, 40, 50) for n in range(9)]
    for one, other in zip(together(recipe, payloads), ran(recipe, payloads, range(9)), strict=True):
        assert torch.equal(one, other)
