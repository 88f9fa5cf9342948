"""How the records of several sources are mixed: weights by epoch, and where an epoch ends."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

__all__ = ["FINEST", "Mixture", "Stop", "whole_shares"]

Stop = Literal["first", "all"]
FINEST = 10_000  # parts that a weight is counted in at most


@dataclass(frozen=True, slots=True)
class Mixture:
    """Weights of the parts of a snapshot by epoch, and where an epoch ends. Pure in the epoch.

    table    (epoch, a weight per part) in ascending order; before the first epoch of it its weights hold too
    linear   between two epochs of the table weights go from one to the other in equal steps; else they jump
    stop     "first": an epoch ends before the first part would give a record again; "all": when every part has given
             each of its records
    samples  of an epoch; None: as `stop` says
    """

    table: tuple[tuple[int, tuple[float, ...]], ...]
    linear: bool = False
    stop: Stop = "first"
    samples: int | None = None

    def shares(self, epoch: int) -> tuple[int, ...]:
        """How many records of each part come in as many as all these together, in that epoch."""
        epochs = [at for at, _ in self.table]
        k = max(0, bisect.bisect_right(epochs, epoch) - 1)
        at, weights = self.table[k]
        if self.linear and k + 1 < len(self.table) and epoch > at:
            end, later = self.table[k + 1]
            gone = (epoch - at) / (end - at)
            a, b = ([w / math.fsum(its) for w in its] for its in (weights, later))
            weights = tuple(x + (y - x) * gone for x, y in zip(a, b, strict=True))
        return whole_shares(weights)

    def told(self) -> dict[str, Any]:
        """Plain JSON, equal for mixtures that are equal."""
        return {
            "weights": {str(epoch): list(weights) for epoch, weights in self.table},
            "linear": self.linear,
            "stop": self.stop,
            "samples": self.samples,
        }


def whole_shares(weights: tuple[float, ...]) -> tuple[int, ...]:
    """The smallest whole numbers in the proportion of the weights.

    Where none whose sum is FINEST at most are (to 1 in 10**9), parts of FINEST by largest remainder; a weight above 0
    is one part at least.
    """
    total = math.fsum(weights)
    near = [Fraction(weight / total).limit_denominator(FINEST) for weight in weights]
    whole = math.lcm(*(share.denominator for share in near))
    close = all(abs(float(share) - weight / total) < 1e-9 for share, weight in zip(near, weights, strict=True))
    if whole <= FINEST and close and sum(near) == 1:
        return tuple(int(share * whole) for share in near)
    exact = [weight / total * FINEST for weight in weights]
    parts = [max(math.floor(share), int(share > 0)) for share in exact]
    order = sorted(range(len(parts)), key=lambda k: (parts[k] - exact[k], k))
    for k in order[: max(0, FINEST - sum(parts))]:
        parts[k] += 1
    parts[parts.index(max(parts))] -= max(0, sum(parts) - FINEST)
    return tuple(parts)
