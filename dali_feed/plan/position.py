"""The position of a run, which a state holds, and the rule for a pass that is left early.

The law: a state counts the batches that the training loop got. A pass that was left early is over, and the next one is
the next epoch, for the same order is not given twice. But one left after its first batch was a look at the data, as
`next(iter(loader))` is for its shapes: the next pass begins where the look began, on whichever rank that was, so that
it costs neither an epoch nor what a state restored of one.

Only this file steps from one epoch to the next: feeds report how a pass ended, and ask where the next one begins.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LOOKS", "Position"]

LOOKS = 3  # in a row change nothing; later ones count, so that a loop of next(iter(loader)) sees more than one


@dataclass(slots=True)
class Position:
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
    def between(self) -> bool:
        """Whether the epoch before has been given, and nothing of this one."""
        return self.consumed == 0 and self.epoch > 0

    @property
    def fresh(self) -> bool:
        """Whether nothing of the epoch has been given, and the next pass is to begin it."""
        return self.pending and self.consumed == 0

    @property
    def _looked(self) -> bool:
        return not self.pending and self._taken == 1 and not self._whole and self._looks < LOOKS

    # How the pass ended.

    def took(self, count: int, *, last: bool) -> None:
        """The training loop got a batch with `count` samples of each lane; `last`: no more will come."""
        self.consumed += count
        self.pending, self._whole = False, last
        self._taken += 1
        self._looks = 0 if self._taken > 1 else self._looks

    def failed(self) -> None:
        """The pass ended with an error: it does not count as a look at the data."""
        self._whole = True

    def ended(self) -> None:
        """The pass came to its end."""
        self.go_to(self.epoch + 1)

    # Where the next one begins.

    def leave(self) -> None:
        """The pass before is over: go to where the next one begins."""
        (self.epoch, self.consumed), self._looks = self.next, self._looks + self._looked
        self.pending, self._began, self._taken = True, self.consumed, 0

    def skip(self) -> None:
        """The epoch of which a batch was taken is over, even after a look. Without a batch it is still to come."""
        if not self.pending:
            self.go_to(self.epoch + 1)

    def set_epoch(self, epoch: int) -> bool:
        """Let the next pass be one of `epoch`; False where it is already, and no pass has taken a batch before it.

        Where a restored state, or a look, stands inside that epoch, the next pass goes on there.
        """
        if self.next[0] != epoch or not (self.pending or self._looked):
            self.go_to(epoch)
            return True
        if self.pending:
            return False
        self.leave()
        return True

    def go_to(self, epoch: int, consumed: int = 0) -> None:
        """Let the next pass begin there."""
        self.epoch, self.consumed, self.pending, self._began, self._taken, self._looks = epoch, consumed, True, 0, 0, 0
