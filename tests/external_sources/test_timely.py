"""A call that never comes back ends after a time; any other is as if it had been made directly."""

from __future__ import annotations

import threading

import pytest

from dali_feed.external_sources.kafka.client import StuckError, timely


def test_a_call_that_hangs_is_left_behind_and_others_are_done() -> None:
    """What hangs is a StuckError; what raises is raised; what ends is done when `timely` comes back."""
    never, done = threading.Event(), list[int]()
    with pytest.raises(StuckError):
        timely(never.wait, 0.01)
    never.set()
    with pytest.raises(ZeroDivisionError):
        timely(lambda: 1 // 0, 60)
    timely(lambda: done.append(1), 60)
    assert done == [1]
