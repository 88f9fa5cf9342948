"""What a restored run reads: the window it stood in, and nothing before it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from kit.images import QUICK, labelled, text
from torchvision.transforms import v2

from dali_feed import BadRecords, Shuffle
from dali_feed.feed import Feed
from dali_feed.plan.order import EpochPlan
from dali_feed.records.extents import pack_ids
from dali_feed.testing.scripted import Corrupt, Gap, ScriptedSource

FAULTS = {0: Gap(), 10: Corrupt(), 11: Gap(), 12: Corrupt("torn"), 17: (text(), 1), 35: Gap()}


def test_restoring_reads_nothing_before_the_window() -> None:
    """Each lane reads the window it stood in at most once, and nothing that came before it."""
    items: list[Any] = [FAULTS.get(n, item) for n, item in enumerate(labelled(37, sizes=True))]
    options: dict[str, Any] = {"transform": v2.RandomResizedCrop(16), "shuffle": Shuffle(3, 2), "tuning": QUICK}
    options |= {"lanes": 2, "bad": BadRecords(limit=None)}
    with Feed(ScriptedSource(items, partitions=2, extent=3), 2, **options) as feed:
        plan = feed.plan
        assert isinstance(plan, EpochPlan)
        batches = iter(feed)
        for _ in range(9):
            next(batches)
        state = json.loads(json.dumps(feed.state_dict()))
    assert state["consumed"] == 9
    source = ScriptedSource(items, partitions=2, extent=3)
    with Feed(source, 2, **options) as other:
        other.load_state_dict(state)
        assert source.reads == []
        list(other)
    may = []
    for lane in range(2):
        bounds = plan.bounds(lane).tolist()
        first = max(edge for edge in bounds if edge <= 9)
        may += plan.ids(lane, first, bounds[-1]).tolist()
    read = [n for p, a, b in source.reads for n in pack_ids(p, np.arange(a, b)).tolist()]
    assert sorted(read) == sorted(may)
    assert len(read) < 37
