"""Recipes that both engines and the compilers are tried with."""

from __future__ import annotations

from typing import Any

from torchvision import transforms as v1
from torchvision.transforms import AutoAugmentPolicy as Policies
from torchvision.transforms import v2

from dali_feed.transforms.colour import ColorJitter, Grayscale, RandomGrayscale
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import CenterCrop, Flip, Pad, RandomCrop
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.filters import GaussianBlur
from dali_feed.transforms.op import Op
from dali_feed.transforms.pointwise import Pointwise
from dali_feed.transforms.resize import RandomResizedCrop, Resize
from dali_feed.transforms.warps import RandomAffine, RandomPerspective, Rotation

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOAT = (ToFloat(), Normalize(MEAN, STD))
SMALL = Resize((120, 160), interpolation="nearest-exact")  # exact on both engines

CASES = {
    "nothing": (),
    "evaluation": (Resize(256), CenterCrop((224, 224)), *FLOAT),
    "training": (RandomResizedCrop((224, 224)), Flip("x"), *FLOAT),
    "bicubic": (RandomResizedCrop((96, 80), interpolation="bicubic"), *FLOAT),
    "nearest-exact": (Resize((60, 90), interpolation="nearest-exact"),),
    "without antialias": (Resize((60, 90), antialias=False),),
    "longest edge": (Resize(200, max_size=240),),
    "padding": (CenterCrop((500, 700)), ToFloat()),
    "flip first": (Flip("x"), Flip("y"), RandomResizedCrop((64, 64)), ToFloat()),
    "crop in the middle": (Resize(200), RandomResizedCrop((64, 96)), Flip("y")),
    "jitter": (Resize((90, 120)), ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1))),
    "jitter of floats": (Resize((90, 120)), ToFloat(), ColorJitter((0.6, 1.4), None, (0.6, 1.4), None)),
    "rotation": (Resize((90, 120)), Rotation((-30.0, 30.0), "bilinear", 7.0), *FLOAT),
    "rotation, nearest": (Resize((90, 120)), Rotation((-180.0, 180.0))),
    "rotation, filled with a colour": (Resize((90, 120)), Rotation((-30.0, 30.0), "bilinear", (200.0, 7.0, 90.0))),
    "crop": (RandomCrop((64, 80)), Flip("x"), *FLOAT),
    "crop behind a flip": (Flip("x"), RandomCrop((64, 80))),
    "crop of a resized one": (Resize(100), RandomCrop((90, 96)), ToFloat()),
    "padded crop": (Resize((32, 32)), RandomCrop((32, 32), (4, 4, 4, 4)), Flip("x"), *FLOAT),
    "crop padded with a colour": (Resize(40), RandomCrop((60, 60), (1, 2, 3, 4), True, (3.7, 250.0, 9.0))),
    "crop padded with its edge": (Resize(40), RandomCrop((64, 64), (9, 8, 7, 6), True, mode="edge")),
    "crop padded with its mirror": (Resize((40, 50)), RandomCrop((40, 40), (9, 8, 7, 6), mode="reflect")),
    "crop padded with its edge and mirror": (Resize((9, 9)), RandomCrop((27, 9), (9, 9, 9, 9), mode="symmetric")),
    "padded crop of floats": (Resize((32, 32)), ToFloat(), RandomCrop((32, 32), (4, 4, 4, 4), fill=0.3)),
    "pad": (Resize((30, 40)), Pad((1, 2, 3, 4), 77.0), Pad((5, 0, 0, 5), (1.0, 2.0, 3.0)), *FLOAT),
    "pad with its mirror": (Resize((30, 40)), Pad((29, 0, 10, 7), mode="reflect")),
    "pad to each image's own size": (Pad((3, 3, 3, 3)), Pad((2, 2, 2, 2), mode="edge")),
    "affine": (
        Resize((90, 120)),
        RandomAffine((-30.0, 30.0), (0.1, 0.2), (0.7, 1.4), (-9.0, 9.0, -5.0, 5.0), "bilinear", 7.0),
        *FLOAT,
    ),
    "affine, nearest": (Resize((90, 120)), RandomAffine((-180.0, 180.0), (0.3, 0.0), fill=(1.0, 2.0, 3.0))),
    "affine about a corner": (
        ToFloat(),
        Resize((90, 120)),
        RandomAffine((5.0, 9.0), shear=(9, 9, 0, 0), center=(0, 0)),
    ),
    "resize of floats": (ToFloat(), Resize((60, 90)), Normalize(MEAN, STD)),
    "not scaled": (Resize((60, 90)), ToFloat(scale=False), Normalize((120.0,), (60.0,))),
    "half": (RandomResizedCrop((64, 64)), ToFloat("float16"), Normalize(MEAN, STD)),
    "bfloat16": (RandomResizedCrop((64, 64)), ToFloat("bfloat16"), Normalize(MEAN, STD)),
    "half of float": (Resize((64, 64)), ToFloat(), Normalize(MEAN, STD), ToFloat("float16")),
    "uint8": (Resize((64, 64)), ToFloat("uint8")),
}

# Those that are the same in uint8 and in floats of 0..1, one with the other's settings.
ANY: tuple[Op, ...] = (
    *(
        Grayscale(),
        RandomGrayscale(0.5),
        GaussianBlur((3, 5)),
        Pointwise("RandomInvert"),
        Pointwise("RandomPosterize", setting=4),
    ),
    *(
        Pointwise("RandomSolarize", setting=0.5),
        Pointwise("RandomAdjustSharpness", setting=1.7),
        Pointwise("RandomAutocontrast"),
        Pointwise("RandomEqualize"),
    ),
    *(RandomErasing(0.8, value=1.0), Flip("x"), Flip("y"), Rotation((-30.0, 30.0), "bilinear", 1.0)),
    *(ColorJitter((0.6, 1.4), None, (0.6, 1.4), None), RandomAffine((-9.0, 9.0), (0.1, 0.1))),
    RandomPerspective(0.7, 0.8),
)

MAKERS: dict[str, Any] = {
    "imagenet": v2.AutoAugment,
    "cifar10": lambda: v2.AutoAugment(Policies.CIFAR10, "bilinear"),
    "svhn": lambda: v2.AutoAugment(Policies.SVHN, fill=(1, 200, 3)),
    "rand": v2.RandAugment,
    "rand, bilinear": lambda: v2.RandAugment(3, 9, 10, "bilinear", fill=7),
    "trivial": v2.TrivialAugmentWide,
    "trivial, bilinear": lambda: v2.TrivialAugmentWide(8, "bilinear", fill=(1, 200, 3)),
    "mix": v2.AugMix,
    "mix of five": lambda: v2.AugMix(10, 5, 2, 0.3, all_ops=False, interpolation="nearest", fill=9),
}


def simclr(T: Any) -> Any:
    """The views of SimCLR and its kind, with torchvision's erasing behind them; of v1 or v2."""
    crop, jitter = T.RandomResizedCrop(48, (0.2, 1.0)), T.ColorJitter(0.4, 0.4, 0.2, 0.1)
    blur, gray = T.GaussianBlur(5, (0.1, 2.0)), T.RandomGrayscale(0.2)
    pixels = [crop, T.RandomHorizontalFlip(), T.RandomApply([jitter], 0.8), gray, T.RandomApply([blur], 0.5)]
    floats = [v1.ToTensor(), T.Normalize([0.5], [0.25]), T.RandomErasing(0.5)]
    return T.Compose([*pixels, T.RandomSolarize(128, 0.2), *floats])
