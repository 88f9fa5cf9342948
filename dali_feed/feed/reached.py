"""How far a run had come, read from a state of its loader: what `commit` would have reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dali_feed.errors import StateError
from dali_feed.feed.commit import progress
from dali_feed.plan import state as states
from dali_feed.plan.order import EpochPlan, Order
from dali_feed.plan.position import Position
from dali_feed.plan.shares import MAX_EPOCH, Shares
from dali_feed.records.source import Int64s, Snapshot

__all__ = ["reached"]


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
        shares = Shares.of(int(info["batch_size"]), 0, int(info["world_size"]), lanes)
        seed = int(made["seed"])
    except (KeyError, TypeError, ValueError) as error:
        msg = f"state: must be the dict that state_dict() gave; {type(error).__name__}: {error}"
        raise StateError(msg) from error
    epoch, consumed = found["epoch"], found["consumed"]
    plan = EpochPlan(snapshot, order, seed=seed, epoch=epoch, lanes=lanes, drop_last=drop_last, indices=None)
    left = bool(shares.counts(plan.lane_length - consumed, drop_last=drop_last))
    return progress(snapshot, plan, Position(epoch, consumed), left=left)
