"""Insides that contract/sources/test_concat.py needs not: they go with what they test."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from kit.images import labelled

from dali_feed.external_sources import Concat
from dali_feed.plan.order import EpochPlan, Shuffle, canonical, resolve
from dali_feed.records.present import Present
from dali_feed.records.source import unpack_ids
from dali_feed.testing import ScriptedSource
from dali_feed.testing.scripted import Gap


def scripted(count: int, name: str = "s", **options: Any) -> ScriptedSource:
    """`count` images whose labels count from 0."""
    return ScriptedSource(labelled(count), name=name, **options)


def test_a_shuffle_mixes_all_and_gives_each_once() -> None:
    """Where single records of all are cheap it is uniform; else each source is cut into its own extents."""
    cheap = Concat([scripted(20), scripted(12)])
    order = resolve(True, cheap.snapshot())
    assert (order.extents, order.window) == (1, 1024)
    dear = Concat([scripted(20, extent=4), scripted(12, extent=3, random_access=False)])
    order = resolve(True, dear.snapshot())
    assert order.extents == (4, 3)
    line = canonical(dear.snapshot(), order.extents)
    assert line.lengths.tolist() == [4] * 5 + [3] * 4
    for source in (cheap, dear):
        snapshot = source.snapshot()
        plan = EpochPlan(snapshot, resolve(True, snapshot), seed=1, epoch=0, lanes=2)
        ids = np.concatenate([plan.ids(lane, 0, plan.lane_length) for lane in range(2)])
        assert sorted(ids.tolist()) == sorted(canonical(snapshot, 1).ids().tolist())
    assert resolve(Shuffle(5, 2), dear.snapshot()).extents == 5


def test_holes_of_one_are_known_beside_one_without() -> None:
    """Where a topic knows which offsets hold a record, the records of all sources are dealt once."""

    class Known(ScriptedSource):
        def snapshot(self, pin: Any = None) -> Any:
            flags = np.array([True, False, True, True])
            return dataclasses.replace(super().snapshot(pin), present=Present.of_flags([0], [flags]), absent=0.25)

    both = Concat([scripted(3), Known([*labelled(1), Gap(), *labelled(2)]), scripted(2)])
    snapshot = both.snapshot()
    assert (len(snapshot), snapshot.positions, round(snapshot.absent, 3)) == (8, 9, 0.111)
    line = snapshot.located(canonical(snapshot, 4)).ids()
    assert [(int(a), int(b)) for a, b in zip(*unpack_ids(line), strict=True)] == [
        *[(0, 0), (0, 1), (0, 2)],
        *[(1, 0), (1, 2), (1, 3)],
        *[(2, 0), (2, 1)],
    ]
