"""Insides that contract/resume/test_state.py needs not: they go with what they test."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from kit.images import QUICK, labelled, text
from torchvision.transforms import v2

from dali_feed.feed import Feed
from dali_feed.options import BadRecords
from dali_feed.plan.order import EpochPlan, Shuffle
from dali_feed.records.extents import pack_ids
from dali_feed.testing.scripted import Corrupt, Gap, ScriptedSource

pytestmark = pytest.mark.usefixtures("each_engine")

CROP = v2.Compose([v2.RandomResizedCrop(16, scale=(0.3, 1.0)), v2.RandomHorizontalFlip()])


def _items(count: int = 37) -> list[Any]:
    items: list[Any] = labelled(count, sizes=True)
    items[0], items[10], items[11], items[12], items[17], items[35] = (
        Gap(), Corrupt(), Gap(), Corrupt("torn"), (text(), 1), Gap(),
    )  # fmt: skip
    return items


def _feed(source: Any = None, batch_size: int = 4, **options: Any) -> Feed:
    source = source or ScriptedSource(_items(), partitions=2, extent=3)
    options = {"transform": CROP, "shuffle": Shuffle(3, 2), "bad": BadRecords(limit=None), "tuning": QUICK} | options
    return Feed(source, batch_size, **options)


def _through_json(feed: Feed) -> Any:
    return json.loads(json.dumps(feed.state_dict()))


def test_restoring_reads_nothing_before_the_window() -> None:
    """Each lane reads the window it stood in at most once, and nothing that came before it."""
    with _feed(lanes=2, batch_size=2) as feed:
        plan = feed.plan
        assert isinstance(plan, EpochPlan)
        batches = iter(feed)
        for _ in range(9):
            next(batches)
        state = _through_json(feed)
    assert state["consumed"] == 9
    source = ScriptedSource(_items(), partitions=2, extent=3)
    with _feed(source, lanes=2, batch_size=2) as other:
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
