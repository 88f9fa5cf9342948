"""LayerAugment, timm's RandAugment: some operations of Pillow one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dali_feed.transforms.base import Ints
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.pillow_augment import Floats, Pillow, check_parts, drawn_steps, starts
from dali_feed.transforms.pillow_operations import PLAIN, Look, Part
from dali_feed.transforms.rules import refuse

__all__ = ["LayerAugment"]


@dataclass(frozen=True, slots=True)
class LayerAugment(Pillow):
    """`layers` of `parts`, one after the other; with `weights` none of them twice."""

    parts: tuple[Part, ...]
    layers: int = 2
    weights: tuple[float, ...] = ()
    look: Look = PLAIN

    streams: ClassVar[int] = 0  # each layer has streams of its own
    inner_words: ClassVar[tuple[str, str]] = ("layers", "transforms that hold others")

    def __post_init__(self) -> None:
        check_parts("RandAugment", self.parts, self.layers, min(32, len(self.parts)) if self.weights else 32)
        if self.weights and len(self.weights) != len(self.parts):
            refuse("RandAugment", "needs one weight for each operation", self.weights)
        if self.weights and sum(weight > 0 for weight in self.weights) < self.layers:
            refuse("RandAugment", "needs as many weights above 0 as layers", self.weights)

    @classmethod
    def of(cls, transform: Any) -> Self:
        t = transform
        weights = () if t.choice_weights is None else tuple(map(float, t.choice_weights))
        return cls(tuple(map(Part.of, t.ops)), int(t.num_layers), weights, Look.of(t.ops))

    @property
    def every(self) -> tuple[Part, ...]:
        return self.parts

    def inner(self) -> int:
        return self.layers

    def chosen(self, draws: BatchDraws, first: int) -> tuple[Ints, Floats]:
        own = starts(self, first, self.layers)
        drawn = np.moveaxis(drawn_steps(draws, own, 1), 1, 0)  # one chain of all layers
        if not self.weights:
            return (drawn[:, :, 0] * len(self.parts)).astype(np.int64), drawn
        left = np.tile(np.array(self.weights, np.float64), (len(draws.ids), 1))
        which = np.empty(drawn.shape[:2] + drawn.shape[3:], np.int64)
        for layer in range(self.layers):
            edges = np.cumsum(left, axis=1) / left.sum(axis=1, keepdims=True)
            last = (
                len(self.parts) - 1 - np.argmax(left[:, ::-1] > 0, axis=1)
            )  # rounding may leave the last bound below 1
            which[0, layer] = np.minimum((edges <= drawn[0, layer, 0][:, None]).sum(axis=1), last)
            left[np.arange(len(left)), which[0, layer]] = 0.0
        return which, drawn
