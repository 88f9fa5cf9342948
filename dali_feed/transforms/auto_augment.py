"""AutoAugment: one of some policies, each of them two operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.auto_operations import LEVELS, OPERATIONS, PLAIN, SIGNED, Auto, Space, Turning
from dali_feed.transforms.base import Ints
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.fields import background, turning
from dali_feed.transforms.rules import Fill, check_p, refuse

__all__ = ["AutoAugment", "Policy"]

Part = tuple[str, float, int | None]  # operation, how likely it is, strength 0..9 where it has one
Policy = tuple[Part, Part]

_BINS = 10  # how many strengths the numbers in a policy count
_SPACE = Space((*SIGNED, *LEVELS, "Invert"), lambda edge: 150.0 / 331.0 * edge)


@dataclass(frozen=True, slots=True)
class AutoAugment(Auto):
    """One of `policies`, equally often: two operations, each with its own probability and strength."""

    policies: tuple[Policy, ...]
    interpolation: Turning = "nearest"
    fill: Fill | None = None

    streams: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not self.policies:
            refuse("AutoAugment", "needs at least one policy", self.policies)
        for part in (part for policy in self.policies for part in policy):
            name, p, strength = part
            check_p("AutoAugment", p)
            if name not in OPERATIONS or (name in PLAIN) != (strength is None) or not 0 <= (strength or 0) < _BINS:
                refuse("AutoAugment", f"a policy must name operations and strengths in 0..{_BINS - 1}", part)

    @classmethod
    def of(cls, transform: Any) -> Self:
        found = transform.policies if hasattr(transform, "policies") else transform._policies  # name in v1, in v2
        policies = tuple((_part(*first), _part(*second)) for first, second in found)
        return cls(policies, turning(transform), background(transform))

    @property
    def space(self) -> Space:
        return _SPACE

    @property
    def grades(self) -> int:
        return _BINS

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[np.int32]:
        """Both parts of the policy that each sample takes: (n, 1, 2, 3)."""
        drawn, signs = draws.draw(first), draws.draw(first + 1)
        names = _SPACE.names
        table = np.array([[(names.index(name), p, k or 0) for name, p, k in policy] for policy in self.policies])
        mine = table[(drawn[0].astype(np.float64) * len(table)).astype(np.int64)]
        steps = []
        for k in range(2):
            which, p, strong = mine[:, k].T
            which, strong = which.astype(np.int64), strong.astype(np.int64)
            sign = self.signs(which, signs[k].astype(np.float64))
            steps.append(np.stack([np.where(drawn[1 + k] < p, which, -1), strong, sign], axis=1))
        return np.stack(steps, axis=1)[:, None].astype(np.int32)


def _part(name: str, p: float, strength: int | None) -> Part:
    return str(name), float(p), strength
