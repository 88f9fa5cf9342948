"""torchvision transforms, v1 and v2, lowered to a recipe; timm's with them.

Transforms are known by class name and module, so torchvision is never imported here: who has a transform
has it. What cannot be lowered is an error that names it; nothing is left out in silence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from dali_feed.transforms.aug_mix import AugMix
from dali_feed.transforms.auto_augment import AutoAugment
from dali_feed.transforms.autocontrast import RandomAutocontrast
from dali_feed.transforms.effects import Grayscale, RandomGrayscale
from dali_feed.transforms.equalize import RandomEqualize
from dali_feed.transforms.fields import (
    antialias_of,
    edges_of,
    fail,
    fill_of,
    interpolation_of,
    numbers,
    pair,
    turning,
)
from dali_feed.transforms.gaussian_blur import GaussianBlur
from dali_feed.transforms.invert import RandomInvert
from dali_feed.transforms.noise import GaussianNoise
from dali_feed.transforms.noisy_erasing import either
from dali_feed.transforms.perspective import RandomPerspective
from dali_feed.transforms.posterize import RandomPosterize
from dali_feed.transforms.rand_augment import RandAugment
from dali_feed.transforms.recipe import (
    Branches,
    CenterCrop,
    ColorJitter,
    Flip,
    Normalize,
    Op,
    Pad,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomOrder,
    RandomResizedCrop,
    Recipe,
    Resize,
    Rotation,
    ToFloat,
)
from dali_feed.transforms.rules import DType, Interpolation
from dali_feed.transforms.sharpness import RandomAdjustSharpness
from dali_feed.transforms.solarize import RandomSolarize
from dali_feed.transforms.timm import TIMM, is_timm
from dali_feed.transforms.trivial_augment import TrivialAugmentWide
from dali_feed.transforms.unknown import unknown
from dali_feed.transforms.wrappers import Chain, taken_apart

__all__ = ["SUPPORTED", "Beyond", "flatten", "is_theirs", "is_torchvision", "lower"]

_DTYPES: dict[str, DType] = {
    "torch.uint8": "uint8",
    "torch.float32": "float32",
    "torch.float16": "float16",
    "torch.bfloat16": "bfloat16",
}


def _resize(t: Any) -> Op:
    size: Any = t.size
    if size is None:
        raise fail(t, "size must be given; max_size alone is not supported", size)
    if not isinstance(size, int):
        size = int(size[0]) if len(size) == 1 else pair(t, size)
    return Resize(size, t.max_size, interpolation_of(t), antialias_of(t))


def _random_resized_crop(t: Any) -> Op:
    (s0, s1), (r0, r1) = t.scale, t.ratio
    size = pair(t, t.size)
    return RandomResizedCrop(size, (float(s0), float(s1)), (float(r0), float(r1)), interpolation_of(t), antialias_of(t))


def _color_jitter(t: Any) -> Op:
    pairs = {name: getattr(t, name) for name in ("brightness", "contrast", "saturation", "hue")}
    return ColorJitter(**{name: None if v is None else (float(v[0]), float(v[1])) for name, v in pairs.items()})


def _rotation(t: Any) -> Op:
    if t.expand:
        raise fail(t, "expand must be False: all images of a batch have one size", t.expand)
    if t.center is not None:
        raise fail(t, "center must be None, the middle of the image", t.center)
    low, high = t.degrees
    return Rotation((float(low), float(high)), turning(t), fill_of(t))


def _affine(t: Any) -> Op:
    pairs = {name: tuple(map(float, getattr(t, name) or ())) for name in ("degrees", "translate", "scale", "shear")}
    (low, high), shear = pairs["degrees"], pairs["shear"] + (0.0,) * (4 - len(pairs["shear"]))
    return RandomAffine(
        (low, high),
        pairs["translate"] or (0.0, 0.0),  # type: ignore[arg-type]
        pairs["scale"] or (1.0, 1.0),  # type: ignore[arg-type]
        shear,  # type: ignore[arg-type]
        turning(t),
        fill_of(t),
        None if t.center is None else (float(t.center[0]), float(t.center[1])),
    )


def _random_crop(t: Any) -> Op:
    edges = edges_of(t, swapped=type(t).__module__.startswith("torchvision.transforms.v2"))
    return RandomCrop(pair(t, t.size), edges, bool(t.pad_if_needed), fill_of(t), t.padding_mode)


def _convert_dtype(t: Any) -> Op:
    return _dtype(t, t.dtype, scale=True)


def _to_dtype(t: Any) -> Op:
    dtype = t.dtype
    if isinstance(dtype, dict):
        known = {getattr(k, "__name__", str(k)): v for k, v in dtype.items()}
        dtype = known.get("Image", known.get("Tensor", known.get("others")))
    return _dtype(t, dtype, scale=bool(t.scale))


def _dtype(t: Any, dtype: object, *, scale: bool) -> Op:
    name = str(dtype)
    if name not in _DTYPES:
        raise fail(t, f"dtype must be one of {', '.join(_DTYPES)}", name)
    return ToFloat(_DTYPES[name], scale)


def _to_image(_: Any) -> Op | None:
    return None  # what a decoder gives is an image already


def _to_tensor(_: Any) -> Op:
    return ToFloat("float32", scale=True)


def _normalize(t: Any) -> Op:
    mean, std = numbers(t.mean), numbers(t.std)
    if any(math.isnan(x) for x in mean + std):
        raise fail(t, "mean and std must be numbers", (mean, std))
    return Normalize(mean, std)


def _grayscale(t: Any) -> Op:
    if t.num_output_channels != 3:
        rule = "num_output_channels must be 3, or 1 in a DataLoader and outside of RandomApply and its kind"
        raise fail(t, rule, t.num_output_channels)
    return Grayscale()


def _rgb(_: Any) -> Op | None:
    return None  # as images are decoded, gray ones too


def _resized(t: Any) -> Op:
    """Of a preset."""
    return Resize(int(t.resize_size[0]) if len(t.resize_size) == 1 else pair(t, t.resize_size), None, *_how(t))


def _how(t: Any) -> tuple[Interpolation, bool]:
    return interpolation_of(t), antialias_of(t)


def _floats(t: Any) -> tuple[Op, ...]:
    return ToFloat("float32", scale=True), _normalize(t)


def _random_apply(t: Any, branches: Branches) -> Op:
    return RandomApply(sum(branches, ()), float(t.p))


def _random_choice(t: Any, branches: Branches) -> Op:
    return RandomChoice(branches, () if t.p is None else tuple(map(float, t.p)))


_LOWER: dict[str, Callable[[Any], Op | None]] = {
    "AugMix": AugMix.of,
    "AutoAugment": AutoAugment.of,
    "CenterCrop": lambda t: CenterCrop(pair(t, t.size)),
    "ColorJitter": _color_jitter,
    "ConvertImageDtype": _convert_dtype,
    "GaussianBlur": GaussianBlur.of,
    "GaussianNoise": GaussianNoise.of,
    "Grayscale": _grayscale,
    "Normalize": _normalize,
    "PILToTensor": _to_image,
    "RGB": _rgb,
    "Pad": lambda t: Pad(edges_of(t, swapped=False), fill_of(t), t.padding_mode),
    "RandAugment": RandAugment.of,
    "RandomAdjustSharpness": RandomAdjustSharpness.of,
    "RandomAffine": _affine,
    "RandomAutocontrast": RandomAutocontrast.of,
    "RandomCrop": _random_crop,
    "RandomEqualize": RandomEqualize.of,
    "RandomErasing": either,
    "RandomGrayscale": lambda t: RandomGrayscale(float(t.p)),
    "RandomHorizontalFlip": lambda t: Flip("x", float(t.p)),
    "RandomInvert": RandomInvert.of,
    "RandomPerspective": RandomPerspective.of,
    "RandomPosterize": RandomPosterize.of,
    "RandomResizedCrop": _random_resized_crop,
    "RandomRotation": _rotation,
    "RandomSolarize": RandomSolarize.of,
    "RandomVerticalFlip": lambda t: Flip("y", float(t.p)),
    "Resize": _resize,
    "ToDtype": _to_dtype,
    "ToImage": _to_image,
    "ToPureTensor": _to_image,
    "ToTensor": _to_tensor,
    "TrivialAugmentWide": TrivialAugmentWide.of,
}

_NESTS: dict[str, Callable[[Any, Branches], Op]] = {
    "RandomApply": _random_apply,
    "RandomChoice": _random_choice,
    "RandomOrder": lambda _, branches: RandomOrder(branches),
}
_PRESETS: dict[str, Callable[[Any], tuple[Op, ...]]] = {  # what weights.transforms() gives
    "ImageClassification": lambda t: (_resized(t), CenterCrop(pair(t, t.crop_size)), *_floats(t)),
    "ObjectDetection": lambda _: (ToFloat("float32", scale=True),),
    "SemanticSegmentation": lambda t: (*(() if t.resize_size is None else (_resized(t),)), *_floats(t)),
}

SUPPORTED = ("Compose", "Identity", *sorted([*_LOWER, *_NESTS, *_PRESETS]))

Beyond = Callable[[Any, tuple[Op, ...]], Op | None]


def is_torchvision(transform: object) -> bool:
    """Whether it is of a class of torchvision's own."""
    return f"{type(transform).__module__}.".startswith("torchvision.transforms.")


def is_theirs(transform: object) -> bool:
    """Whether it is of a class of torchvision's or timm's."""
    return is_torchvision(transform) or is_timm(transform)


def flatten(transform: Any) -> Iterable[Any]:
    """A Compose, torch's Sequential or an object that only holds some, and those in it, as what they are made of.

    What leaves an image as it is is left out.
    """
    name, module = type(transform).__name__, type(transform).__module__
    ours, torchs = is_torchvision(transform), module.startswith("torch.nn.")
    inner: Iterable[Any]
    if name == "Compose" and ours:
        inner = transform.transforms
    elif name == "Sequential" and torchs:
        inner = transform
    elif name == "Identity" and (ours or torchs):
        return
    elif isinstance(transform, Chain):
        inner = transform.transforms
    else:
        apart = None if ours or torchs or is_timm(transform) else taken_apart(transform)
        if not isinstance(apart, Chain):
            yield transform
            return
        inner = apart.transforms
    for each in inner:
        yield from flatten(each)


def lower(transform: Any, beyond: Beyond | None = None) -> Recipe:
    """The recipe of a torchvision transform, a Compose of them, or None (pixels as decoded); a recipe is its own.

    `beyond` is asked first of each transform, with the ops before it: it gives an op, or None to leave it to what is
    known here.

    Raises TransformError for a transform, or a setting of one, that has no lowering.
    """
    if isinstance(transform, Recipe):
        return transform
    return Recipe() if transform is None else Recipe(_ops(transform, beyond))


def _ops(transform: Any, beyond: Beyond | None, before: tuple[Op, ...] = ()) -> tuple[Op, ...]:
    ops: list[Op] = []
    for one in flatten(transform):
        so_far = (*before, *ops)
        found = None if beyond is None else beyond(one, so_far)
        ops += (found,) if found is not None else _known(one, beyond, so_far)
    return tuple(ops)


def _known(one: Any, beyond: Beyond | None, before: tuple[Op, ...]) -> tuple[Op, ...]:
    name, found = type(one).__name__, None
    if is_torchvision(one) and name in _NESTS:
        return (_NESTS[name](one, tuple(_ops(inner, beyond, before) for inner in one.transforms)),)
    if is_torchvision(one) and name in _PRESETS:
        return _PRESETS[name](one)
    table = _LOWER if is_torchvision(one) else TIMM if is_timm(one) else {}
    if name not in table:
        raise unknown(one, SUPPORTED)
    found = table[name](one)
    return () if found is None else (found,)
