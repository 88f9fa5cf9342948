"""Settings of transforms that cannot be kept: refused when the transform is lowered, with the setting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dali_feed.errors import TransformError
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.erasing import NoisyErasing
from dali_feed.transforms.settings import check_padding, check_size, check_uint8, edges_of, maybe_drawn, pair
from dali_feed.transforms.timm_augment import LayerAugment, TimmPart
from dali_feed.transforms.warps import RandomAffine

PARTS = (TimmPart("Invert"), TimmPart("Equalize"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pair("Resize", (1, 2, 3)), r"size must be an int or \(height, width\); found \(1, 2, 3\)"),
        (
            lambda: maybe_drawn(SimpleNamespace(interpolation=("bilinear", "nearest"))),
            "interpolation must be one mode, or random",
        ),
        (lambda: edges_of(SimpleNamespace(padding=[1, 2, 3]), swapped=False), "padding must be an int, or 1, 2 or 4"),
        (lambda: RandomAffine((0.0, 9.0), (0.1, 1.5)), "translate must be two fractions in 0..1"),
        (lambda: LayerAugment(()), "needs at least one operation"),
        (lambda: LayerAugment(PARTS, 1, (1.0,)), "needs one weight for each operation"),
        (lambda: LayerAugment(PARTS, 2, (1.0, 0.0)), "needs as many weights above 0 as layers"),
        (lambda: NoisyErasing(0.5, fill="white"), 'fill must be "zero", "colour" or "pixel"'),  # type: ignore[arg-type]
        (lambda: ToFloat.whole_levels(SimpleNamespace(dtype="torch.int64")), "dtype must be uint8, float32, float16"),
        (lambda: check_size("Resize", (0, 4)), "size must be two positive ints"),
        (
            lambda: check_uint8("Invert", "float32"),
            "Invert: must have uint8 pixels, as the original does; found float32",
        ),
        (lambda: check_padding("Pad", (1, 1, 1, -1), "edge"), "padding must be four ints of at least 0"),
        (lambda: check_padding("Pad", (1, 1, 1, 1), "wrap"), "padding_mode must be constant, edge, reflect"),  # type: ignore[arg-type]
    ],
)
def test_a_setting_that_cannot_be_kept_is_refused(make: Any, said: str) -> None:
    """With the rule and what was found, before an image is seen."""
    with pytest.raises(TransformError, match=said):
        make()


@pytest.mark.parametrize("name", ["uint8", "float32", "float16", "bfloat16"])
def test_levels_stay_where_the_transform_leaves_them(name: str) -> None:
    """Timm's own ToTensor changes the dtype alone: 255 stays 255."""
    made = ToFloat.whole_levels(SimpleNamespace(dtype=f"torch.{name}"))
    assert (made.dtype, made.scale) == (name, False)


def test_a_draw_of_two_interpolations_is_one_setting() -> None:
    """Whatever their order."""
    assert maybe_drawn(SimpleNamespace(interpolation=("bilinear", "bicubic"))) == "random"
    assert pair("Resize", [7]) == (7, 7)
    assert edges_of(SimpleNamespace(padding=[1, 2]), swapped=False) == (1, 2, 1, 2)
