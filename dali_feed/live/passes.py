"""The batches of a stream, as the training loop sees them: each one that is taken moves the position.

The law: only the newest iterator gives batches, and an iterator that is left loses nothing: the next one goes on
behind the last batch that the loop was handed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dali_feed.errors import ConfigError, WaitError
from dali_feed.feed.batch import Batch
from dali_feed.live.progress import Progress
from dali_feed.live.run import LiveRun

__all__ = ["LiveBatches", "Owner"]


class Owner(Protocol):
    """The feed, as its batches see it."""

    def running(self, token: LiveBatches) -> tuple[LiveRun, Progress]:
        """What gives the batches of that iterator. ClosedError where it is not the newest."""
        ...

    def took(self, batch: Batch, made: object) -> None:
        """The loop was handed what was made of it."""
        ...

    def failed(self) -> None:
        """A batch is missing: none behind it may count."""
        ...


def _itself(batch: Batch) -> Batch:
    return batch


class LiveBatches:
    """An iterator without an end."""

    def __init__(self, feed: Owner) -> None:
        self._feed = feed

    def __iter__(self) -> LiveBatches:
        return self

    def __len__(self) -> int:
        msg = "loader: a stream does not end, so it has no number of batches"
        raise TypeError(msg)

    def take(self, timeout: float | None = None, make: Callable[[Batch], Any] = _itself) -> Any:
        """What `make` makes of the next batch; WaitError, with the pass going on, after `timeout` seconds.

        Asking says that the batch before is finished. The position moves when the batch is made: one that the loop
        never got, because `make` raised, does not count.
        """
        run, progress = self._feed.running(self)
        progress.asked()
        try:
            batch = run.take(timeout)
            made = make(batch)
        except WaitError:
            raise
        except BaseException as error:
            if not run.cut:  # else another thread has ended it, and a newer iterator may be under way
                self._feed.failed()
            if isinstance(error, StopIteration):  # which would end the loop without a word
                msg = "collate_fn, transform: must not raise StopIteration"
                raise ConfigError(msg) from error
            raise
        self._feed.took(batch, made)
        return made

    def __next__(self) -> Batch:
        batch: Batch = self.take()
        return batch
