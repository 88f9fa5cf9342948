"""What a loader needs from the object that runs its dataset: our feed, or torch's own loader in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dali_feed.feed.stats import Stats

__all__ = ["AnyFeed", "AnyPass"]


class AnyPass(Protocol):
    """One pass; each batch taken moves the state. Dropping it ends the pass."""

    def __len__(self) -> int:
        """Batches still to come; TypeError where the dataset does not say."""
        ...

    def __iter__(self) -> AnyPass: ...

    def __next__(self) -> Any: ...

    def take(self, timeout: float | None, make: Callable[[Any], Any]) -> Any:
        """What `make` makes of the next batch: the state moves when it is made. WaitError after `timeout` seconds.

        Raises ClosedError where the pass is over before its end.
        """
        ...


class AnyFeed(Protocol):
    """Epochs of batches, and the position in them."""

    @property
    def batch_size(self) -> int:
        """Samples per batch on this rank."""
        ...

    @property
    def rank(self) -> int:
        """Which part of each global batch this process takes."""
        ...

    @property
    def world_size(self) -> int:
        """How many processes share a global batch."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch that state_dict() stands in."""
        ...

    @property
    def batches_left(self) -> int:
        """Batches that the pass under way still gives, or else the next one will; TypeError if unknown."""
        ...

    def __len__(self) -> int:
        """Batches in an epoch; TypeError where the dataset does not say."""
        ...

    def __iter__(self) -> AnyPass:
        """The next epoch's batches, or the rest of the one that a restored state stands in."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; where a restored state stands inside it, it goes on there."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position of the training loop, as plain JSON. StateError for an iterable-style dataset."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Let the next pass go on where `state` was taken. StateError that lists every difference."""
        ...

    def commit(self) -> None:
        """Publish for lag tools how far the epoch is, where the source can do that."""
        ...

    def describe(self) -> str:
        """What an epoch is made of."""
        ...

    def stats(self) -> Stats:
        """Counts and waits since the start."""
        ...

    def close(self) -> None:
        """Stop all threads and processes. Safe to call twice."""
        ...
