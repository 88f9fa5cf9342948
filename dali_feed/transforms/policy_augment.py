"""PolicyAugment, timm's AutoAugment: one of some policies, each some operations of Pillow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dali_feed.transforms.base import Ints
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.pillow_augment import Floats, Pillow, check_parts, drawn_steps, starts
from dali_feed.transforms.pillow_operations import PLAIN, Look, Part

__all__ = ["PolicyAugment"]


@dataclass(frozen=True, slots=True)
class PolicyAugment(Pillow):
    """One of `policies`, equally often, each some parts one after the other."""

    policies: tuple[tuple[Part, ...], ...]
    look: Look = PLAIN

    def __post_init__(self) -> None:
        check_parts("AutoAugment", self.every, max(map(len, self.policies), default=0), 8)

    @classmethod
    def of(cls, transform: Any) -> Self:
        parts = [part for policy in transform.policy for part in policy]
        return cls(tuple(tuple(map(Part.of, policy)) for policy in transform.policy), Look.of(parts))

    @property
    def every(self) -> tuple[Part, ...]:
        return sum(self.policies, ())

    def inner(self) -> int:
        return 1

    def chosen(self, draws: BatchDraws, first: int) -> tuple[Ints, Floats]:
        longest = max(map(len, self.policies))
        places, table = iter(range(len(self.every))), np.full((len(self.policies), longest), -1)
        for row, policy in zip(table, self.policies, strict=True):
            row[: len(policy)] = [next(places) for _ in policy]
        mine = (draws.draw(first)[0].astype(np.float64) * len(table)).astype(np.int64)
        return table[mine].T[None], drawn_steps(draws, starts(self, first, 1), longest)
