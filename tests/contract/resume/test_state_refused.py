"""States that are refused say all that differs; lanes that cannot be are refused before there is a loader."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from kit.images import QUICK, labelled
from kit.inside import Feed

from dali_feed import Shuffle
from dali_feed.errors import ConfigError, StateError
from dali_feed.testing import ScriptedSource


def _feed(source: Any = None, **options: Any) -> Feed:
    source = source or ScriptedSource(labelled(37), partitions=2, extent=3)
    chosen: dict[str, Any] = {"shuffle": Shuffle(3, 2), "tuning": QUICK} | options
    return Feed(source, 4, **chosen)


def _through_json(feed: Feed) -> Any:
    return json.loads(json.dumps(feed.state_dict()))


def test_all_differences_come_in_one_error() -> None:
    """What the state has, what is here, which sources those are, and the cure."""
    with _feed(lanes=2) as feed:
        state = _through_json(feed)
    other = ScriptedSource(labelled(9), name="other", partitions=2, extent=3)
    changes: dict[str, Any] = {"seed": 9, "lanes": 4, "shuffle": False, "drop_last": True, "sampler": [1, 2, 3, 4]}
    with _feed(other, **changes) as feed, pytest.raises(StateError) as caught:
        feed.load_state_dict(state)
    told = str(caught.value)
    for line in (
        "source: the state has '",
        "it was scripted with 37 samples, now it is other with 9)",
        "seed: the state has 0, this loader 9",
        "lanes: the state has 2, this loader 4",
        "shuffle: the state has True, this loader False",
        "extent: the state has 3, this loader 1",
        "window: the state has 2, this loader 1024",
        "drop_last: the state has False, this loader True",
        "sampler: the state has None, this loader '",
        "Make the loader with the values that the state has",
    ):
        assert line in told


def test_a_name_that_only_the_state_has_is_a_difference() -> None:
    """What a later release counts positions in, and this one does not know, is not passed over."""
    with _feed() as feed:
        state = _through_json(feed)
        state["made_for"]["curriculum"] = "hard"
        with pytest.raises(StateError, match="curriculum: the state has 'hard', this loader None"):
            feed.load_state_dict(state)


def test_a_state_of_another_version_says_which() -> None:
    """The version wanted, the one found, and what to do."""
    with _feed() as feed:
        for version in (0, 2, None, "1"):
            told = f"version must be 1; found {version!r}. Another release wrote it; load it with that release"
            with pytest.raises(StateError, match=re.escape(told)):
                feed.load_state_dict(feed.state_dict() | {"version": version})


def test_a_position_past_the_lane_says_both() -> None:
    """A position that no state of this plan can have is refused with the lane's length."""
    with _feed() as feed, pytest.raises(StateError, match="consumed must be at most 37, .*; found 38"):
        feed.load_state_dict(feed.state_dict() | {"consumed": 38})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lanes": 3, "world_size": 2}, "must be a multiple of world_size.*; found lanes=3, world_size=2"),
        ({"lanes": 1, "world_size": 2}, "must be a multiple of world_size.*; found lanes=1, world_size=2"),
        ({"lanes": 8}, "batch_size . world_size = 4 must be a multiple of lanes; found lanes=8"),
        ({"lanes": 0}, "lanes: must be an int of at least 1; found 0"),
        ({"lanes": 2.0}, "lanes: must be an int of at least 1; found 2.0"),
    ],
)
def test_lanes_that_cannot_be_are_refused(options: dict[str, Any], told: str) -> None:
    """Ranks hold equally many lanes and batches take equally many samples of each, or the loader is not made."""
    with pytest.raises(ConfigError, match=told):
        _feed(**options)
