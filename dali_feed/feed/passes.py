"""One pass over a feed, as the trainer sees it: each batch taken moves the feed's state."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dali_feed.errors import ClosedError, ConfigError, WaitError
from dali_feed.feed.batch import Batch
from dali_feed.feed.run import EpochRun

if TYPE_CHECKING:
    from dali_feed.feed.feed import Feed

__all__ = ["Batches"]


def _itself(batch: Batch) -> Batch:
    return batch


class Batches:
    """One pass; each batch taken moves the feed's state. Dropping it ends the pass."""

    def __init__(self, feed: Feed, run: EpochRun, counts: Sequence[int]) -> None:
        self._feed, self._run, self._counts = feed, run, counts
        self._taken = 0
        self._ended = False

    def __iter__(self) -> Batches:
        return self

    def __len__(self) -> int:
        """Batches still to come."""
        return len(self._counts) - self._taken

    def take(self, timeout: float | None = None, make: Callable[[Batch], Any] = _itself) -> Any:
        """What `make` makes of the next batch; WaitError, with the pass going on, after `timeout` seconds.

        The state moves when it is made: a batch that the trainer never got, for `make` raised, does not count.
        """
        feed = self._feed
        if self._ended:
            raise StopIteration
        feed._check_open()
        if feed._run is not self._run:
            msg = (
                "iterator: an error, a newer pass over the same loader, set_epoch() or load_state_dict()"
                " has ended this pass"
            )
            raise ClosedError(msg)
        try:
            batch = self._run.take(timeout)
        except StopIteration:
            feed._run, self._ended = None, True
            feed._at.ended()
            raise
        except WaitError:
            raise
        except BaseException:  # an interrupt too: its thread must not go on beside that of the next pass
            feed._at.failed()
            feed._end_pass()
            raise
        try:
            made = make(batch)
        except BaseException as error:  # a batch is missing: none behind it may count
            feed._at.failed()
            feed._end_pass()
            if isinstance(error, StopIteration):  # which would end the epoch without a word
                msg = "collate_fn, transform: must not raise StopIteration; leave records out with a sampler"
                raise ConfigError(msg) from error
            raise
        self._taken += 1
        feed._at.took(self._counts[self._taken - 1], last=self._taken == len(self._counts))
        feed._meter.batches += 1
        feed._meter.samples += len(batch)
        return made

    def __next__(self) -> Batch:
        batch: Batch = self.take()
        return batch

    def __del__(self) -> None:
        if self._feed._run is self._run and self._feed._pid == os.getpid():
            self._feed._end_pass()
