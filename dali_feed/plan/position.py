"""Where a run stands: the position that a state holds, and what becomes of a pass that is left early.

The law: a state counts the batches that the trainer was given. A pass that was left early is over, and the next one is
the next epoch, for the same order is not given twice. But one left after its first batch was a look at the data, as
`next(iter(loader))` is for its shapes: the next pass begins where the look began, on whichever rank that was, so that
it costs neither an epoch nor what a state restored of one.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LOOKS", "Standing"]

LOOKS = 3  # in a row leave no trace; behind them each counts, for a loop of next(iter(loader)) is to see more than one


@dataclass(slots=True)
class Standing:
    """`consumed` of `epoch` has been given; `pending`: the next pass begins here, none has taken a batch from here."""

    epoch: int = 0
    consumed: int = 0
    pending: bool = True
    _began: int = 0  # where in its epoch the last pass did
    _taken: int = 0  # batches that it gave
    _whole: bool = False  # and whether no more were to come, for it was at its end or failed
    _looks: int = 0  # in a row

    @property
    def next(self) -> tuple[int, int]:
        """The epoch of the next pass, and where in it that begins."""
        if self.pending:
            return self.epoch, self.consumed
        return (self.epoch, self._began) if self._looked else (self.epoch + 1, 0)

    @property
    def _looked(self) -> bool:
        return not self.pending and self._taken == 1 and not self._whole and self._looks < LOOKS

    def leave(self) -> None:
        """The pass before is over: stand where the next one begins."""
        (self.epoch, self.consumed), self._looks = self.next, self._looks + self._looked
        self.pending, self._began, self._taken = True, self.consumed, 0

    def took(self, count: int, *, last: bool) -> None:
        """The trainer was given a batch that takes `count` of each lane; `last`: no more are to come."""
        self.consumed += count
        self.pending, self._whole = False, last
        self._taken += 1
        self._looks = 0 if self._taken > 1 else self._looks

    def failed(self) -> None:
        """The pass ended with an error: nobody just looked."""
        self._whole = True

    def ended(self) -> None:
        """The pass came to its end."""
        self.go_to(self.epoch + 1, 0)

    def stays_in(self, epoch: int) -> bool:
        """Whether the next pass is one of `epoch` as it is, and needs not be told."""
        return self.next[0] == epoch and (self.pending or self._looked)

    def go_to(self, epoch: int, consumed: int) -> None:
        """Let the next pass begin there."""
        self.epoch, self.consumed, self.pending, self._began, self._taken, self._looks = epoch, consumed, True, 0, 0, 0
