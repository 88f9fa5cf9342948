"""transforms: what torchvision's v1 and v2 transforms lower to, and how what is not supported is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from both_versions import BOTH, MEAN, STD
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.models import ResNet18_Weights, get_model_weights, list_models
from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights
from torchvision.models.segmentation import DeepLabV3_ResNet50_Weights
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2
from torchvision.transforms._presets import OpticalFlow

from dali_feed.compiler.dali import compile_dali
from dali_feed.errors import TransformError
from dali_feed.transforms.colour import ColorJitter
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import CenterCrop, Flip, Pad, RandomCrop
from dali_feed.transforms.erasing import NoisyErasing
from dali_feed.transforms.filters import GaussianNoise
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.resize import RandomResizedCrop, Resize
from dali_feed.transforms.warps import RandomAffine, Rotation

# Made from either module: the transform, and what it lowers to.
SAME_IN_BOTH: list[tuple[Any, Op]] = [
    (lambda T: T.RandomResizedCrop(224), RandomResizedCrop((224, 224))),
    (
        lambda T: T.RandomResizedCrop((96, 128), scale=(0.2, 0.9), ratio=(0.5, 2.0), interpolation=Mode.BICUBIC),
        RandomResizedCrop((96, 128), (0.2, 0.9), (0.5, 2.0), "bicubic"),
    ),
    (lambda T: T.RandomResizedCrop(8, antialias=False), RandomResizedCrop((8, 8), antialias=False)),
    (lambda T: T.Resize(256), Resize(256)),
    (lambda T: T.Resize([256]), Resize(256)),
    (lambda T: T.Resize((240, 320)), Resize((240, 320))),
    (lambda T: T.Resize(256, max_size=300), Resize(256, 300)),
    (lambda T: T.Resize(9, interpolation=Mode.NEAREST_EXACT), Resize(9, interpolation="nearest-exact")),
    (lambda T: T.Resize(9, interpolation=Mode.BICUBIC, antialias=False), Resize(9, None, "bicubic", antialias=False)),
    (lambda T: T.CenterCrop(224), CenterCrop((224, 224))),
    (lambda T: T.CenterCrop((5, 7)), CenterCrop((5, 7))),
    (lambda T: T.RandomHorizontalFlip(), Flip("x", 0.5)),
    (lambda T: T.RandomVerticalFlip(p=0.25), Flip("y", 0.25)),
    (
        lambda T: T.ColorJitter(brightness=0.4, contrast=(0.5, 0.75), saturation=2, hue=0.1),
        ColorJitter((0.6, 1.4), (0.5, 0.75), (0.0, 3.0), (-0.1, 0.1)),
    ),
    (lambda T: T.ColorJitter(contrast=0.5), ColorJitter(contrast=(0.5, 1.5))),
    (lambda T: T.RandomRotation(10), Rotation((-10.0, 10.0))),
    (
        lambda T: T.RandomRotation((5, 90), interpolation=Mode.BILINEAR, fill=7),
        Rotation((5.0, 90.0), "bilinear", 7.0),
    ),
    (lambda T: T.RandomRotation(10, fill=(3, 4, 5)), Rotation((-10.0, 10.0), fill=(3.0, 4.0, 5.0))),
    (lambda T: T.RandomRotation(10, fill=[3]), Rotation((-10.0, 10.0), fill=3.0)),
    (lambda T: T.RandomCrop(32, padding=4), RandomCrop((32, 32), (4, 4, 4, 4))),
    (
        lambda T: T.RandomCrop((30, 40), [1, 2, 3, 4], pad_if_needed=True, fill=(9, 8, 7)),
        RandomCrop((30, 40), (1, 2, 3, 4), pad_if_needed=True, fill=(9.0, 8.0, 7.0)),
    ),
    (
        lambda T: T.RandomCrop(8, padding=(1, 2), padding_mode="reflect"),
        RandomCrop((8, 8), (1, 2, 1, 2), mode="reflect"),
    ),
    (lambda T: T.Pad(3, fill=5), Pad((3, 3, 3, 3), 5.0)),
    (lambda T: T.Pad((1, 2, 3, 4), padding_mode="edge"), Pad((1, 2, 3, 4), mode="edge")),
    (lambda T: T.RandomAffine(10), RandomAffine((-10.0, 10.0))),
    (
        lambda T: T.RandomAffine(
            (1, 2), (0.1, 0.2), (0.5, 2), shear=5, interpolation=Mode.BILINEAR, fill=(1, 2, 3), center=(4, 5)
        ),
        RandomAffine(
            (1.0, 2.0), (0.1, 0.2), (0.5, 2.0), (-5.0, 5.0, 0.0, 0.0), "bilinear", (1.0, 2.0, 3.0), (4.0, 5.0)
        ),
    ),
    (lambda T: T.RandomAffine(0, shear=(1, 2, 3, 4)), RandomAffine((0.0, 0.0), shear=(1.0, 2.0, 3.0, 4.0))),
    (lambda T: T.Normalize(MEAN, STD), Normalize(MEAN, STD)),
    (lambda T: T.Normalize([0.5], [0.25]), Normalize((0.5,), (0.25,))),
]


@BOTH
@pytest.mark.parametrize(("make", "op"), SAME_IN_BOTH)
def test_each_transform(T: Any, make: Any, op: Op) -> None:
    """Each supported transform of v1 and v2 becomes its op with all its settings."""
    assert lower(make(T)) == Recipe((op,))


@pytest.mark.parametrize(
    ("transform", "ops"),
    [
        (None, ()),
        (v1.ToTensor(), (ToFloat("float32", scale=True),)),
        (v2.ToImage(), ()),
        (v1.PILToTensor(), ()),
        (v2.Compose([v2.PILToTensor(), v2.ToPureTensor()]), ()),
        (v1.ConvertImageDtype(torch.float16), (ToFloat("float16", scale=True),)),
        (v2.ConvertImageDtype(), (ToFloat("float32", scale=True),)),
        (v2.ToDtype(torch.float32, scale=True), (ToFloat("float32", scale=True),)),
        (v2.ToDtype(torch.float16), (ToFloat("float16", scale=False),)),
        (v2.ToDtype(torch.bfloat16, scale=True), (ToFloat("bfloat16", scale=True),)),
        (v2.ToDtype(torch.uint8, scale=True), (ToFloat("uint8", scale=True),)),
        (v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True), (ToFloat("float32"),)),
        (v2.RandomRotation(9, fill={tv_tensors.Image: 3, "others": 0}), (Rotation((-9.0, 9.0), fill=3.0, masks=0.0),)),
        (v2.ToDtype({"others": torch.float16}, scale=True), (ToFloat("float16"),)),
        (v1.Normalize(0.5, 0.25), (Normalize((0.5,), (0.25,)),)),
        (v1.Normalize(torch.tensor([0.5, 0.25, 1.0]), np.array([1.0])), (Normalize((0.5, 0.25, 1.0), (1.0,)),)),
    ],
)
def test_what_only_one_of_them_has(transform: Any, ops: tuple[Op, ...]) -> None:
    """Conversions lower to dtypes; ToImage and no transform at all lower to nothing; mean and std may be arrays."""
    assert lower(transform) == Recipe(ops)


@BOTH
def test_nested_compose(T: Any) -> None:
    """A Compose of Composes is one recipe in the order of application."""
    inner = T.Compose([T.CenterCrop(224), T.Compose([T.RandomVerticalFlip(), v1.ToTensor()])])
    recipe = lower(T.Compose([T.Resize(256), inner, T.Normalize(MEAN, STD)]))
    assert recipe.ops == (Resize(256), CenterCrop((224, 224)), Flip("y"), ToFloat(), Normalize(MEAN, STD))


# Made from either module: the transform, its name, the rule, and what was found.
REFUSED: list[tuple[Any, str, str, str]] = [
    (lambda T: T.Resize(9, interpolation=Mode.LANCZOS), "Resize", "interpolation must be BILINEAR, BICUBIC", "lanczos"),
    (lambda T: T.Resize(9, interpolation=Mode.NEAREST), "Resize", "or NEAREST_EXACT", "'nearest'"),
    (lambda T: T.RandomResizedCrop(9, interpolation=Mode.BOX), "RandomResizedCrop", "interpolation must be", "box"),
    (lambda T: T.Resize(10, max_size=10), "Resize", "max_size must be larger than size", "10"),
    (lambda T: T.Resize((10, 20), max_size=50), "Resize", "max_size needs an int size", "50"),
    (lambda T: T.CenterCrop(0), "CenterCrop", "two positive ints", "(0, 0)"),
    (lambda T: T.RandomResizedCrop(9, ratio=(0, 1)), "RandomResizedCrop", "ratio must be (low, high)", "(0.0, 1.0)"),
    (lambda T: T.RandomRotation(10, expand=True), "RandomRotation", "expand must be False", "True"),
    (lambda T: T.RandomRotation(10, center=(1, 2)), "RandomRotation", "center must be None", "(1, 2)"),
    (lambda T: T.RandomRotation(10, fill=(1, 2)), "RandomRotation", "fill must be one number", "(1, 2)"),
    (lambda T: T.RandomAffine(10, interpolation=Mode.BICUBIC), "RandomAffine", "NEAREST or BILINEAR", "bicubic"),
    (lambda T: T.RandomAffine(0, shear=(0, 120)), "RandomAffine", "shear must be (low, high)", "120"),
    (lambda T: T.Pad(-1), "Pad", "four ints of at least 0", "-1"),
    (lambda T: T.RandomRotation(9, interpolation=Mode.BICUBIC), "RandomRotation", "NEAREST or BILINEAR", "bicubic"),
    (lambda T: T.Normalize([0.5], [0.0]), "Normalize", "std must be positive", "(0.0,)"),
    (lambda T: T.Normalize([float("nan")], [1.0]), "Normalize", "must be numbers", "nan"),
    (lambda T: T.Normalize([0.5] * 4, [0.5] * 4), "Normalize", "one value per channel", "0.5"),
]


@BOTH
@pytest.mark.parametrize(("make", "name", "rule", "found"), REFUSED)
def test_settings_refused(T: Any, make: Any, name: str, rule: str, found: str) -> None:
    """A setting that cannot be kept is an error with the transform's name, the rule and the value."""
    with pytest.raises(TransformError, match=rf"^{name}: .*{re.escape(rule)}.*; found .*{re.escape(found)}"):
        lower(make(T))


@pytest.mark.parametrize(
    ("transform", "told"),
    [
        (v1.RandomHorizontalFlip(p=2), "RandomHorizontalFlip: p must lie in 0..1; found 2.0"),
        (v1.RandomVerticalFlip(p=-1), "RandomVerticalFlip: p must lie in 0..1; found -1.0"),
        (v2.Resize(None, max_size=50), "Resize: size must be given; max_size alone is not supported; found None"),
        (v2.ToDtype(torch.int64), "ToDtype: dtype must be one of torch.uint8, "),
        (v2.ToDtype({tv_tensors.Mask: torch.float32}), "ToDtype: dtype must be one of torch.uint8, "),
        (v2.RandomRotation(9, fill={tv_tensors.Image: (1, 2), "others": 0}), "RandomRotation: fill must be one number"),
    ],
)
def test_settings_refused_of_one(transform: Any, told: str) -> None:
    """So are settings that only one of the two modules lets through."""
    with pytest.raises(TransformError, match=re.escape(told)):
        lower(transform)


class Resize2(v2.Resize):  # type: ignore[misc]
    """A user's own subclass: its behaviour is not known here."""


def named_like(name: str) -> object:
    """An object of a class of this name that is not torchvision's."""
    attributes = {"size": 10, "max_size": None, "interpolation": "bilinear", "transforms": [v2.Resize(3)], "p": 0.5}
    return type(name, (), attributes)()


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (v1.FiveCrop(3), "torchvision.transforms.FiveCrop"),
        (v1.Lambda(lambda x: x), "torchvision.transforms.Lambda"),
        (v2.LinearTransformation(torch.eye(3), torch.zeros(3)), "torchvision.transforms.v2.LinearTransformation"),
        (v2.RandomApply([v2.Lambda(lambda x: x)]), "Lambda"),
        (torch.nn.ReLU(), "torch.nn.ReLU"),
        (torch.nn.Sequential(v2.Resize(3), torch.nn.ReLU()), "torch.nn.ReLU"),
        (Resize2(3), "Resize2"),
        (named_like("Resize"), f"{__name__}.Resize"),
        (named_like("Compose"), f"{__name__}.Compose"),
        (v2.Transform(), "torchvision.transforms.v2.Transform"),
        (lambda x: x, "function"),
        ("Resize", "builtins.str"),
        ([v2.Resize(3)], "builtins.list"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_unsupported_transforms(transform: Any, name: str, nested: bool) -> None:
    """What is not torchvision's, or has no lowering, is named as people import it, with where the others are listed."""
    whole = v1.Compose([v1.Resize(3), transform]) if nested else transform
    with pytest.raises(TransformError, match=rf"^transform: .*{re.escape(name)} is not supported") as error:
        lower(whole)
    assert "docs/transforms.md lists" in str(error.value)
    assert "(images, draws) -> images" in str(error.value)
    assert "._" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("transform", "told"),
    [
        (v1.FiveCrop(3), "The nearest that is: torchvision's CenterCrop."),
        (v2.ScaleJitter((3, 3)), "The nearest that is: torchvision's ColorJitter."),
        (v2.RandomZoomOut(), "The nearest that is: torchvision's RandomCrop."),
        (v2.RandomHorizontalFlip, "torchvision.transforms.v2.RandomHorizontalFlip is a class, not a transform; write"),
        (
            ResNet18_Weights.DEFAULT,
            "ImageClassification must be called to make a transform; write weights.transforms(), with parentheses",
        ),
        (
            ResNet18_Weights.DEFAULT.transforms,
            "ImageClassification must be called to make a transform; write weights.transforms()",
        ),
        (OpticalFlow(), "torchvision.transforms.OpticalFlow is not supported"),
    ],
)
def test_the_error_names_the_cure(transform: Any, told: str) -> None:
    """The nearest name that is known; that a class, or a weight's partial, is to be called."""
    with pytest.raises(TransformError, match=re.escape(told)):
        lower(v1.Compose([transform]))


@pytest.mark.parametrize(
    ("transform", "ops"),
    [
        (v2.Identity(), ()),
        (torch.nn.Identity(), ()),
        (v2.RGB(), ()),
        (v2.Compose([v2.Identity(), v2.RGB(), v1.ToTensor()]), (ToFloat(),)),
        (v2.GaussianNoise(0.1, 0.2, clip=False), (GaussianNoise(0.1, 0.2, clip=False),)),
        (v2.RandomErasing(0.3, value="random"), (NoisyErasing(0.3),)),
        (v1.RandomErasing(0.3, value="random"), (NoisyErasing(0.3),)),
        (
            ResNet18_Weights.IMAGENET1K_V1.transforms(),
            (Resize(256), CenterCrop((224, 224)), ToFloat(), Normalize(MEAN, STD)),
        ),
        (
            DeepLabV3_ResNet50_Weights.DEFAULT.transforms(),
            (Resize(520), ToFloat(), Normalize(MEAN, STD)),
        ),
        (FasterRCNN_ResNet50_FPN_Weights.DEFAULT.transforms(), (ToFloat(),)),
    ],
)
def test_what_torchvision_names_as_a_whole(transform: Any, ops: tuple[Op, ...]) -> None:
    """The presets of weights are their ops; what leaves a decoded image as it is is none."""
    assert lower(transform) == Recipe(ops)


def test_the_presets_of_all_weights_for_classes_lower() -> None:
    """Whatever torchvision registers for classification on images, among them bicubic ones and other sizes."""
    names = [name for name in list_models(module=torchvision.models) if "quantized" not in name]
    found = [weight for name in names for weight in get_model_weights(name)]
    assert len(found) > 90
    for weight in found:
        assert isinstance(lower(weight.transforms()).ops[-1], Normalize)


@pytest.mark.parametrize("region_decode", [True, False])
@pytest.mark.parametrize(
    ("transforms", "told"),
    [
        ([v2.Normalize(MEAN, STD)], "Normalize: needs float pixels; found uint8"),
        ([v2.Normalize(MEAN, STD), v2.ToDtype(torch.float32, scale=True)], "Normalize: needs float pixels"),
        ([v1.ToTensor(), v2.Normalize(MEAN, STD), v2.Resize(9)], "Resize: .* before Normalize"),
        ([v1.ToTensor(), v2.Normalize(MEAN, STD), v2.CenterCrop(9)], "CenterCrop: .* before Normalize"),
        ([v1.ToTensor(), v2.Normalize(MEAN, STD), v2.RandomResizedCrop(9)], "RandomResizedCrop: .* before Normalize"),
        ([v1.ToTensor(), v2.Normalize(MEAN, STD), v2.RandomRotation(9)], "RandomRotation: .* before Normalize"),
        ([v1.ToTensor(), v2.Normalize(MEAN, STD), v2.ColorJitter(0.1)], "ColorJitter: .* before Normalize"),
        ([v1.ToTensor(), v2.ToDtype(torch.uint8, scale=True)], "ToDtype: float32 pixels cannot become uint8 again"),
    ],
)
def test_orders_without_meaning(transforms: list[Any], told: str, region_decode: bool) -> None:
    """Normalize of uint8, resampling or colour behind Normalize, and going back to uint8 are refused by name."""
    with pytest.raises(TransformError, match=told):
        compile_dali(lower(v1.Compose(transforms)), region_decode=region_decode)
