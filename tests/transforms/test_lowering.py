"""What torchvision's and timm's transforms become, and how a setting, place or object that cannot is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from kit.later import Later
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.models import ResNet18_Weights, get_model_weights, list_models
from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights
from torchvision.models.segmentation import DeepLabV3_ResNet50_Weights
from torchvision.transforms import AutoAugmentPolicy as Policies
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import _presets, v2

from dali_feed.errors import TransformError
from dali_feed.transforms.auto_augment import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from dali_feed.transforms.colour import (
    ColorJitter,
    Grayscale,
    RandomChannelPermutation,
    RandomGrayscale,
    RandomPhotometricDistort,
)
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import CenterCrop, Flip, Pad, RandomCrop
from dali_feed.transforms.erasing import NoisyErasing, RandomErasing
from dali_feed.transforms.filters import GaussianBlur, GaussianNoise
from dali_feed.transforms.lower import NESTS, TIMM, TORCHVISION, lower, maker
from dali_feed.transforms.nest import RandomApply, RandomChoice, RandomOrder
from dali_feed.transforms.op import Op, Recipe, walk
from dali_feed.transforms.pointwise import Pointwise
from dali_feed.transforms.program import outline
from dali_feed.transforms.resize import RandomResizedCrop, Resize
from dali_feed.transforms.warps import RandomAffine, RandomPerspective, Rotation

timm, auto_augment, random_erasing, timm_transforms = (
    Later(f"timm.data{name}") for name in ("", ".auto_augment", ".random_erasing", ".transforms")
)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Made from either module, v1 or v2: the transform, and what it lowers to.
IN_BOTH: list[tuple[Any, Op]] = [
    (
        lambda T: T.RandomResizedCrop((96, 128), scale=(0.2, 0.9), ratio=(0.5, 2.0), interpolation=Mode.BICUBIC),
        RandomResizedCrop((96, 128), (0.2, 0.9), (0.5, 2.0), "bicubic"),
    ),
    (lambda T: T.RandomResizedCrop(8, antialias=False), RandomResizedCrop((8, 8), antialias=False)),
    (lambda T: T.Resize([256]), Resize(256)),
    (lambda T: T.Resize(256, max_size=300), Resize(256, 300)),
    (lambda T: T.Resize(9, interpolation=Mode.BICUBIC, antialias=False), Resize(9, None, "bicubic", antialias=False)),
    (lambda T: T.CenterCrop((5, 7)), CenterCrop((5, 7))),
    (lambda T: T.RandomVerticalFlip(p=0.25), Flip("y", 0.25)),
    (
        lambda T: T.ColorJitter(brightness=0.4, contrast=(0.5, 0.75), saturation=2, hue=0.1),
        ColorJitter((0.6, 1.4), (0.5, 0.75), (0.0, 3.0), (-0.1, 0.1)),
    ),
    (lambda T: T.RandomRotation((5, 90), interpolation=Mode.BILINEAR, fill=7), Rotation((5.0, 90.0), "bilinear", 7.0)),
    (lambda T: T.RandomRotation(10, fill=(3, 4, 5)), Rotation((-10.0, 10.0), fill=(3.0, 4.0, 5.0))),
    (
        lambda T: T.RandomCrop((30, 40), [1, 2, 3, 4], pad_if_needed=True, fill=(9, 8, 7)),
        RandomCrop((30, 40), (1, 2, 3, 4), pad_if_needed=True, fill=(9.0, 8.0, 7.0)),
    ),
    (lambda T: T.RandomCrop(8, (1, 2), padding_mode="reflect"), RandomCrop((8, 8), (1, 2, 1, 2), mode="reflect")),
    (lambda T: T.Pad((1, 2, 3, 4), padding_mode="edge"), Pad((1, 2, 3, 4), mode="edge")),
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
    (lambda T: T.Grayscale(3), Grayscale()),
    (lambda T: T.RandomGrayscale(0.2), RandomGrayscale(0.2)),
    (lambda T: T.GaussianBlur([5, 9], sigma=(0.5, 1)), GaussianBlur((5, 9), (0.5, 1.0))),
    (lambda T: T.RandomInvert(0.25), Pointwise("RandomInvert", 0.25)),
    (lambda T: T.RandomPosterize(4, p=0.25), Pointwise("RandomPosterize", 0.25, 4)),
    (lambda T: T.RandomSolarize(128), Pointwise("RandomSolarize", 0.5, 128.0)),
    (lambda T: T.RandomAdjustSharpness(2, p=1), Pointwise("RandomAdjustSharpness", 1.0, 2.0)),
    (lambda T: T.RandomAutocontrast(), Pointwise("RandomAutocontrast", 0.5)),
    (
        lambda T: T.RandomPerspective(0.25, 0.75, interpolation=Mode.NEAREST, fill=(1, 2, 3)),
        RandomPerspective(0.25, 0.75, "nearest", (1.0, 2.0, 3.0)),
    ),
    (
        lambda T: T.RandomErasing(0.1, [0.1, 0.2], [1, 2], (1, 2, 3)),
        RandomErasing(0.1, (0.1, 0.2), (1.0, 2.0), (1.0, 2.0, 3.0)),
    ),
    (lambda T: T.RandomErasing(value=[7]), RandomErasing(value=7.0)),
    (lambda T: T.RandomErasing(0.3, value="random"), NoisyErasing(0.3)),
    (
        lambda T: T.RandomApply([T.ColorJitter(0.5), T.Compose([T.GaussianBlur(3), T.RandomHorizontalFlip()])], 0.8),
        RandomApply((ColorJitter((0.5, 1.5)), GaussianBlur((3, 3)), Flip("x")), 0.8),
    ),
    (lambda T: T.RandomApply(torch.nn.ModuleList([T.Grayscale(3)])), RandomApply((Grayscale(),), 0.5)),
    (
        lambda T: T.RandomChoice([T.Compose([T.GaussianBlur(3), T.Grayscale(3)]), T.RandomInvert()], p=[0.25, 0.75]),
        RandomChoice(((GaussianBlur((3, 3)), Grayscale()), (Pointwise("RandomInvert"),)), (0.25, 0.75)),
    ),
    (
        lambda T: T.RandomOrder([T.RandomInvert(), T.RandomApply([T.RandomEqualize()])]),
        RandomOrder(((Pointwise("RandomInvert"),), (RandomApply((Pointwise("RandomEqualize"),)),))),
    ),
    (
        lambda T: T.RandAugment(3, 4, 11, interpolation=Mode.BILINEAR, fill=[1, 2, 3]),
        RandAugment(3, 4, 11, "bilinear", (1.0, 2.0, 3.0)),
    ),
    (lambda T: T.TrivialAugmentWide(7, Mode.BILINEAR, fill=[128]), TrivialAugmentWide(7, "bilinear", 128.0)),
    (
        lambda T: T.AugMix(10, 4, 2, 0.5, all_ops=False, interpolation=Mode.NEAREST, fill=[0]),
        AugMix(10, 4, 2, 0.5, all_ops=False, interpolation="nearest", fill=0.0),
    ),
]


@pytest.mark.parametrize(("make", "op"), IN_BOTH)
def test_each_transform(make: Any, op: Op) -> None:
    """Each that v1 and v2 have becomes the same op of both, with all its settings."""
    assert lower(make(v1)) == lower(make(v2)) == Recipe((op,))


@pytest.mark.parametrize(
    ("transform", "ops"),
    [
        (None, ()),
        (v2.Compose([v2.ToImage(), v2.PILToTensor(), v2.ToPureTensor(), v2.Identity(), v2.RGB()]), ()),
        (torch.nn.Identity(), ()),
        (v1.PILToTensor(), ()),
        (v1.ToTensor(), (ToFloat("float32", scale=True),)),
        (v1.ConvertImageDtype(torch.float16), (ToFloat("float16", scale=True),)),
        (v2.ConvertImageDtype(), (ToFloat("float32", scale=True),)),
        (v2.ToDtype(torch.float16), (ToFloat("float16", scale=False),)),
        (v2.ToDtype(torch.bfloat16, scale=True), (ToFloat("bfloat16", scale=True),)),
        (v2.ToDtype(torch.uint8, scale=True), (ToFloat("uint8", scale=True),)),
        (v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True), (ToFloat("float32"),)),
        (v2.ToDtype({"others": torch.float16}, scale=True), (ToFloat("float16"),)),
        (v2.RandomRotation(9, fill={tv_tensors.Image: 3, "others": 0}), (Rotation((-9.0, 9.0), fill=3.0, masks=0.0),)),
        (
            v2.RandAugment(interpolation="bilinear", fill={tv_tensors.Image: 3}),
            (RandAugment(2, 9, 31, "bilinear", 3.0),),
        ),
        (v1.Normalize(0.5, 0.25), (Normalize((0.5,), (0.25,)),)),
        (v1.Normalize(torch.tensor([0.5, 0.25, 1.0]), np.array([1.0])), (Normalize((0.5, 0.25, 1.0), (1.0,)),)),
        (v2.GaussianNoise(0.1, 0.2, clip=False), (GaussianNoise(0.1, 0.2, clip=False),)),
        (v2.RandomApply([v2.RandomChannelPermutation()], 0.25), (RandomApply((RandomChannelPermutation(),), 0.25),)),
        (
            v2.RandomPhotometricDistort([0, 1], (0.1, 0.2), torch.tensor([0.5, 3.0]), (0.25, 0.5), p=1),
            (RandomPhotometricDistort((0.0, 1.0), (0.1, 0.2), (0.5, 3.0), (0.25, 0.5), 1.0),),
        ),
        (v1.RandomChoice([v2.Grayscale(3), v2.ToImage()]), (RandomChoice(((Grayscale(),), ())),)),
        (v2.RandomChoice([v2.Grayscale(3), v2.ToImage()]), (RandomChoice(((Grayscale(),), ()), (0.5, 0.5)),)),
        (
            v1.Compose([v2.Resize(256), v2.Compose([v1.CenterCrop(224), v1.Compose([v1.ToTensor()])])]),
            (Resize(256), CenterCrop((224, 224)), ToFloat()),
        ),
        (
            ResNet18_Weights.IMAGENET1K_V1.transforms(),
            (Resize(256), CenterCrop((224, 224)), ToFloat(), Normalize(MEAN, STD)),
        ),
        (DeepLabV3_ResNet50_Weights.DEFAULT.transforms(), (Resize(520), ToFloat(), Normalize(MEAN, STD))),
        (FasterRCNN_ResNet50_FPN_Weights.DEFAULT.transforms(), (ToFloat(),)),
    ],
)
def test_what_one_of_them_has(transform: Any, ops: tuple[Op, ...]) -> None:
    """Conversions, presets of weights, settings by type; what leaves a decoded image as it is lowers to nothing."""
    assert lower(transform) == Recipe(ops)


def test_timms_conversion_keeps_levels() -> None:
    """To a float type."""
    assert lower(timm_transforms.ToTensor(torch.bfloat16)) == Recipe((ToFloat("bfloat16", scale=False),))


@pytest.mark.parametrize("policy", list(Policies))
def test_policies(policy: Policies) -> None:
    """All 25 policies are taken from the transform, the same ones from v1 and v2, and other policies are others."""
    (op,) = lower(v2.AutoAugment(policy, Mode.BILINEAR, [7])).ops
    assert isinstance(op, AutoAugment)
    assert (len(op.policies), op.interpolation, op.fill) == (25, "bilinear", 7.0)
    assert lower(v1.AutoAugment(policy)) == lower(v2.AutoAugment(policy))
    assert len({lower(v2.AutoAugment(other)) for other in Policies}) == 3
    assert lower(v1.AutoAugment()) == lower(v2.AutoAugment(Policies.IMAGENET))


def test_the_presets_of_all_weights_for_classes_lower() -> None:
    """Whatever torchvision registers for classification on images, among them bicubic ones and other sizes."""
    names = [name for name in list_models(module=torchvision.models) if "quantized" not in name]
    found = [weight for name in names for weight in get_model_weights(name)]
    assert len(found) > 90
    assert all(isinstance(lower(weight.transforms()).ops[-1], Normalize) for weight in found)


NAN, FLOATS, BEHIND = float("nan"), [v1.ToTensor()], [v1.ToTensor(), v2.Normalize(MEAN, STD)]

# How it is made, of either module or by itself; then the message: name, rule, "..." and what was found. Each rule once.
REFUSED: list[tuple[Any, str]] = [
    (
        lambda T: T.Resize(9, interpolation=Mode.LANCZOS),
        "Resize: interpolation must be BILINEAR, BICUBIC ... 'lanczos'",
    ),
    (lambda T: T.Resize(10, max_size=10), "Resize: max_size must be larger than size, the shorter edge; found 10"),
    (lambda T: T.Resize((10, 20), max_size=50), "Resize: max_size needs an int size; found 50"),
    (lambda _: v2.Resize(None, max_size=50), "Resize: size must be given; max_size alone is not supported; found None"),
    (lambda T: T.CenterCrop(0), "CenterCrop: size must be two positive ints (height, width); found (0, 0)"),
    (
        lambda T: T.RandomResizedCrop(9, ratio=(0, 1)),
        "RandomResizedCrop: ratio must be (low, high) ... (0.0, 1.0)",
    ),
    (lambda _: RandomResizedCrop((5, 5), (0.5, 0.1)), "RandomResizedCrop: scale must be (low, high) ... (0.5, 0.1)"),
    (lambda _: RandomResizedCrop((5, 5), (NAN, 1)), "RandomResizedCrop: scale must be (low, high) ... (nan, 1)"),
    (lambda _: v1.RandomHorizontalFlip(p=2), "RandomHorizontalFlip: p must lie in 0..1; found 2.0"),
    (lambda _: v1.RandomVerticalFlip(p=-1), "RandomVerticalFlip: p must lie in 0..1; found -1.0"),
    (lambda _: ColorJitter(hue=(-0.6, 0)), "ColorJitter: hue must be (low, high) with -0.5 <= ... (-0.6, 0)"),
    (lambda T: T.RandomRotation(10, center=(1, 2)), "RandomRotation: center must be None, ... found (1, 2)"),
    (lambda T: T.RandomRotation(10, fill=(1, 2)), "RandomRotation: fill must be one number, or one for ... (1, 2)"),
    (lambda T: T.RandomRotation(9, interpolation=Mode.BICUBIC), "RandomRotation: interpolation ... found 'bicubic'"),
    (lambda _: v2.RandomRotation(9, fill={tv_tensors.Image: (1, 2), "others": 0}), "RandomRotation: fill must be one"),
    (lambda T: T.RandomAffine(0, shear=(0, 120)), "RandomAffine: shear must be (low, high) ... 120"),
    (lambda T: T.Pad(-1), "Pad: padding must be four ints of at least 0 ... -1"),
    (lambda T: T.Normalize([0.5], [0.0]), "Normalize: std must be positive; found (0.0,)"),
    (lambda T: T.Normalize([NAN], [1.0]), "Normalize: mean and std must be numbers; found ((nan,)"),
    (lambda T: T.Normalize([0.5] * 4, [0.5] * 4), "Normalize: mean and std need one value per channel (3); found"),
    (lambda _: v2.ToDtype(torch.int64), "ToDtype: dtype must be one of torch.uint8, "),
    (lambda _: v2.ToDtype({tv_tensors.Mask: torch.float32}), "ToDtype: dtype must be one of torch.uint8, "),
    (lambda _: timm_transforms.ToTensor(torch.int64), "ToTensor: dtype must be uint8, float32, float16 or bfloat16"),
    (lambda T: T.Grayscale(), "Grayscale: num_output_channels must be 3, or 1 in a DataLoader ... found 1"),
    (lambda T: T.RandomErasing(value=(1, 2)), "RandomErasing: value must be one number, or one for each of three"),
    (lambda T: T.RandomErasing(ratio=(0, 1)), "RandomErasing: ratio must be (low, high) with ... found (0.0, 1.0)"),
    (lambda T: T.RandomPosterize(9), "RandomPosterize: bits must be an int in 0..8; found 9"),
    (lambda T: T.RandomPosterize(2.0), "RandomPosterize: bits must be an int in 0..8; found 2.0"),
    (lambda T: T.RandomSolarize(NAN), "RandomSolarize: threshold must be a number; found nan"),
    (lambda T: T.RandomAdjustSharpness(-1), "RandomAdjustSharpness: sharpness_factor must be at least 0; found -1.0"),
    (lambda _: v1.RandomInvert(1.5), "RandomInvert: p must lie in 0..1; found 1.5"),
    (lambda _: GaussianBlur((4, 3)), "GaussianBlur: kernel_size must be two odd positive ints"),
    (lambda _: v2.GaussianNoise(sigma=-1), "GaussianNoise: sigma must be at least 0; found -1"),
    (
        lambda T: T.RandomApply([T.Resize(9)]),
        "RandomApply: must not hold a transform that changes ... Resize(size=9",
    ),
    (lambda T: T.RandomOrder([v2.ToDtype(torch.float32)]), "RandomOrder: must not hold a transform ... ToFloat"),
    (lambda T: T.RandomApply([T.Normalize(MEAN, STD)]), "RandomApply: must not hold a transform ... Normalize"),
    (lambda _: RandomChoice(()), "RandomChoice: needs at least one transform"),
    (lambda _: RandomChoice(((Grayscale(),),), (1.0, 2.0)), "RandomChoice: p needs one number for each"),
    (lambda _: RandomChoice(((Grayscale(),),), (0.0,)), "RandomChoice: p must be numbers of at least 0, not all 0"),
    (lambda _: v2.RandomPhotometricDistort(0.5), "RandomPhotometricDistort: brightness must be (low, high); found 0.5"),
    (lambda _: v2.RandomPhotometricDistort((0.0, float("inf"))), "RandomPhotometricDistort: ... two finite numbers"),
    (lambda T: T.AutoAugment(fill=[1, 2]), "AutoAugment: fill must be one number, or one for each of three channels"),
    (lambda T: T.RandAugment(17), "RandAugment: num_ops must be an int in 0..16; found 17"),
    (lambda T: T.RandAugment(magnitude=31), "RandAugment: magnitude must be an int in 0..30; found 31"),
    (lambda T: T.TrivialAugmentWide(1), "TrivialAugmentWide: num_magnitude_bins must be an int of at least 2; found 1"),
    (lambda T: T.AugMix(chain_depth=9), "AugMix: chain_depth must be an int of at most 8; found 9"),
    (lambda T: T.AugMix(alpha=0), "AugMix: alpha must be a number above 0; found 0.0"),
    (lambda _: timm_transforms.CenterCropOrPad((3, 3), padding_mode="odd"), "CropOrPad: padding_mode must be constant"),
    (lambda _: timm_transforms.TrimBorder(-1), "TrimBorder: border_size must be an int of at least 0"),
    (
        lambda _: timm.create_transform(32, is_training=True, interpolation="lanczos"),
        "interpolation must be ... 'lanczos'",
    ),
    (lambda _: timm_transforms.RandomPad((3, 3)), "transform: timm.data.RandomPad is not supported"),
    # Places: behind or before what a transform can take.
    (lambda T: T.Compose([T.Normalize(MEAN, STD), v1.ToTensor()]), "Normalize: needs float pixels; found uint8. Put"),
    (lambda T: T.Compose([*BEHIND, T.Resize(9)]), "Resize: must stand before Normalize"),
    (lambda T: T.Compose([*BEHIND, T.ColorJitter(0.1)]), "ColorJitter: must stand before Normalize"),
    (lambda T: T.Compose([*BEHIND, T.RandomApply([T.RandomInvert()])]), "RandomInvert: must stand before Normalize"),
    (lambda T: T.Compose([*FLOATS, v2.ToDtype(torch.uint8)]), "ToDtype: float32 pixels cannot become uint8 again"),
    (lambda T: T.RandomApply([T.RandomSolarize(256)]), "RandomSolarize: threshold must be at most 255, the largest of"),
    (lambda T: T.Compose([*FLOATS, T.RandomSolarize(128)]), "RandomSolarize: threshold must be at most 1, the largest"),
    (lambda T: T.RandomErasing(value=256), "RandomErasing: value must lie in 0..255 where pixels are uint8; found 256"),
    (lambda T: T.Compose([*FLOATS, T.RandomApply([T.AugMix()])]), "AugMix: must have uint8 pixels"),
    (lambda T: T.RandomErasing(value="random"), "RandomErasing: needs float pixels where its value is random"),
    (
        lambda _: v2.Compose([*FLOATS, auto_augment.rand_augment_transform("rand-m9", {})]),
        "RandAugment: must have uint8 pixels, as the original does; found float32. Put it before",
    ),
    # More than there are numbers for; random streams are counted by them.
    (lambda _: RandomApply((Grayscale(),) * 64), "RandomApply: must have fewer than 64 parts and lie in fewer"),
    (lambda _: RandomApply((RandomApply((RandomApply((RandomApply((Grayscale(),)),)),)),)), "lie in fewer than 3"),
    (lambda _: AugMix(width=64), "AugMix: must have fewer than 64 parts and lie in fewer than 3 transforms that hold"),
    (lambda _: RandomOrder(((),) * 65), "RandomOrder: takes at most 64 transforms; found 65"),
    (
        lambda T: T.Compose([*[T.RandomInvert()] * 256, T.AugMix()]),
        "AugMix: must be in a list of at most 256 transforms",
    ),
]


def outlined(make: Any, module: Any) -> None:
    """Make it, lower it and look at its places."""
    made = make(module)
    outline(Recipe((made,)) if isinstance(made, Op) else lower(made))


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_what_cannot_be_kept_is_refused(module: Any, make: Any, said: str) -> None:
    """With the transform's name, the rule and what was found, before an image is seen."""
    with pytest.raises(TransformError, match=".*".join(map(re.escape, said.split(" ... ")))):
        outlined(make, module)


def test_what_has_a_place_has_one() -> None:
    """Erasing behind Normalize, alone or in a nest; gray and permuted channels before it; chains as wide as may be."""
    ends = [*BEHIND, v2.RandomErasing(), v2.RandomApply([v2.RandomErasing()])]
    assert outline(lower(v1.Compose([v2.Grayscale(3), v2.RandomChannelPermutation(), *ends]))).dtype == "float32"
    assert outline(Recipe((AugMix(width=63), RandomApply((AugMix(width=63),))))).size is None
    outline(Recipe((RandomOrder((*[(Pointwise("RandomInvert"),)] * 3, *[()] * 61)),)))
    leaf: Op = Grayscale()
    wide = RandomApply((leaf,) * 63)
    deep = RandomApply((RandomApply((wide, wide)), leaf))
    found = [n for n, _ in walk([leaf, deep, wide, CenterCrop((3, 3)), deep])]
    assert len(found) == len(set(found))
    assert max(found) * 16 < 1 << 30


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
        (v2.LinearTransformation(torch.eye(3), torch.zeros(3)), "torchvision.transforms.v2.LinearTransformation"),
        (v2.RandomApply([v2.RandomChoice([v2.Lambda(lambda x: x)])]), "Lambda"),
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
    ("transform", "cure"),
    [
        (v1.FiveCrop(3), "The nearest that is: torchvision's CenterCrop."),
        (v2.RandomHorizontalFlip, "torchvision.transforms.v2.RandomHorizontalFlip is a class, not a transform; write"),
        (ResNet18_Weights.DEFAULT, "must be called to make a transform; write weights.transforms(), with parentheses"),
        (ResNet18_Weights.DEFAULT.transforms, "ImageClassification must be called to make a transform; write weights."),
        (_presets.OpticalFlow(), "torchvision.transforms.OpticalFlow is not supported"),
    ],
)
def test_the_error_names_the_cure(transform: Any, cure: str) -> None:
    """The nearest name that is known; that a class, or a weight's partial, is to be called."""
    with pytest.raises(TransformError, match=re.escape(cure)):
        lower(v1.Compose([transform]))


def test_the_table_leads_somewhere_and_names_their_classes() -> None:
    """Each line to a function of the room, from a class of v1, v2, the presets or timm."""
    assert all(callable(maker(line)) for table in (TORCHVISION, NESTS, TIMM) for line in table.values())
    for names, modules in (
        ((*TORCHVISION, *NESTS), (v1, v2, _presets)),
        (TIMM, (timm_transforms, auto_augment, random_erasing)),
    ):
        assert [name for name in names if not any(hasattr(module, name) for module in modules)] == []
