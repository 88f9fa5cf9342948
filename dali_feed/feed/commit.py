"""What a run has consumed, published for lag tools.

The law: the checkpoint owns the position. What is published here is for people who watch, is never read back, and
where it cannot be published the training goes on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from dali_feed.records.source import Commits, Int64s

if TYPE_CHECKING:
    from dali_feed.feed.feed import Feed

__all__ = ["commit", "progress"]

log = logging.getLogger("dali_feed")


def progress(feed: Feed) -> Int64s:
    """Per partition its first position and the number of its positions that the trainer has consumed, int64.

    Where the snapshot knows its holes, the position of the first record that would be left had they come in order.
    Between two epochs, and when no batch is left, that is the partition's end. Records that fill up the last slots
    of the lanes a second time do not lead beyond it.
    """
    plan, snapshot = feed._planned(), feed.snapshot
    consumed = feed._at.consumed
    between = consumed == 0 and feed.epoch > 0
    if between or not feed._counts(plan, consumed):
        return snapshot.stops.copy()
    given = plan.given(consumed, len(snapshot.starts))
    if snapshot.present is None:
        return np.asarray(np.minimum(snapshot.starts + given, snapshot.stops), np.int64)
    return snapshot.present.reached(given, snapshot.starts, snapshot.stops)


def commit(feed: Feed) -> None:
    """Publish `progress` where the source can, on rank 0; whatever goes wrong is one warning in the log."""
    source = feed.source
    if feed.rank or not isinstance(source, Commits):
        return
    try:
        source.commit(progress(feed))
    except Exception as error:  # noqa: BLE001  a figure for lag tools must not end a training
        said = str(error)  # a record in a log must not keep the frames, and the connection, alive
        log.warning("commit: %s. The training goes on; its checkpoints own the position", said)
