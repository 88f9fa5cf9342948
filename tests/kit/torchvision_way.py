"""One recipe by the host engine, by torchvision's v2 functions on the same draws, and by the DALI engine on the CPU.

AutoAugment and its kind run by torchvision's own v2 classes, which are handed our draws in place of torch's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from kit.engine_runs import each, images_of, result_of
from kit.photographs import decoded, photographs
from torchvision.transforms import v2
from torchvision.transforms.v2 import _auto_augment, functional

from dali_feed.draws import uniforms
from dali_feed.engines.dali.graph import compile_dali
from dali_feed.screen.screen import screen
from dali_feed.transforms.auto_augment import Auto, AutoAugment, RandAugment, TrivialAugmentWide
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
from dali_feed.transforms.nest import Nest
from dali_feed.transforms.op import Effect, Op, Recipe
from dali_feed.transforms.pointwise import Pointwise
from dali_feed.transforms.program import compile_host
from dali_feed.transforms.resize import RandomResizedCrop, Resize, ResizeKeepRatio
from dali_feed.transforms.settings import DRAWN
from dali_feed.transforms.warps import RandomAffine, RandomPerspective, Rotation


class Scripted:
    """torch, with numbers that are given: what `randint` and `rand` are asked for, in turn."""

    def __init__(self, numbers: Iterator[float]) -> None:
        self._numbers = numbers

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def rand(self, size: tuple[int, ...]) -> torch.Tensor:
        """One uniform number."""
        assert size == ()
        return torch.tensor(next(self._numbers), dtype=torch.float64)

    def randint(self, *bounds: int, size: tuple[int, ...] = (), low: int = 0, high: int = 0) -> torch.Tensor:
        """One int below the bound, or from `low` on."""
        most = bounds[0] if bounds else high
        return torch.tensor(low + int(next(self._numbers) * (most - low))).reshape(size)


def replayed(transform: Any, image: torch.Tensor, sample: int, number: int) -> torch.Tensor:
    """What `transform`, standing `number`th in a recipe, makes of the image of a sample, in epoch 0 of seed 0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_auto_augment, "torch", Scripted(_numbers(transform, sample, number)))
        out: torch.Tensor = transform(image)
    return out


def drawn(sample: int, stream: int) -> list[float]:
    """A stream's four numbers."""
    values: list[float] = uniforms(0, 0, np.array([sample]), [stream])[:, 0].astype(np.float64).tolist()
    return values


def _numbers(transform: Any, sample: int, number: int) -> Iterator[float]:
    """Our draws in the order in which torchvision asks for them."""
    first = 16 * number
    match type(transform).__name__:
        case "AutoAugment":
            which, *chances = drawn(sample, first)
            yield which
            policy = transform._policies[int(which * len(transform._policies))]
            for (name, p, _), chance, sign in zip(policy, chances, drawn(sample, first + 1), strict=False):
                yield chance
                if chance < p and transform._AUGMENTATION_SPACE[name][1]:
                    yield sign
        case "RandAugment":
            for k in range(transform.num_ops):
                yield from _step(transform._AUGMENTATION_SPACE, drawn(sample, first + k), strong=False)
        case "TrivialAugmentWide":
            yield from _step(transform._AUGMENTATION_SPACE, drawn(sample, first))
        case "AugMix":
            every, part = transform._AUGMENTATION_SPACE, transform._PARTIAL_AUGMENTATION_SPACE
            for k in range(transform.mixture_width):
                start = 16 * (number + ((k + 1) << (8 if number < 1 << 8 else 14))) + 8  # or in a nest
                depth = transform.chain_depth
                if depth <= 0:
                    chance = drawn(sample, start)[3]
                    yield chance
                    depth = 1 + int(chance * 3)
                for step in range(depth):
                    yield from _step(every if transform.all_ops else part, drawn(sample, start + step))


def _step(space: dict[str, Any], numbers: list[float], *, strong: bool = True) -> Iterator[float]:
    which, bin_, sign, _ = numbers
    yield which
    strengths, signed = list(space.values())[int(which * len(space))]
    if strong and strengths(10, 9, 9) is not None:
        yield bin_
    if signed:
        yield sign


def _own_class(op: Any, weights: Any) -> Any:
    """Torchvision's transform with the op's settings; an AugMix mixes by our weights: of the image, of each chain."""
    how: dict[str, Any] = {"interpolation": op.interpolation, "fill": op.fill}
    match op:
        case AutoAugment():
            transform: Any = v2.AutoAugment(**how)
            transform._policies = op.policies
        case RandAugment():
            transform = v2.RandAugment(op.num_ops, op.magnitude, op.bins, **how)
        case TrivialAugmentWide():
            transform = v2.TrivialAugmentWide(op.bins, **how)
        case _:
            transform = v2.AugMix(op.severity, op.width, op.depth, op.alpha, op.all_ops, **how)
            own, chains = torch.tensor(weights[:1]), torch.tensor(weights[1:])
            answers = iter([torch.stack([own, torch.ones(1)], dim=1), chains[None]])
            transform._sample_dirichlet = lambda _: next(answers)
    return transform


def ran(recipe: Recipe, payloads: Sequence[bytes], ids: Sequence[int]) -> list[torch.Tensor]:
    """The images of all payloads, each a batch of its own, since they may come out in several sizes."""
    return each("host", compile_host(recipe), payloads, ids)


def together(recipe: Recipe, payloads: Sequence[bytes]) -> torch.Tensor:
    """The images of all payloads in one batch, with ids from 0 on."""
    images: torch.Tensor = images_of(result_of("host", compile_host(recipe), payloads))
    return images


def theirs(recipe: Recipe, payloads: Sequence[bytes], ids: Sequence[int]) -> list[torch.Tensor]:
    """The same by torchvision's v2 functions, from its own decoder, op by op on the whole image."""
    made = compile_host(recipe).parameters(
        screen([memoryview(p) for p in payloads]).sizes, np.array(ids, np.int64), 0, 0
    )
    out = []
    for n, payload in enumerate(payloads):
        rows: dict[str, Any] = {name: values[n].tolist() for name, values in made.arrays.items()}
        rows["sample"] = ids[n]
        image: Any = decoded(payload)
        for k, op in enumerate(recipe.ops):
            image = applied(image, k, op, rows)
        out.append(image)
    return out


def assert_equal(recipe: Recipe, payloads: Sequence[bytes] | None = None) -> list[torch.Tensor]:
    """Every image of the two ways has the same bits; those of the host engine."""
    payloads = photographs() if payloads is None else payloads
    ids = range(len(payloads))
    ours = ran(recipe, payloads, ids)
    for n, (one, other) in enumerate(zip(ours, theirs(recipe, payloads, ids), strict=True)):
        assert one.dtype == other.dtype
        assert torch.equal(one, other), (n, recipe)
    return ours


def applied(image: torch.Tensor, n: int, op: Op, rows: Any) -> Any:
    """Op n of a recipe, with an image's rows of the parameters."""
    match op:
        case Flip():
            flip = functional.horizontal_flip if op.axis == "x" else functional.vertical_flip
            return flip(image) if rows[f"flip{n}"] else image
        case ColorJitter():
            names = [name for name in ("brightness", "contrast", "saturation", "hue") if getattr(op, name)]
            for k in rows[f"jitter{n}_order"]:
                image = getattr(functional, f"adjust_{names[k]}")(image, rows[f"jitter{n}"][k])
            return image
        case ToFloat():
            return functional.to_dtype(image, getattr(torch, op.dtype), scale=op.scale)
        case Normalize():
            return functional.normalize(image, list(op.mean), list(op.std))
        case Rotation() | RandomAffine():
            return _turned(image, n, op, rows)
        case _ if isinstance(op, Effect):
            more = isinstance(op, RandomPhotometricDistort | RandomChannelPermutation | GaussianNoise | NoisyErasing)
            return (_with_more if more else _changed)(image, n, op, rows)
        case _ if isinstance(op, Nest):
            for branch in rows[f"pick{n}"]:
                for number, inner in op.within(n)[branch] if branch >= 0 else ():
                    image = applied(image, number, inner, rows)
            return image
        case _:
            return _cut(image, n, op, rows)


FACTORS = ("brightness", "contrast", "saturation", "hue")


def distortion(factors: Any, turns: Any, channels: Any) -> dict[str, Any]:
    """Our rows as RandomPhotometricDistort's `make_params` would say them; its order of channels, if none, is ours."""
    known: dict[str, Any] = {f"{name}_factor": factors[k] if k in turns else None for k, name in enumerate(FACTORS)}
    return known | {"contrast_before": turns[1] == 1, "channel_permutation": torch.tensor(channels)}


def _with_more(image: torch.Tensor, n: int, op: Op, rows: Any) -> Any:
    """By more rows than one: orders, or the seed of normal numbers of the sample's own."""
    row = rows[f"effect{n}"]
    match op:
        case RandomPhotometricDistort():
            params = distortion(row, rows[f"effect{n}_turns"], rows[f"effect{n}_channels"])
            return v2.RandomPhotometricDistort().transform(image, params)
        case RandomChannelPermutation():
            return v2.RandomChannelPermutation().transform(image, {"permutation": torch.tensor(row)})
    generator = torch.Generator().manual_seed(rows[f"effect{n}_seed"])
    if isinstance(op, GaussianNoise):
        drawn = torch.randn(image.shape, generator=generator)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "randn_like", lambda *_, **__: drawn)
            return functional.gaussian_noise(image, op.mean, op.sigma, op.clip)
    assert isinstance(op, NoisyErasing)
    for y, x, h, w in row:
        if h and w:
            value = torch.randn((3, h, w) if op.fill == "pixel" else (3, 1, 1), generator=generator)
            image = functional.erase(image, y, x, h, w, torch.zeros(()) if op.fill == "zero" else value)
    return image


def _changed(image: torch.Tensor, n: int, op: Op, rows: Any) -> Any:
    """Its row: the sigma, the rectangle, the choices, or whether at all."""
    row = rows[f"effect{n}"]
    match op:
        case _ if isinstance(op, Auto):
            return replayed(_own_class(op, rows.get(f"effect{n}_weights")), image, rows["sample"], n)
        case GaussianBlur():
            return functional.gaussian_blur(image, list(op.kernel), [row, row])
        case RandomErasing():
            value = torch.tensor([op.value] if isinstance(op.value, float) else op.value)[:, None, None]
            return functional.erase(image, *row, value) if row[2] and row[3] else image
        case RandomPerspective() if row[0] < 0:
            return image
        case RandomPerspective():
            h, w = functional.get_size(image)
            start, end = [[0, 0], [w - 1, 0], [w - 1, h - 1], [0, h - 1]], np.reshape(row, (4, 2)).tolist()
            return functional.perspective(image, start, end, op.interpolation, op.fill)
        case Pointwise():
            return _pointwise(image, op) if row else image
        case _:
            assert isinstance(op, Grayscale | RandomGrayscale)
            return functional.rgb_to_grayscale(image, 3) if row else image


def _pointwise(image: torch.Tensor, op: Pointwise) -> Any:
    match op.name:
        case "RandomPosterize":
            return functional.posterize(image, int(op.setting))
        case "RandomSolarize":
            return functional.solarize(image, op.setting)
        case "RandomAdjustSharpness":
            return functional.adjust_sharpness(image, op.setting)
        case name:
            return getattr(functional, name.removeprefix("Random").lower())(image)


def _turned(image: torch.Tensor, n: int, op: Rotation | RandomAffine, rows: Any) -> Any:
    mode = functional.InterpolationMode(op.interpolation)
    if isinstance(op, Rotation):
        return functional.rotate(image, rows[f"angle{n}"], mode, fill=op.fill)
    angle, tx, ty, scale, *shear = rows[f"move{n}"]
    return functional.affine(image, angle, [tx, ty], scale, shear, mode, op.fill, op.center and list(op.center))


def _cut(image: torch.Tensor, n: int, op: Op, rows: Any) -> Any:
    window = rows.get("window" if "window" in rows and n == 0 else f"crop{n}", ())
    match op:
        case RandomResizedCrop():
            return functional.resized_crop(image, *window, list(op.size), _mode(n, op, rows), op.antialias)
        case ResizeKeepRatio():
            return functional.resize(image, rows[f"scale{n}"][:2], _mode(n, op, rows))
        case Resize():
            size = [op.size] if isinstance(op.size, int) else list(op.size)
            return functional.resize(image, size, _mode(n, op, rows), op.max_size, op.antialias)
        case CenterCrop():
            return functional.center_crop(image, list(op.size))
        case RandomCrop():
            edges = padding_of(op, *image.shape[-2:])
            y, x, h, w = window
            if op.mode == "constant":  # our window begins in the image, torchvision's in the padded one
                y, x = y + edges[1], x + edges[0]
            return functional.crop(functional.pad(image, edges, op.fill, op.mode), y, x, h, w)
        case Pad():
            return functional.pad(image, list(op.padding), op.fill, op.mode)


def _mode(n: int, op: Any, rows: Any) -> functional.InterpolationMode:
    name = DRAWN[rows[f"scale{n}"][2]] if op.interpolation == "random" else op.interpolation
    return functional.InterpolationMode(name)


def padding_of(op: RandomCrop, height: int, width: int) -> list[int]:
    """Left, top, right, bottom as torchvision's RandomCrop chooses them."""
    left, top, right, bottom = op.padding
    if op.pad_if_needed:
        high = max(0, op.size[0] - (height + top + bottom))
        wide = max(0, op.size[1] - (width + left + right))
        left, top, right, bottom = left + wide, top + high, right + wide, bottom + high
    return [left, top, right, bottom]


def by_dali(recipe: Recipe, *, region_decode: bool = True) -> list[torch.Tensor]:
    """The photographs by DALI, their windows cut by the decoder, or by the first resize."""
    program = compile_dali(recipe, region_decode=region_decode)
    return each("dali", program, photographs(), range(len(photographs())))


def by_host(recipe: Recipe) -> list[torch.Tensor]:
    """The photographs by the host engine."""
    return ran(recipe, photographs(), range(len(photographs())))


def distance(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], edge: int = 0) -> tuple[float, float]:
    """Largest mean absolute difference of an image, and largest of a value, `edge` pixels along the border left out."""
    worst_mean = worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        if one.dtype == other.dtype and torch.equal(one, other):
            continue
        kind = torch.int16 if one.dtype == other.dtype == torch.uint8 else torch.float64  # exact, both
        d = (one.to(kind) - other.to(kind)).abs()
        d = d[:, edge : d.shape[1] - edge, edge : d.shape[2] - edge]
        worst_mean, worst = max(worst_mean, float(d.sum()) / d.numel()), max(worst, float(d.max()))
    return worst_mean, worst
