"""Insides that contract/torch/test_dali_iterator.py needs not: they go with what they test."""

from __future__ import annotations

from typing import Any

import pytest
from kit.dali_pipelines import augmented, plain
from kit.images import broken_png, labelled, truncated_jpeg

from dali_feed.engines.dali.user_pipeline import read_pipeline
from dali_feed.testing import assert_resumes_anywhere
from dali_feed.testing.scripted import ScriptedSource


def source(count: int = 22, bad: tuple[int, ...] = ()) -> ScriptedSource:
    """JPEGs of several sizes with their number as the label; those in `bad` cannot be decoded."""
    items: list[Any] = labelled(count, sizes=True)
    for n in bad:
        items[n] = (truncated_jpeg() if n % 2 else broken_png(), n)
    return ScriptedSource(items)


@pytest.mark.parametrize(("pipeline", "world_sizes"), [(plain, (1, 2)), (augmented, (1,))])
def test_it_holds_the_law_of_every_source(pipeline: Any, world_sizes: tuple[int, ...]) -> None:
    """The public check, at every position; at two world sizes where nothing is DALI's draw."""
    assert_resumes_anywhere(source(30), transform=read_pipeline(pipeline, ("label",)), world_sizes=world_sizes)
