"""What contestants without settings have alike."""

from __future__ import annotations

from collections.abc import Sequence

from dali_feed.bench.contract import Job
from dali_feed.bench.facts import version

__all__ = ["OneWay"]


class OneWay:
    """A contestant of ours that can do every job, and has no setting to choose. Others say what differs."""

    __slots__ = ()

    @property
    def version(self) -> str:
        """Ours."""
        return version("dali-feed")

    def missing(self, job: Job) -> str | None:
        """Never."""
        return None

    def ways(self, job: Job) -> Sequence[str]:
        """One."""
        return ("",)
