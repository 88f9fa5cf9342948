"""RandomApply, RandomChoice, RandomOrder: ops within ops, and which of them a sample picks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import STREAMS_PER_OP
from dali_feed.transforms.op import Arrays, Draws, Graph, Ints, OnImage, Op, inner_numbers, of_op
from dali_feed.transforms.settings import Probability, refuse

Branches = tuple[tuple[Op, ...], ...]


class Nest(Op):
    """Lists of ops; each list is applied or skipped as a whole."""

    __slots__ = ()
    names: ClassVar[tuple[str, ...]] = ("pick",)
    normalized: ClassVar[bool] = True
    in_nest: ClassVar[bool] = True

    @abstractmethod
    def runs(self) -> Branches:
        """The lists of ops that it picks from."""

    @abstractmethod
    def picks(self, drawn: NDArray[np.float32]) -> Ints:
        """Runs in the order in which each sample takes them, -1 for none: int64 (n, k).

        From uniforms (4 * m, n), m the streams that it draws from.
        """

    def agree(self) -> None:
        """It must hold something, and nothing that may not be skipped for some images of a batch."""
        if not self.runs():
            refuse(self.title, "needs at least one transform", self.runs())
        for inner in (inner for branch in self.runs() for inner in branch):
            if not inner.in_nest:
                rule = "must not hold a transform that changes the size, dtype or units of an image"
                refuse(self.title, rule, inner)

    def drawn(self) -> range:
        return range(1)

    def inner(self) -> int:
        return sum(map(len, self.runs()))

    def within(self, n: int) -> list[list[tuple[int, Op]]]:
        numbers = iter(inner_numbers(self, n))
        return [[(next(numbers), inner) for inner in branch] for branch in self.runs()]

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """What it picks; the ops inside draw too, whether they are picked or not."""
        picks = self.picks(np.concatenate([d.u(k) for k in self.drawn()]))
        for branch in self.within(d.n):
            d.through(branch)
        return {"pick": picks}

    def step(self, n: int) -> OnImage:
        return self._picked(n, [[op.step(number) for number, op in branch] for branch in self.within(n)])

    def follower(self, n: int) -> OnImage | None:
        steps = [[op.follower(number) for number, op in branch] for branch in self.within(n)]
        moving = [[step for step in branch if step is not None] for branch in steps]
        return self._picked(n, moving) if any(moving) else None

    def _picked(self, n: int, branches: list[list[OnImage]]) -> OnImage:
        key = of_op("pick", n)

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            for branch in arrays[key][slot].tolist():
                for step in branches[branch] if branch >= 0 else ():
                    image = step(image, arrays, slot)
            return image

        return apply

    def dali(self, graph: Graph) -> None:
        for k, branch in enumerate(self.within(graph.n)):
            graph.branch(k, branch)


@dataclass(frozen=True, slots=True)
class RandomApply(Nest):
    """All of `ops` with probability `p`, or none."""

    ops: tuple[Op, ...]
    p: Probability = 0.5

    @classmethod
    def around(cls, transform: Any, branches: Branches) -> RandomApply:
        return cls(sum(branches, ()), float(transform.p))

    def runs(self) -> Branches:
        return (self.ops,)

    def picks(self, drawn: NDArray[np.float32]) -> Ints:
        return np.where(drawn[0] < self.p, 0, -1)[:, None]


@dataclass(frozen=True, slots=True)
class RandomChoice(Nest):
    """One of `branches`, each a run of ops, by `weights`; equally often where there are none."""

    branches: Branches
    weights: tuple[float, ...] = ()

    def agree(self) -> None:
        Nest.agree(self)
        if self.weights and len(self.weights) != len(self.branches):
            refuse("RandomChoice", "p needs one number for each transform", self.weights)
        if self.weights and not (all(0 <= x < float("inf") for x in self.weights) and sum(self.weights) > 0):
            refuse("RandomChoice", "p must be numbers of at least 0, not all 0", self.weights)

    @classmethod
    def around(cls, transform: Any, branches: Branches) -> RandomChoice:
        return cls(branches, () if transform.p is None else tuple(map(float, transform.p)))

    def runs(self) -> Branches:
        return self.branches

    def picks(self, drawn: NDArray[np.float32]) -> Ints:
        weights = np.asarray(self.weights or (1.0,) * len(self.branches), np.float64)
        edges = np.cumsum(weights) / weights.sum()
        last = int(np.flatnonzero(weights)[-1])  # rounding may leave the last bound below 1
        chosen: Ints = np.minimum(np.searchsorted(edges, drawn[0].astype(np.float64), side="right"), last)
        return chosen[:, None]


@dataclass(frozen=True, slots=True)
class RandomOrder(Nest):
    """All of `branches`, each a run of ops, in random order."""

    branches: Branches

    @classmethod
    def around(cls, transform: Any, branches: Branches) -> RandomOrder:
        del transform
        return cls(branches)

    def runs(self) -> Branches:
        return self.branches

    def drawn(self) -> range:
        count = -(-len(self.branches) // 4)
        if count > STREAMS_PER_OP:
            refuse("RandomOrder", f"takes at most {4 * STREAMS_PER_OP} transforms", len(self.branches))
        return range(count)

    def picks(self, drawn: NDArray[np.float32]) -> Ints:
        return np.argsort(drawn[: len(self.branches)], axis=0, kind="stable").T

    def dali(self, graph: Graph) -> None:
        self.refuse("runs transforms in one order", f"{len(self.branches)} to reorder")
