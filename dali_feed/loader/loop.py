"""What a loop asks of the loader that it runs over, whatever that gives: torch's tensors, or DALI's dicts."""

from __future__ import annotations

from typing import Any, Self

from dali_feed.feed.feed import AnyFeed
from dali_feed.feed.stats import Stats


class FeedLoop:
    """A feed's position, numbers and end, for `DataLoader` and DALI's iterators."""

    _feed: AnyFeed

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank and wherever the epoch stands."""
        return len(self._feed)

    @property
    def epoch(self) -> int:
        """The epoch that state_dict() stands in."""
        return self._feed.epoch

    @property
    def batches_left(self) -> int:
        """Batches that the current pass will still give, or the next one: after load_state_dict() the rest of an epoch.

        `len(loader)` is for a whole epoch, so `tqdm(loader, initial=len(loader) - loader.batches_left)`. TypeError for
        an iterable-style dataset, which does not know.
        """
        return self._feed.batches_left

    def state_dict(self) -> dict[str, Any]:
        """The loop's position: plain JSON, the same on every rank. Counts what the loop got, nothing prefetched."""
        return self._feed.state_dict()

    def commit(self) -> None:
        """Publish for lag tools how far the epoch is; call it after a checkpoint. A resume reads only the checkpoint.

        Per partition: its first position plus the number of records that all ranks have consumed of it in
        this epoch; its end when the epoch is over. It works on rank 0, with a source that can do it
        (`KafkaTopic(group=...)`); otherwise it does nothing. A failure is one warning in the log, within seconds, and
        never an exception.
        """
        self._feed.commit()

    def describe(self) -> str:
        """What an epoch is made of, how well it mixes, and what that costs in memory and reads."""
        return self._feed.describe()

    def stats(self) -> Stats:
        """Counts and waits since the start; says which stage is the slow one."""
        return self._feed.stats()

    def close(self) -> None:
        """Stop all threads and release engine and connections. Safe to call twice and in any state."""
        self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
