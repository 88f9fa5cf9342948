"""What timm's AutoAugment and its kind have in common: steps that each sample chooses, run by Pillow on one image.

The choice is arithmetic on arrays; it depends on the samples' random numbers alone.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.philox import uniforms
from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.transforms.base import Arrays, Effect, Ints, OnImage
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.keys import Key
from dali_feed.transforms.numbering import inner_numbers
from dali_feed.transforms.pillow_operations import Look, Part, operated, strength
from dali_feed.transforms.rules import check_uint8, refuse

__all__ = ["Floats", "Pillow", "chained", "check_parts", "drawn_steps", "starts"]

Floats = NDArray[np.float64]
_WORDS = 2  # numbers of a step: which, whether, strength twice, sign, filter, one more, how many steps


class Pillow(Effect):
    """Operations of Pillow as rows (float64: chains, steps, 5) name them; see `rows`."""

    __slots__ = ()
    of_pil: ClassVar[bool] = True
    look: Look

    def follow_steps(self, n: int) -> list[OnImage]:
        self.no_follower()

    @property
    def every(self) -> tuple[Part, ...]:
        """All parts; a step names one by its place in this tuple."""
        raise NotImplementedError

    def chosen(self, draws: BatchDraws, first: int) -> tuple[Ints, Floats]:
        """Each step's part, -1 for none, (chains, steps, n), and its uniforms (chains, steps, 8, n)."""
        raise NotImplementedError

    def check(self, dtype: str) -> None:
        check_uint8(type(self).__name__, dtype)

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> Floats:
        """Per step the part (-1: none), strength, sign, filter, a uniform number: float64 (n, chains, steps, 5)."""
        which, drawn = self.chosen(draws, first)
        p, magnitude, spread, most = (
            np.array([getattr(one, name) for one in self.every]) for name in Part.__slots__[1:]
        )
        at = np.maximum(which, 0)
        none = (which < 0) | ((p[at] < 1) & (drawn[..., 1, :] > p[at]))
        radius = np.sqrt(-2 * np.log(np.maximum(1 - drawn[..., 2, :], 2.0**-25)))
        normal = radius * np.cos(2 * math.pi * drawn[..., 3, :])  # by Box and Muller
        finite = np.where(np.isfinite(spread), spread, 0.0)[at]
        strong = np.where(np.isinf(spread[at]), drawn[..., 2, :] * magnitude[at], magnitude[at] + finite * normal)
        strong = np.clip(strong, 0.0, most[at])
        sign = np.where(drawn[..., 4, :] > 0.5, -1.0, 1.0)
        number = np.floor(drawn[..., 5, :] * len(self.look.filters))
        steps = np.stack(
            [np.where(none, -1, which).astype(np.float64), strong, sign, number, drawn[..., 6, :]], axis=-1
        )
        return np.moveaxis(steps, 2, 0)  # chains, steps, n -> n first

    def on_image(self, key: Key) -> OnImage:
        """One chain of operations."""
        from torchvision.transforms.v2 import functional

        parts, look = self.every, self.look

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            chain = arrays[key][slot].tolist()[0]
            if not any(which >= 0 for which, *_ in chain):
                return image
            made = chained(functional.to_pil_image(image.contiguous()), chain, parts, look)
            return functional.pil_to_tensor(made).to(image.device)

        return apply


def chained(image: Any, chain: list[list[float]], parts: tuple[Part, ...], look: Look) -> Any:
    """Pillow's image after a chain of steps."""
    for which, strong, sign, number, more in chain:
        if which >= 0:
            name = parts[int(which)].name
            value = strength(name, strong, sign, more, look)
            image = operated(image, name, value, look, look.filters[int(number)])
    return image


def drawn_steps(run: BatchDraws, starts: list[int], steps: int) -> Floats:
    """Eight uniforms of each step: (len(starts), steps, 8, n)."""
    streams = [start + _WORDS * step + k for start in starts for step in range(steps) for k in range(_WORDS)]
    flat = uniforms(run.seed, run.epoch, run.ids, streams).astype(np.float64)
    return flat.reshape(len(starts), steps, 4 * _WORDS, len(run.ids))


def starts(op: Effect, first: int, count: int) -> list[int]:
    """The first stream of each of `count` parts."""
    return [number * STREAMS_PER_OP for number in inner_numbers(op, first // STREAMS_PER_OP, count)]


def check_parts(op: str, parts: tuple[Part, ...], count: int, most: int) -> None:
    """Check that there are parts, and that the number of steps is allowed."""
    if not parts:
        refuse(op, "needs at least one operation", parts)
    if not 0 <= count <= most:
        refuse(op, f"takes 0 to {most} steps", count)
