"""Effects as the host engine takes them: a name and arguments of torchvision's, and what each sample draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms import base
from dali_feed.transforms.auto import AugMix, Auto
from dali_feed.transforms.auto_augment import Space, bins_of, choices, space_of
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.effects import Effect, Grayscale, RandomGrayscale
from dali_feed.transforms.pillow import Pillow
from dali_feed.transforms.pillow_augment import pillow_choices
from dali_feed.transforms.rules import Fill

__all__ = ["Augment", "Call", "EffectStep", "OfOp", "Picture", "effect_rows", "effect_step", "whether"]

Ints = NDArray[np.int64]

# By op: torchvision's kernel, and its arguments or the op's field that is one.
_KERNELS: dict[type[Effect], tuple[str, str | tuple[int, ...]]] = {
    Grayscale: ("rgb_to_grayscale_image", "channels"),
    RandomGrayscale: ("rgb_to_grayscale_image", (3,)),
}


@dataclass(frozen=True, slots=True)
class Call:
    """torchvision's kernel of that name with `args`, where the bool of row `key` says so."""

    key: str
    kernel: str
    args: tuple[float, ...] = ()


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


EffectStep = OfOp | Call | Augment | Picture


def whether(op: Effect, run: BatchDraws, first: int) -> NDArray[np.bool_]:
    """Which samples an effect with a probability is for; one without is for all."""
    p = getattr(op, "p", None)
    return np.ones(len(run.ids), bool) if p is None else run.draw(first)[0] < p


def effect_rows(op: Effect, run: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[Any]:
    """What the op's step takes, a row per sample."""
    if isinstance(op, base.Effect):
        return op.rows(run, first, h, w)
    if isinstance(op, Auto):
        return choices(op, run, first)
    if isinstance(op, Pillow):
        return pillow_choices(op, run, first)
    return whether(op, run, first)


def effect_step(op: Effect, key: str) -> EffectStep:
    """The op's step, which takes its rows by `key`."""
    if isinstance(op, base.Effect):
        return OfOp(key, op)
    if isinstance(op, Auto):
        return Augment(key, space_of(op), bins_of(op), isinstance(op, AugMix), op.interpolation, op.fill)
    if isinstance(op, Pillow):
        return Picture(key, op)
    kernel, argument = _KERNELS[type(op)]
    return Call(key, kernel, (getattr(op, argument),) if isinstance(argument, str) else argument)
