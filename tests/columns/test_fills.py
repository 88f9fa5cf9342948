"""What masks are filled with beside their image: what torchvision's transforms take for tv_tensors.Mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2.functional._geometry import _get_perspective_coeffs

from dali_feed.compiler.program import compile_following
from dali_feed.errors import TransformError
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import effect_key

# Whatever they draw, but for perspective, the mask moves in the same way.
FILLING: dict[str, Any] = {
    "pad": lambda fill: v2.Pad((1, 2, 3, 4), fill=fill),
    "crop": lambda fill: v2.RandomCrop((26, 32), padding=(4, 3), fill=fill),
    "rotation": lambda fill: v2.RandomRotation((30, 30), fill=fill),
    "affine": lambda fill: v2.RandomAffine((30, 30), fill=fill),
    "perspective": lambda fill: v2.RandomPerspective(0.9, 1.0, fill=fill),
}
FILLS: list[Any] = [
    5,
    {tv_tensors.Mask: 255, "others": 0},
    {tv_tensors.Mask: 255, tv_tensors.Image: (1, 2, 3)},
    {tv_tensors.Image: 9},
    {tv_tensors.Image: 3, "others": 7},
]


@pytest.mark.parametrize("fill", FILLS, ids=str)
@pytest.mark.parametrize("name", FILLING)
def test_masks_are_filled_as_torchvision_fills_them(name: str, fill: Any) -> None:
    """With the number for masks, for all others, or for everything; 0 where none of them is told."""
    mask = tv_tensors.Mask(torch.ones(1, 20, 24, dtype=torch.int32))
    transform = FILLING[name](fill)
    followed = compile_following(lower(transform), boxes=False)
    arrays = followed.parameters(np.array([[20, 24]]), np.array([1]), 0, 0)
    if name == "perspective":  # the one whose draws matter here
        start, ends = [[0, 0], [23, 0], [23, 19], [0, 19]], arrays[effect_key(0)][0].reshape(4, 2).tolist()
        wanted = transform.transform(mask, {"coefficients": _get_perspective_coeffs(start, ends)})
    else:
        wanted = transform(mask)
    found = followed.run(mask, arrays, 0)
    assert torch.equal(found, wanted)
    assert (found != 1).any()


@pytest.mark.parametrize("fill", [(1, 2, 3), {"others": (1, 2, 3)}], ids=str)
@pytest.mark.parametrize("name", FILLING)
def test_no_mask_is_filled_with_three_numbers(name: str, fill: Any) -> None:
    """Torchvision raises where it moves the mask; here it is told when the loader is made. Boxes do not mind."""
    recipe = lower(v2.Compose([v2.Resize((20, 24)), FILLING[name](fill)]))
    with pytest.raises(TransformError, match=r"masks must be filled with one number; found fill=\(1.0, 2.0"):
        compile_following(recipe, boxes=False)
    compile_following(recipe, boxes=True, masks=False)
