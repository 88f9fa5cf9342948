"""The budget of bad records: exact, over any window of slots in a row or over the epoch."""

from __future__ import annotations

from fractions import Fraction

import pytest
from kit.images import QUICK, labelled
from kit.inside import Corrupt, Feed
from torchvision.transforms import v2

from dali_feed import BadRecords
from dali_feed.errors import BadRecordLimitError, ConfigError
from dali_feed.testing import ScriptedSource

SIZE = v2.Resize((16, 16))


def test_a_window_forgives_what_lies_further_apart() -> None:
    """Two bad ones within eight slots end the run, and the same two ten slots apart do not."""
    for spots, ends in (((3, 13), False), ((3, 10), True)):
        items = labelled(32)
        for spot in spots:
            items[spot] = Corrupt()
        with Feed(ScriptedSource(items), 4, bad=BadRecords(limit=1, window=8), tuning=QUICK) as feed:
            if ends:
                with pytest.raises(BadRecordLimitError, match="at most 1 of any 8 successive slots"):
                    list(feed)
            else:
                assert len(list(feed)) == 8


def test_a_small_set_survives_its_first_bad_images() -> None:
    """Of 20 images a hundredth is none, and three may be bad; the fourth ends the run and says what the limit was."""
    for count in (1, 3, 4):
        items = labelled(20)
        for spot in range(0, 5 * count, 5):
            items[spot] = Corrupt()
        with Feed(ScriptedSource(items), 4, transform=SIZE, tuning=QUICK) as feed:
            if count == 4:
                with pytest.raises(
                    BadRecordLimitError, match=r"at most 3 of this .* \(limit=1/100, floor=3\); found 4"
                ):
                    list(feed)
            else:
                assert len(list(feed)) == 5
                assert feed.stats().bad == count


def test_a_floor_is_for_shares_alone() -> None:
    """A limit of none is none, an int is as many as it says, and a share above the floor is that share."""
    assert [BadRecords(limit=limit).allowed(1000) for limit in (Fraction(0), 0, 1, Fraction(1, 100))] == [0, 0, 1, 10]
    assert BadRecords(floor=0).allowed(99) == 0
    assert BadRecords(limit=None).allowed(99) is None
    with pytest.raises(ConfigError, match=r"BadRecords\(floor=\.\.\.\)"):
        BadRecords(floor=-1)


def test_a_window_must_be_slots() -> None:
    """An int of at least 1, or None."""
    with pytest.raises(ConfigError, match=r"BadRecords\(window=\.\.\.\)"):
        BadRecords(window=0)
