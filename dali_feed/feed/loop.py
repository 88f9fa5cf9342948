"""The training loop's clock: what it does between two batches, and what making its tensors takes.

Three clock calls per batch, of which the wait for the batch needs two anyway.
"""

from __future__ import annotations

import time

__all__ = ["LoopClock"]


class LoopClock:
    """Used by the training loop's thread.

    worked    seconds between a batch that was handed over and the call for the next one
    handover  seconds from a batch that was there to the tensors that the loop got
    """

    def __init__(self) -> None:
        self.worked = self.handover = 0.0
        self.samples = 0  # that the loop worked on
        self.last_samples = 0
        self._came = 0.0
        self._given: float | None = None

    def asked(self, now: float, *, first: bool) -> None:
        """For the next batch; `first` of a pass: what the loop did before it was no training on a batch."""
        given, self._given = self._given, None
        if given is not None and not first:
            self.worked += now - given
            self.samples += self.last_samples

    def came(self, now: float) -> None:
        """The batch is there."""
        self._came = now

    def given(self, samples: int) -> None:
        """The loop gets it."""
        now = time.perf_counter()
        self.handover += now - self._came
        self._given, self.last_samples = now, samples
