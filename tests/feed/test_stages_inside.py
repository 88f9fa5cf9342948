"""Insides that contract/feed/test_stages.py needs not: they go with what they test."""

from __future__ import annotations

import pytest
from kit.images import QUICK, broken_png, labelled
from torchvision.transforms import v2

from dali_feed import BadRecords
from dali_feed.feed import Feed
from dali_feed.testing.scripted import Item, ScriptedSource


def test_running_a_batch_again_is_repair_and_a_wait_for_the_engine() -> None:
    """A record that the decoder refuses costs its batch a second run."""
    items: list[Item] = [*labelled(16)]
    items[6] = (broken_png(), 6)
    source, crop = ScriptedSource(items, extent=8), v2.CenterCrop(16)
    with Feed(source, 4, transform=crop, tuning=QUICK, bad=BadRecords(limit=None)) as feed:
        list(feed)
        spent, stats = feed._machine.meter.spent(), feed.stats()
    assert stats.bad == 1
    assert min(spent["repair"], spent["mend"]) > 0
    assert stats.engine_wait == pytest.approx(spent["engine"] + spent["repair"])
