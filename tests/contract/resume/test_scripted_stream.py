"""ScriptedStream: its marks and members are held to what they must be, as those of a topic are."""

from __future__ import annotations

import pytest

from dali_feed.columns import Number
from dali_feed.errors import ConfigError, StateError
from dali_feed.testing import ScriptedStream

ITEMS = ([(b"a", 1), (b"b", 2)], [(b"c", 3)])


def test_members_are_value_and_label_alone() -> None:
    """A column of anything else is refused by the stream's name."""
    stream = ScriptedStream(*ITEMS, name="s")
    assert [member.name for member in stream.members()] == ["value", "label"]
    assert Number("label").member in stream.preset
    with pytest.raises(ConfigError, match="s: its records have the members 'value' and 'label'; found 'txt'"):
        stream.live(None, ("txt",))


def test_a_mark_is_of_this_stream_and_of_all_its_partitions() -> None:
    """Another stream's, one of too few partitions, and two of one rank are refused."""
    stream = ScriptedStream(*ITEMS, name="s")
    marks = [stream.mark({p: 1}, rank=p, world_size=2) for p in range(2)]
    assert stream.merged(marks)["position"] == {"0": 1, "1": 1}
    with pytest.raises(StateError, match="s: the mark must be of this stream; found 'other'"):
        stream.live(ScriptedStream(*ITEMS, name="other").mark({0: 1, 1: 0}), ("value",))
    with pytest.raises(StateError, match=r"s: the mark must have all partitions of rank 0 of 1; lacks \[1\]"):
        stream.live(marks[0], ("value",))
    with pytest.raises(StateError, match=r"s: marks must be of different ranks; found \[0, 0\]"):
        stream.merged([marks[0], marks[0]])
