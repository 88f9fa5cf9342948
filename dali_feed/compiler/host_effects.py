"""Effects as the host engine takes them: a name and arguments of torchvision's, and what each sample draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms import base
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.effects import Effect, Grayscale, RandomGrayscale

__all__ = ["Call", "EffectStep", "OfOp", "effect_rows", "effect_step", "whether"]

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
class OfOp:
    """What the op does with row `key`."""

    key: str
    op: base.Effect


EffectStep = OfOp | Call


def whether(op: Effect, run: BatchDraws, first: int) -> NDArray[np.bool_]:
    """Which samples an effect with a probability is for; one without is for all."""
    p = getattr(op, "p", None)
    return np.ones(len(run.ids), bool) if p is None else run.draw(first)[0] < p


def effect_rows(op: Effect, run: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[Any]:
    """What the op's step takes, a row per sample."""
    if isinstance(op, base.Effect):
        return op.rows(run, first, h, w)
    return whether(op, run, first)


def effect_step(op: Effect, key: str) -> EffectStep:
    """The op's step, which takes its rows by `key`."""
    if isinstance(op, base.Effect):
        return OfOp(key, op)
    kernel, argument = _KERNELS[type(op)]
    return Call(key, kernel, (getattr(op, argument),) if isinstance(argument, str) else argument)
