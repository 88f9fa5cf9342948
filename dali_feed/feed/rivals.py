"""Feeds that are alike but for their tuning, run in turns on one stretch of data after the other.

The law: a turn begins where the one before it ended, whoever ran it, so none reads what another one has just brought
into the machine's memory; and the feed that they were made after sees nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, Self

from dali_feed.errors import ConfigError
from dali_feed.feed.batch import Batch
from dali_feed.options import Tuning

__all__ = ["Rivals"]

_LEAST = 4  # batches that a turn counts
_TOGETHER = 2  # feeds that stand side by side
_LONGEST = 8  # times a turn's length, for slow batches

Clock = Callable[[], float]


class Rivals:
    """Gives samples per second of a turn, as `dali_feed.tuner` wants it.

    make     makes a feed with a tuning; it is closed here
    seconds  of a turn; one with fewer than four batches goes on, to eight times as long
    """

    def __init__(self, make: Callable[[Tuning], Any], seconds: float, clock: Clock = time.perf_counter) -> None:
        self._make, self._seconds, self._clock = make, seconds, clock
        self._feeds: dict[Tuning, Any] = {}  # the one used last at the end
        self._state: dict[str, Any] | None = None

    def turn(self, tuning: Tuning) -> float:
        """One turn with that tuning. ConfigError where it cannot be; a DaliFeedError where records cannot be read."""
        feed = self._feeds.pop(tuning, None)
        if feed is None:
            while len(self._feeds) >= _TOGETHER:
                self._feeds.pop(next(iter(self._feeds))).close()
            self._feeds[tuning] = feed = self._make(tuning)
            if tuning.cache is not None:
                for _ in feed:  # a cache is worth something from the second epoch on
                    pass
            self._run(feed, tuning)  # threads start, decoders and connections are made: of no turn
        self._feeds[tuning] = feed
        return self._run(feed, tuning)

    def _run(self, feed: Any, tuning: Tuning) -> float:
        if self._state is not None:
            feed.load_state_dict(self._state)
        batches = _endless(feed)
        try:
            for _ in range(tuning.prefetch + 1):  # an engine that is empty is not what a loop sees
                next(batches)
            begun, samples, count, seconds = self._clock(), 0, 0, 0.0
            while not count or ((seconds < self._seconds or count < _LEAST) and seconds < _LONGEST * self._seconds):
                samples += len(next(batches))
                count, seconds = count + 1, self._clock() - begun
        finally:
            batches.close()
        self._state = feed.state_dict()
        return samples / max(seconds, 1e-9)

    def close(self) -> None:
        """Close all feeds. Safe to call twice."""
        while self._feeds:
            self._feeds.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _endless(feed: Any) -> Generator[Batch]:
    """Batches, epoch after epoch. ConfigError where an epoch has none."""
    empty = 0
    while empty < 2:  # of an epoch that was left at its end there are none to come
        empty += 1
        for batch in feed:
            empty = 0
            yield batch
    msg = "tuning: an epoch must have a batch to be measured; found none. Use a smaller batch_size"
    raise ConfigError(msg)
