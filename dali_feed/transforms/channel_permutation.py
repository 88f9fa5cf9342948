"""RandomChannelPermutation: the channels in another order; and how an order is drawn."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.base import Apply, Effect, InGraph, Ints
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.run import Run
from dali_feed.transforms.units import Place

__all__ = ["RandomChannelPermutation", "permutations", "permuted"]

_ORDERS = np.array(list(itertools.permutations(range(3))), np.int64)


def permutations(drawn: NDArray[np.float32]) -> Ints:
    """Of each sample one of the six orders of three channels, equally often, from uniforms (n,): int64 (n, 3).

    Channel k of what comes out is channel order[k] of what goes in.
    """
    chosen: Ints = _ORDERS[(drawn.astype(np.float64) * len(_ORDERS)).astype(np.int64)]
    return chosen


def permuted(image: Any, order: Any) -> Any:
    """An image with its channels in `order`, int64 (3,), by torchvision's own function; one channel has no other."""
    from torchvision.transforms.v2 import functional

    return functional.permute_channels_image(image, order.tolist()) if image.shape[-3] == len(order) else image


@dataclass(frozen=True, slots=True)
class RandomChannelPermutation(Effect):
    """The channels in a random order, each of the six equally often."""

    @classmethod
    def of(cls, transform: Any) -> Self:
        del transform  # it has no settings
        return cls()

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> Ints:
        return permutations(draws.draw(first)[0])

    def image(self, image: Any, row: Any) -> Any:
        return permuted(image, row)

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """By a matrix of zeros and ones, which is exact; the identity where it is not for an image."""

        def build(image: Any, matrix: Any) -> Any:
            from nvidia.dali import fn, types

            return fn.reshape(fn.coord_transform(image, M=matrix, dtype=types.UINT8), layout="HWC")

        def matrices(run: Run) -> NDArray[np.float32]:
            orders = np.where(run.on[:, None], self.rows(run, first, run.h, run.w), np.arange(3))
            return np.eye(3, dtype=np.float32)[orders]

        return Apply(k, "channels", "FLOAT", 2, build), matrices
