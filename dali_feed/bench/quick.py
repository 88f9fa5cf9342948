"""A contestant for a quick run: it uses the first of its settings only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from dali_feed.bench.contract import Contestant, Job, Steps

__all__ = ["FirstWay"]

SLOW = "it takes longer to start than --quick allows; leave --quick out"


@dataclass(frozen=True, slots=True)
class FirstWay:
    """Another contestant with one way: the one it names first."""

    whole: Contestant

    @property
    def name(self) -> str:
        """Its own."""
        return self.whole.name

    @property
    def version(self) -> str:
        """Its own."""
        return self.whole.version

    def missing(self, job: Job) -> str | None:
        """As it says; and who is slow to begin has no place in a quick run."""
        return self.whole.missing(job) or (SLOW if getattr(self.whole, "slow", False) else None)

    def ways(self, job: Job) -> Sequence[str]:
        """The first."""
        return self.whole.ways(job)[:1]

    def turn(self, job: Job, way: str) -> AbstractContextManager[Steps]:
        """As it does."""
        return self.whole.turn(job, way)
