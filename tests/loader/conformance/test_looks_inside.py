"""Insides that contract/torch/test_looks.py needs not: they go with what they test."""

from __future__ import annotations

from typing import Any

import pytest
from kit.both_loaders import OURS_BY_TORCH, Numbers
from kit.images import QUICK, labelled
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.plan.state import LOOKS
from dali_feed.testing.scripted import ScriptedSource

pytestmark = OURS_BY_TORCH

COUNT, BATCH = 12, 2


@pytest.fixture(params=["source", "torch"])
def make(request: pytest.FixtureRequest) -> Any:
    """Makes a shuffled loader of COUNT samples whose label is their number."""

    def made(**options: Any) -> DataLoader:
        options = {"shuffle": True, "device": "cpu", **options}
        if request.param == "torch":
            return DataLoader(Numbers(COUNT), BATCH, **options)
        size = v2.Resize((8, 8))
        return DataLoader(ScriptedSource(labelled(COUNT)), BATCH, transform=size, tuning=QUICK, **options)

    return made


def labels(batch: Any) -> list[int]:
    """Of one batch."""
    found: list[int] = (batch[1] if isinstance(batch, tuple | list) else batch).tolist()
    return found


def epochs_of(make: Any, count: int) -> list[list[list[int]]]:
    """What a loader gives that nobody looked at."""
    with make() as loader:
        return [[labels(batch) for batch in loader] for _ in range(count)]


def test_a_loop_of_looks_sees_new_batches(make: Any) -> None:
    """Whoever trains with next(iter(loader)) is not given one batch for ever."""
    epochs = epochs_of(make, 4)
    with make() as loader:
        seen = [labels(next(iter(loader))) for _ in range(LOOKS + 4)]
    assert seen == [epochs[0][0]] * LOOKS + [epoch[0] for epoch in epochs]
