"""What a pass over the data will read, for a source that wants to know it: the rest of its epoch, then the next one's.

The law: it decides nothing but what a cache keeps. All ranks of a machine get the same, since they share its disks.
"""

from __future__ import annotations

import numpy as np

from dali_feed.feed.passes_ahead import Planning
from dali_feed.options import local_processes
from dali_feed.plan.batching import MAX_EPOCH, Shares
from dali_feed.records.source import Extents, Source

__all__ = ["foresee", "lanes_here"]


def foresee(source: Source, planning: Planning, epoch: int, consumed: int) -> None:
    """A pass begins in that epoch, where `consumed` of each lane have been given."""
    tell, plan = getattr(source, "foresee", None), planning.plan(epoch)
    if tell is None:
        return

    def coming() -> tuple[Extents, int]:
        lanes = lanes_here(planning.shares)
        now = plan.reads(lanes, consumed)
        known = not planning.sampled and epoch + 1 < MAX_EPOCH  # a sampler is not asked before its time
        later = planning.foreseen(epoch + 1) if known else None
        this = int(now.lengths.sum())
        if later is None:
            return now, this
        then = later.reads(lanes)
        names = ("partition", "start", "stop")
        return Extents(*(np.concatenate([getattr(now, name), getattr(then, name)]) for name in names)), this

    tell(coming)


def lanes_here(shares: Shares) -> list[int]:
    """The lanes of all ranks on this machine, as torchrun deals ranks: neighbours together."""
    here = min(local_processes(), shares.world_size)
    first = shares.rank // here * here
    return [lane for lane in range(shares.lanes) if first <= lane % shares.world_size < first + here]
