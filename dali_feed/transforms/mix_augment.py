"""MixAugment, timm's AugMix: an image mixed with versions of itself that went through chains of Pillow's operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.base import Arrays, Ints, OnImage
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.gammas import GAMMA_TRIES
from dali_feed.transforms.keys import Key, further
from dali_feed.transforms.mixture import mixture
from dali_feed.transforms.pillow_augment import Floats, Pillow, chained, check_parts, drawn_steps, starts
from dali_feed.transforms.pillow_operations import PLAIN, Look, Part
from dali_feed.transforms.rules import refuse

__all__ = ["MixAugment"]

_DEEPEST = 4  # steps of a chain


@dataclass(frozen=True, slots=True)
class MixAugment(Pillow):
    """The image mixed with `width` chains of `depth` parts (1 to 3 where it is not positive), weighed by Dirichlet's.

    `blended`: chains are mixed into the image one by one, with rounding after each; else all at once.
    """

    parts: tuple[Part, ...]
    alpha: float = 1.0
    width: int = 3
    depth: int = -1
    blended: bool = False
    look: Look = PLAIN

    streams: ClassVar[int] = 0  # it draws its own numbers, since it needs more streams than an op has

    def __post_init__(self) -> None:
        check_parts("AugMix", self.parts, max(self.depth, 0), _DEEPEST)
        if not 1 <= self.width <= 32 or not self.alpha > 0:
            refuse("AugMix", "takes 1 to 32 chains and an alpha above 0", (self.width, self.alpha))

    @classmethod
    def of(cls, transform: Any) -> Self:
        t = transform
        parts = tuple(map(Part.of, t.ops))
        return cls(parts, float(t.alpha), int(t.width), int(t.depth), bool(t.blended), Look.of(t.ops))

    @property
    def every(self) -> tuple[Part, ...]:
        return self.parts

    def inner(self) -> int:
        return self.width

    def chosen(self, draws: BatchDraws, first: int) -> tuple[Ints, Floats]:
        most = self.depth if self.depth > 0 else 3
        drawn = drawn_steps(draws, [start + GAMMA_TRIES for start in starts(self, first, self.width)], most)
        which = (drawn[:, :, 0] * len(self.parts)).astype(np.int64)
        if self.depth <= 0:
            count = 1 + (drawn[:, 0, 7] * 3).astype(np.int64)
            which[np.arange(most)[None, :, None] >= count[:, None]] = -1
        return which, drawn

    def more(self, draws: BatchDraws, first: int) -> dict[str, NDArray[Any]]:
        return {"_weights": mixture(self, self.width, self.alpha, draws, first)}

    def on_image(self, key: Key) -> OnImage:
        """Image and chains mixed by the weights (float32) of row `key` + "_weights"."""
        from torchvision.transforms.v2 import functional

        parts, look, names = self.parts, self.look, further(key, "_weights")
        mix = _blended if self.blended else _mixed

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            given = functional.to_pil_image(image.contiguous())
            made = [chained(given, chain, parts, look) for chain in arrays[key][slot].tolist()]
            share, *weights = arrays[names][slot].tolist()
            amount = 1.0 - share
            shares = [weight / amount if amount else 0.0 for weight in weights]
            return functional.pil_to_tensor(mix(given, made, shares, amount)).to(image.device)

        return apply


def _mixed(image: Any, made: list[Any], shares: list[float], amount: float) -> Any:
    from PIL import Image

    total = np.zeros((image.height, image.width, len(image.getbands())), np.float32)
    for each, share in zip(made, shares, strict=True):
        total += np.float32(share) * np.asarray(each, np.float32).reshape(total.shape)
    levels = np.clip(total, 0, 255).astype(np.uint8)
    return Image.blend(image, Image.fromarray(levels if levels.shape[2] == 3 else levels[..., 0]), amount)


def _blended(image: Any, made: list[Any], shares: list[float], amount: float) -> Any:
    """Mix the chains in one by one, with the shares that give the same weights in the end."""
    from PIL import Image

    left, parts = 1.0, []
    for share in reversed(shares):
        parts.append(share * amount / left if left > 0 else 0.0)
        left *= 1.0 - parts[-1]
    for each, part in zip(made, reversed(parts), strict=True):
        image = Image.blend(image, each, part)
    return image
