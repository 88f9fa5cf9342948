"""Tells how much a run has consumed: a group, for lag tools, and whoever asks for stats.

The law: only the checkpoint's position is ever read. What is published here is for people who watch, and
where it cannot be published the training goes on.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dali_feed import sync
from dali_feed.errors import StateError
from dali_feed.feed.planning import Planning
from dali_feed.feed.stats import Stats
from dali_feed.plan import state as states
from dali_feed.plan.batching import MAX_EPOCH, Shares
from dali_feed.plan.mixed import MixedPlan
from dali_feed.plan.order import EpochPlan, Order
from dali_feed.plan.state import Position
from dali_feed.records.source import Int64s, Snapshot, Source

COST = 20  # times what it takes

log = logging.getLogger("dali_feed")


def progress(snapshot: Snapshot, plan: EpochPlan | MixedPlan, at: Position, *, left: bool) -> Int64s:
    """Per partition its first position and the number of its positions that the trainer has consumed, int64.

    Where the snapshot knows its holes, the position of the first record that would be left had they come in order.
    Between two epochs, and when no batch is `left`, that is the partition's end. Records that fill up the last slots
    of the lanes a second time do not lead beyond it.
    """
    if at.between or not left:
        return snapshot.stops.copy()
    given = plan.given(at.consumed, len(snapshot.starts))
    if snapshot.present is None:
        return np.asarray(np.minimum(snapshot.starts + given, snapshot.stops), np.int64)
    return snapshot.present.reached(given, snapshot.starts, snapshot.stops)


class Placing:
    """Says in stats where the loop stands. For a large topic that takes a tenth of a second, so it is worked out anew
    only where that is a twentieth of the time since the last at most; nothing is planned, or looked at, for it.
    """

    def __init__(self) -> None:
        self._known: tuple[EpochPlan | MixedPlan | None, dict[int, int]] | None = None
        self._again = 0.0

    def placed(self, stats: Stats, planning: Planning, at: Position) -> Stats:
        """The same, with the position in each partition, and where the snapshot ends."""
        plan = planning.made(at.epoch)
        if stats.kafka is None or (plan is None and not at.between):
            return stats
        begun, snapshot = sync.monotonic(), planning.snapshot
        if plan is None or at.between:  # the epoch before is over
            self._known = plan, dict(enumerate(snapshot.stops.tolist()))
        elif self._known is None or self._known[0] is not plan or begun >= self._again:
            found = progress(snapshot, plan, at, left=bool(planning.counts(at.epoch, at.consumed)))
            self._known = plan, dict(enumerate(found.tolist()))
            ended = sync.monotonic()
            self._again = ended + COST * (ended - begun)
        ours = _measured(snapshot)
        stands = {partition: position for partition, position in self._known[1].items() if partition in ours}
        ends = dict(enumerate(snapshot.stops.tolist()))
        return dataclasses.replace(stats, kafka=stats.kafka.at_positions(stands, ends))


def _measured(snapshot: Snapshot) -> range | set[int]:
    """The partitions that clients of a cluster read: of a source made of several those of the parts with a pin."""
    found, first = set[int](), 0
    for part in snapshot.parts:
        if part.pin is not None:
            found.update(range(first, first + len(part.starts)))
        first += len(part.starts)
    return found if snapshot.parts else range(len(snapshot.starts))


def commit(source: Source, rank: int, found: Callable[[], Int64s]) -> None:
    """Publish what `found` gives where the source can, on rank 0; any failure is one warning in the log."""
    if rank or not source.commits:
        return
    try:
        source.commit(found())
    except Exception as error:  # noqa: BLE001  a figure for lag tools must not end a training
        said = str(error)  # a record in a log must not keep the frames, and the connection, alive
        log.warning("commit: %s. The training goes on; its checkpoints own the position", said)


# How far a run had come, read from a state of its loader: what `commit` would have reported.


def reached(state: Mapping[str, Any], snapshot: Snapshot) -> Int64s:
    """Per partition of the state's own snapshot where the run stands, int64; see `feed.commit.progress`.

    Raises StateError where it is no state, is of another snapshot, or has its order from a sampler, which it does not
    hold.
    """
    found = states.check(state, MAX_EPOCH)
    made, info = found["made_for"], found.get("info", {})
    if made.get("sampler") is not None:
        msg = (
            "state: its order came from a sampler, which a state does not hold; ask for the group whose offsets "
            "commit() sets"
        )
        raise StateError(msg)
    if made.get("source") != snapshot.fingerprint:
        msg = f"state: it must fit its own pin; the fingerprints are {made.get('source')!r}, {snapshot.fingerprint!r}"
        raise StateError(msg)
    try:
        order = Order(bool(made["shuffle"]), int(made["extent"]), int(made["window"]))
        lanes, drop_last = int(made["lanes"]), bool(made["drop_last"])
        shares = Shares(int(info["batch_size"]), 0, int(info["world_size"]), lanes)
        seed = int(made["seed"])
    except (KeyError, TypeError, ValueError) as error:
        msg = f"state: must be the dict that state_dict() gave; {type(error).__name__}: {error}"
        raise StateError(msg) from error
    epoch, consumed = found["epoch"], found["consumed"]
    plan = EpochPlan(snapshot, order, seed=seed, epoch=epoch, lanes=lanes, drop_last=drop_last, indices=None)
    left = bool(shares.counts(plan.lane_length - consumed, drop_last=drop_last))
    return progress(snapshot, plan, Position((epoch, consumed)), left=left)
