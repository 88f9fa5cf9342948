"""Effects as the host engine takes them: a name and arguments of torchvision's, and what each sample draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.plan.streams import STREAMS_PER_OP
from dali_feed.transforms import base
from dali_feed.transforms.auto import AugMix, Auto
from dali_feed.transforms.auto_augment import Space, bins_of, choices, space_of
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.effects import (
    Effect,
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
from dali_feed.transforms.erasing import erased, erased_several
from dali_feed.transforms.noise import GaussianNoise, Noise, NoisyErasing
from dali_feed.transforms.own import Own
from dali_feed.transforms.perspective import PERSPECTIVE_STREAMS, corners
from dali_feed.transforms.pillow import Pillow
from dali_feed.transforms.pillow_augment import pillow_choices
from dali_feed.transforms.rules import Fill

__all__ = [
    "Ask",
    "Augment",
    "Blur",
    "Call",
    "EffectStep",
    "Erase",
    "Grain",
    "OfOp",
    "Picture",
    "Skew",
    "blur_sigmas",
    "effect_rows",
    "effect_step",
    "grain_seeds",
    "whether",
]

Ints = NDArray[np.int64]

# By op: torchvision's kernel, and its arguments or the op's field that is one.
_KERNELS: dict[type[Effect], tuple[str, str | tuple[int, ...]]] = {
    Grayscale: ("rgb_to_grayscale_image", "channels"),
    RandomGrayscale: ("rgb_to_grayscale_image", (3,)),
    RandomInvert: ("invert_image", ()),
    RandomPosterize: ("posterize_image", "bits"),
    RandomSolarize: ("solarize_image", "threshold"),
    RandomAdjustSharpness: ("adjust_sharpness_image", "factor"),
    RandomAutocontrast: ("autocontrast_image", ()),
    RandomEqualize: ("equalize_image", ()),
}


@dataclass(frozen=True, slots=True)
class Call:
    """torchvision's kernel of that name with `args`, where the bool of row `key` says so."""

    key: str
    kernel: str
    args: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Blur:
    """By `kernel` (width, height) with the sigma (float32) of row `key`."""

    key: str
    kernel: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Erase:
    """Rectangle y, x, height, width (int32) of row `key` set to `value`; often an empty one."""

    key: str
    value: Fill


@dataclass(frozen=True, slots=True)
class Skew:
    """Corners to row `key` (int32: x and y, clockwise from the upper left); -1 leaves them."""

    key: str
    interpolation: str
    fill: Fill


@dataclass(frozen=True, slots=True)
class Augment:
    """Operations of `space` as row `key` (int32: chains, steps, 3) names them; see dali_feed.transforms.auto_augment.

    Where `mixed`, image and chains are added up by the weights (float32) of row `key` + "_weights".
    """

    key: str
    space: Space
    bins: int
    mixed: bool
    interpolation: str
    fill: Fill | None


@dataclass(frozen=True, slots=True)
class Grain:
    """Noise of the op by a generator that starts from row `key` + "_seed" (int64).

    Of a NoisyErasing in the rectangles (int32: most, 4) of row `key`.
    """

    key: str
    op: Noise


@dataclass(frozen=True, slots=True)
class Ask:
    """The user's function, of a PIL image."""

    key: str
    op: Own


@dataclass(frozen=True, slots=True)
class Picture:
    """Operations of Pillow as row `key` (float64: chains, steps, 5) names them; see transforms/pillow_augment.py.

    Of a MixAugment image and chains are mixed by the weights (float32) of row `key` + "_weights".
    """

    key: str
    op: Pillow


@dataclass(frozen=True, slots=True)
class OfOp:
    """What the op does with row `key`."""

    key: str
    op: base.Effect


EffectStep = OfOp | Call | Blur | Erase | Skew | Augment | Grain | Ask | Picture


def whether(op: Effect, run: BatchDraws, first: int) -> NDArray[np.bool_]:
    """Which samples an effect with a probability is for; one without is for all."""
    p = getattr(op, "p", None)
    return np.ones(len(run.ids), bool) if p is None else run.draw(first)[0] < p


def blur_sigmas(op: GaussianBlur, run: BatchDraws, first: int) -> NDArray[np.float32]:
    """Standard deviations of the kernels."""
    low, high = op.sigma
    sigmas: NDArray[np.float32] = (low + (high - low) * run.draw(first)[0]).astype(np.float32)
    return sigmas


def grain_seeds(run: BatchDraws, first: int) -> NDArray[np.int64]:
    """Where the generator of each sample's noise starts, of 48 bits: the last two numbers of the op's first stream."""
    high, low = (run.draw(first)[2:].astype(np.float64) * 2**24).astype(np.int64)
    seeds: NDArray[np.int64] = high << 24 | low
    return seeds


def effect_rows(op: Effect, run: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[Any]:
    """What the op's step takes, a row per sample."""
    if isinstance(op, base.Effect):
        return op.rows(run, first, h, w)
    if isinstance(op, GaussianBlur):
        return blur_sigmas(op, run, first)
    if isinstance(op, RandomErasing):
        return np.stack(erased(op, run, first, h, w), axis=1).astype(np.int32)
    if isinstance(op, RandomPerspective):
        drawn = np.concatenate([run.draw(first + k) for k in range(PERSPECTIVE_STREAMS)])
        return corners(op, drawn, h, w).astype(np.int32)
    if isinstance(op, Auto):
        return choices(op, run, first)
    if isinstance(op, NoisyErasing):
        return erased_several(op, run, first, STREAMS_PER_OP, h, w)
    if isinstance(op, Pillow):
        return pillow_choices(op, run, first)
    return whether(op, run, first)


def effect_step(op: Effect, key: str) -> EffectStep:  # noqa: PLR0911  one op each
    """The op's step, which takes its rows by `key`."""
    if isinstance(op, base.Effect):
        return OfOp(key, op)
    if isinstance(op, GaussianBlur):
        return Blur(key, op.kernel)
    if isinstance(op, RandomErasing):
        return Erase(key, op.value)
    if isinstance(op, RandomPerspective):
        return Skew(key, op.interpolation, op.fill)
    if isinstance(op, Auto):
        return Augment(key, space_of(op), bins_of(op), isinstance(op, AugMix), op.interpolation, op.fill)
    if isinstance(op, GaussianNoise | NoisyErasing):
        return Grain(key, op)
    if isinstance(op, Own):
        return Ask(key, op)
    if isinstance(op, Pillow):
        return Picture(key, op)
    kernel, argument = _KERNELS[type(op)]
    return Call(key, kernel, (getattr(op, argument),) if isinstance(argument, str) else argument)
