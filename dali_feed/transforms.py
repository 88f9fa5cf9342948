"""torchvision transforms, v1 and v2, lowered to a recipe.

Transforms are known by class name and module, so torchvision is never imported here: who has a transform
has it. What cannot be lowered is an error that names it; nothing is left out in silence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from dali_feed.errors import TransformError
from dali_feed.recipe import (
    CenterCrop,
    ColorJitter,
    DType,
    Edges,
    Fill,
    Flip,
    Interpolation,
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
from dali_feed.recipe_auto import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from dali_feed.recipe_effects import (
    GaussianBlur,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomPerspective,
    RandomPosterize,
    RandomSolarize,
)

__all__ = ["SUPPORTED", "flatten", "is_torchvision", "lower"]

_DTYPES: dict[str, DType] = {
    "torch.uint8": "uint8",
    "torch.float32": "float32",
    "torch.float16": "float16",
    "torch.bfloat16": "bfloat16",
}


def _fail(transform: object, rule: str, found: object) -> TransformError:
    return TransformError(f"{type(transform).__name__}: {rule}; found {found!r}")


def _pair(t: Any, size: Any) -> tuple[int, int]:
    numbers = [size, size] if isinstance(size, int) else list(size)
    if len(numbers) == 1:
        numbers *= 2
    if len(numbers) != 2:
        raise _fail(t, "size must be an int or (height, width)", size)
    return int(numbers[0]), int(numbers[1])


def _interpolation(t: Any) -> Interpolation:
    mode = str(getattr(t.interpolation, "value", t.interpolation))
    if mode not in ("bilinear", "bicubic", "nearest-exact"):
        raise _fail(t, "interpolation must be BILINEAR, BICUBIC or NEAREST_EXACT", mode)
    return mode  # type: ignore[return-value]


def _antialias(t: Any) -> bool:
    return bool(getattr(t, "antialias", True))


def _resize(t: Any) -> Op:
    size: Any = t.size
    if size is None:
        raise _fail(t, "size must be given; max_size alone is not supported", size)
    if not isinstance(size, int):
        size = int(size[0]) if len(size) == 1 else _pair(t, size)
    return Resize(size, t.max_size, _interpolation(t), _antialias(t))


def _random_resized_crop(t: Any) -> Op:
    (s0, s1), (r0, r1) = t.scale, t.ratio
    size = _pair(t, t.size)
    return RandomResizedCrop(size, (float(s0), float(s1)), (float(r0), float(r1)), _interpolation(t), _antialias(t))


def _color_jitter(t: Any) -> Op:
    pairs = {name: getattr(t, name) for name in ("brightness", "contrast", "saturation", "hue")}
    return ColorJitter(**{name: None if v is None else (float(v[0]), float(v[1])) for name, v in pairs.items()})


def _rotation(t: Any) -> Op:
    if t.expand:
        raise _fail(t, "expand must be False: all images of a batch have one size", t.expand)
    if t.center is not None:
        raise _fail(t, "center must be None, the middle of the image", t.center)
    low, high = t.degrees
    return Rotation((float(low), float(high)), _turning(t), _fill(t))


def _turning(t: Any) -> Literal["nearest", "bilinear"]:
    mode = str(getattr(t.interpolation, "value", t.interpolation))
    if mode not in ("nearest", "bilinear"):
        raise _fail(t, "interpolation must be NEAREST or BILINEAR", mode)
    return mode  # type: ignore[return-value]


def _affine(t: Any) -> Op:
    pairs = {name: tuple(map(float, getattr(t, name) or ())) for name in ("degrees", "translate", "scale", "shear")}
    (low, high), shear = pairs["degrees"], pairs["shear"] + (0.0,) * (4 - len(pairs["shear"]))
    return RandomAffine(
        (low, high),
        pairs["translate"] or (0.0, 0.0),  # type: ignore[arg-type]
        pairs["scale"] or (1.0, 1.0),  # type: ignore[arg-type]
        shear,  # type: ignore[arg-type]
        _turning(t),
        _fill(t),
        None if t.center is None else (float(t.center[0]), float(t.center[1])),
    )


def _fill(t: Any) -> Fill:
    return _background(t) or 0.0


def _background(t: Any) -> Fill | None:
    fill = t.fill
    if isinstance(fill, dict):
        known = {getattr(k, "__name__", str(k)): v for k, v in fill.items()}
        fill = known.get("Image", known.get("Tensor", known.get("others", 0)))
    numbers = tuple(map(float, fill)) if isinstance(fill, Sequence) and not isinstance(fill, str) else (fill,)
    if len(numbers) not in (1, 3) or not all(n is None or isinstance(n, int | float) for n in numbers):
        raise _fail(t, "fill must be one number, or one for each of three channels", fill)
    if len(numbers) == 3:
        return numbers
    return None if numbers[0] is None else float(numbers[0])


def _edges(t: Any, *, swapped: bool) -> Edges:
    """Left, top, right, bottom. v2.RandomCrop keeps them as left, right, top, bottom."""
    found = t.padding or 0
    edges = [found] if isinstance(found, int) else [int(edge) for edge in found]
    if len(edges) not in (1, 2, 4):
        raise _fail(t, "padding must be an int, or 1, 2 or 4 of them", found)
    if len(edges) == 4:
        a, b, c, d = edges
        return (a, c, b, d) if swapped else (a, b, c, d)
    across, down = edges[0], edges[-1]
    return across, down, across, down


def _random_crop(t: Any) -> Op:
    edges = _edges(t, swapped=type(t).__module__.startswith("torchvision.transforms.v2"))
    return RandomCrop(_pair(t, t.size), edges, bool(t.pad_if_needed), _fill(t), t.padding_mode)


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
        raise _fail(t, f"dtype must be one of {', '.join(_DTYPES)}", name)
    return ToFloat(_DTYPES[name], scale)


def _to_image(_: Any) -> Op | None:
    return None  # what a decoder gives is an image already


def _to_tensor(_: Any) -> Op:
    return ToFloat("float32", scale=True)


def _numbers(values: Any) -> tuple[float, ...]:
    flat = values.tolist() if hasattr(values, "tolist") else values  # tensors, arrays and lone numbers do as well
    return tuple(float(x) for x in flat) if isinstance(flat, Sequence) else (float(flat),)


def _normalize(t: Any) -> Op:
    mean, std = _numbers(t.mean), _numbers(t.std)
    if any(math.isnan(x) for x in mean + std):
        raise _fail(t, "mean and std must be numbers", (mean, std))
    return Normalize(mean, std)


def _grayscale(t: Any) -> Op:
    if t.num_output_channels != 3:
        raise _fail(t, "num_output_channels must be 3: a batch has three channels", t.num_output_channels)
    return Grayscale()


def _gaussian_blur(t: Any) -> Op:
    width, height = map(int, t.kernel_size)
    low, high = t.sigma
    return GaussianBlur((width, height), (float(low), float(high)))


def _erasing(t: Any) -> Op:
    (s0, s1), (r0, r1) = t.scale, t.ratio
    found = "random" if t.value is None else t.value
    numbers = tuple(map(float, found if isinstance(found, Sequence) else (found,))) if found != "random" else ()
    if len(numbers) not in (1, 3):
        raise _fail(t, "value must be one number, or one for each of three channels", found)
    value = numbers if len(numbers) == 3 else numbers[0]
    return RandomErasing(float(t.p), (float(s0), float(s1)), (float(r0), float(r1)), value)


def _perspective(t: Any) -> Op:
    return RandomPerspective(float(t.distortion_scale), float(t.p), _turning(t), _fill(t))


def _branches(t: Any) -> tuple[tuple[Op, ...], ...]:
    return tuple(_ops(inner) for inner in t.transforms)


def _random_apply(t: Any) -> Op:
    return RandomApply(sum(_branches(t), ()), float(t.p))


def _random_choice(t: Any) -> Op:
    return RandomChoice(_branches(t), () if t.p is None else tuple(map(float, t.p)))


def _auto_augment(t: Any) -> Op:
    found = t.policies if hasattr(t, "policies") else t._policies  # v1's name, v2's
    policies = tuple((_part(*first), _part(*second)) for first, second in found)
    return AutoAugment(policies, _turning(t), _background(t))


def _part(name: str, p: float, strength: int | None) -> tuple[str, float, int | None]:
    return str(name), float(p), strength


def _rand_augment(t: Any) -> Op:
    return RandAugment(t.num_ops, t.magnitude, t.num_magnitude_bins, _turning(t), _background(t))


def _trivial_augment(t: Any) -> Op:
    return TrivialAugmentWide(t.num_magnitude_bins, _turning(t), _background(t))


def _aug_mix(t: Any) -> Op:
    width, depth, alpha = t.mixture_width, t.chain_depth, float(t.alpha)
    return AugMix(t.severity, width, depth, alpha, bool(t.all_ops), _turning(t), _background(t))


_LOWER: dict[str, Callable[[Any], Op | None]] = {
    "AugMix": _aug_mix,
    "AutoAugment": _auto_augment,
    "CenterCrop": lambda t: CenterCrop(_pair(t, t.size)),
    "ColorJitter": _color_jitter,
    "ConvertImageDtype": _convert_dtype,
    "GaussianBlur": _gaussian_blur,
    "Grayscale": _grayscale,
    "Normalize": _normalize,
    "PILToTensor": _to_image,
    "Pad": lambda t: Pad(_edges(t, swapped=False), _fill(t), t.padding_mode),
    "RandAugment": _rand_augment,
    "RandomAdjustSharpness": lambda t: RandomAdjustSharpness(float(t.sharpness_factor), float(t.p)),
    "RandomAffine": _affine,
    "RandomApply": _random_apply,
    "RandomAutocontrast": lambda t: RandomAutocontrast(float(t.p)),
    "RandomChoice": _random_choice,
    "RandomCrop": _random_crop,
    "RandomEqualize": lambda t: RandomEqualize(float(t.p)),
    "RandomErasing": _erasing,
    "RandomGrayscale": lambda t: RandomGrayscale(float(t.p)),
    "RandomHorizontalFlip": lambda t: Flip("x", float(t.p)),
    "RandomInvert": lambda t: RandomInvert(float(t.p)),
    "RandomOrder": lambda t: RandomOrder(_branches(t)),
    "RandomPerspective": _perspective,
    "RandomPosterize": lambda t: RandomPosterize(t.bits, float(t.p)),
    "RandomResizedCrop": _random_resized_crop,
    "RandomRotation": _rotation,
    "RandomSolarize": lambda t: RandomSolarize(float(t.threshold), float(t.p)),
    "RandomVerticalFlip": lambda t: Flip("y", float(t.p)),
    "Resize": _resize,
    "ToDtype": _to_dtype,
    "ToImage": _to_image,
    "ToPureTensor": _to_image,
    "ToTensor": _to_tensor,
    "TrivialAugmentWide": _trivial_augment,
}

SUPPORTED = ("Compose", *sorted(_LOWER))


def is_torchvision(transform: object) -> bool:
    """Whether it is of a class of torchvision's own."""
    return f"{type(transform).__module__}.".startswith("torchvision.transforms.")


def flatten(transform: Any) -> Iterable[Any]:
    """A Compose or torch's Sequential, and those in it, as what they are made of."""
    kind = type(transform)
    if kind.__name__ == "Compose" and is_torchvision(transform):
        for inner in transform.transforms:
            yield from flatten(inner)
    elif kind.__name__ == "Sequential" and kind.__module__.startswith("torch.nn."):
        for inner in transform:
            yield from flatten(inner)
    else:
        yield transform


def lower(transform: Any) -> Recipe:
    """The recipe of a torchvision transform, a Compose of them, or None (pixels as decoded).

    Raises TransformError for a transform, or a setting of one, that has no lowering.
    """
    return Recipe() if transform is None else Recipe(_ops(transform))


def _ops(transform: Any) -> tuple[Op, ...]:
    ops: list[Op] = []
    for one in flatten(transform):
        name, module = type(one).__name__, type(one).__module__
        if name not in _LOWER or not is_torchvision(one):
            msg = (
                f"transform: {module}.{name} cannot be lowered; supported are {', '.join(SUPPORTED)} of"
                " torchvision.transforms and torchvision.transforms.v2, behind them Lambda and functions of an image in"
                " a DataLoader, or a DALI graph function (images, draws) -> images"
            )
            raise TransformError(msg)
        op = _LOWER[name](one)
        if op is not None:
            ops.append(op)
    return tuple(ops)
