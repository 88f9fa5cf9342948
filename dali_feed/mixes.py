"""MixUp and CutMix where collate_fn stands: a batch's images and labels mixed with our draws.

The law: what a sample is mixed with, and how much, is a function of (seed, epoch, sample, the slot before it). So a
resumed run mixes as it would have, at any world size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dali_feed.engines.uploads import size_of
from dali_feed.errors import ConfigError
from dali_feed.mixing import Mixed, Mixing, label_pairs, mixed, soft_labels
from dali_feed.outline import outline
from dali_feed.records import LABEL
from dali_feed.views import ViewsProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dali_feed.feed import Batch, Feed
    from dali_feed.user_transforms import UserTransforms

__all__ = ["Mixes", "mix_in_place"]


class Mixes:
    """What a `Mixing` does to the batches of a feed.

    Raises ConfigError where there is nothing it can mix: no labels, several views, uint8 images.
    """

    def __init__(
        self, mixing: Mixing, feed: Feed, device: torch.device, own: Sequence[UserTransforms | None] = ()
    ) -> None:
        self._mixing, self._feed, self._device = mixing, feed, device
        program = feed.program
        if LABEL not in feed.source.fields:
            found = ", ".join(feed.source.fields) or "none"
            msg = f"collate_fn: MixUp and CutMix mix labels; the source's fields must have {LABEL!r}, found {found}"
            raise ConfigError(msg)
        if isinstance(program, ViewsProgram):
            msg = "collate_fn: MixUp and CutMix mix one image per sample; found several views of it"
            raise ConfigError(msg)
        if any(own):
            msg = "collate_fn: MixUp and CutMix mix what transforms made; found a function of your own behind them"
            raise ConfigError(msg)
        if program.fixed and outline(program.recipe).dtype == "uint8":
            raise self._not_float(torch.uint8)

    def _not_float(self, found: object) -> ConfigError:
        cure = "Let the transform end in ToDtype(torch.float32, scale=True)"
        return ConfigError(f"collate_fn: MixUp and CutMix mix floats; found images of {found}. {cure}")

    def images(self, batch: Batch, plain: torch.Tensor | None) -> tuple[torch.Tensor, Mixed]:
        """The batch's images (n, 3, height, width), mixed, and what was drawn.

        `plain`: the images where nothing is left to finish; their memory is written to.
        """
        if plain is None:
            height, width = size_of(batch.images)
        elif not plain.is_floating_point():
            raise self._not_float(plain.dtype)
        elif plain.ndim == 4 and plain.shape[1] == 3:
            height, width = plain.shape[2:]
        else:
            cure = "Let a graph of your own end in channels, height, width"
            msg = f"collate_fn: MixUp and CutMix mix images (n, 3, height, width); found {tuple(plain.shape)}. {cure}"
            raise ConfigError(msg)
        feed = self._feed
        lanes = feed.lanes // feed.world_size  # each has an equal part of the batch
        drawn = mixed(self._mixing, batch.ids, feed.seed, feed.epoch, (height, width), lanes)
        if plain is None:
            from dali_feed.engines.gpu_tail import finished  # CuPy: on a GPU only

            return finished(batch.images, batch.tail, self._device, drawn), drawn  # type: ignore[arg-type]
        if plain.is_cuda:
            from dali_feed.engines.gpu_tail import mixed_up

            return mixed_up(plain, drawn), drawn
        return mix_in_place(plain, drawn, lanes), drawn

    def labels(self, labels: Any, drawn: Mixed, where: Callable[[int], str]) -> Any:
        """A distribution, float32 (n, classes); without classes the labels and weights of two, (n, 2) each.

        Raises ConfigError for labels that are no classes, and names the first record where one is outside them.
        """
        mixing = self._mixing
        if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind not in "iu":
            found = labels.dtype if isinstance(labels, np.ndarray) else type(labels[0]).__name__
            msg = f"collate_fn: MixUp and CutMix mix labels that are whole numbers of classes; found {found}"
            raise ConfigError(msg)
        if mixing.classes is None:
            pairs, weights = label_pairs(labels, drawn)
            return self._there(pairs), self._there(weights)
        for slot in np.flatnonzero((labels < 0) | (labels >= mixing.classes))[:1].tolist():
            rule = f"labels must lie in 0..{mixing.classes - 1}, as classes says"
            msg = f"collate_fn: {rule}; found {labels[slot]} in {where(slot)}"
            raise ConfigError(msg)
        return self._there(soft_labels(labels, drawn, mixing.classes, mixing.smoothing))

    def _there(self, values: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device, non_blocking=True)


def mix_in_place(images: torch.Tensor, drawn: Mixed, lanes: int = 1) -> torch.Tensor:
    """Mix images (n, 3, height, width) of any float on the CPU, in float32 as the kernel does, one by one in its cache.

    From the last sample of a lane's part to its first each meets the one before it, which is still itself; just the
    last is kept for the first.
    """
    part, spare = len(images) // lanes, torch.empty(images.shape[1:])
    for first in range(0, len(images), max(part, 1)):
        last = images[first + part - 1].clone()
        for slot in reversed(range(first, first + part)):
            other = images[slot - 1] if slot > first else last
            _mix(images[slot], other, drawn.weight[slot], drawn.box[slot].tolist(), spare)
    return images


def _mix(image: torch.Tensor, other: torch.Tensor, weight: np.float32, box: list[int], spare: torch.Tensor) -> None:
    if weight != 1:
        torch.mul(other.float(), float(np.float32(1) - weight), out=spare)
        image.copy_(image.float().mul_(float(weight)).add_(spare))
    y, x, height, width = box
    if height and width:
        image[:, y : y + height, x : x + width] = other[:, y : y + height, x : x + width]
