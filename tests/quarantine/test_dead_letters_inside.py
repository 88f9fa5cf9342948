"""Insides that contract/bad_records/test_dead_letters.py needs not: they go with what they test."""

from __future__ import annotations

import pytest
from kit.shelves import Held, letter

from dali_feed.errors import DeadLetterError
from dali_feed.quarantine.outbox import Outbox
from dali_feed.testing.scripted import ScriptedSource


def test_a_place_that_hangs_is_an_error() -> None:
    """A write that does not come back ends the wait with the place, how many wait and how long."""
    held = Held()
    box = Outbox(ScriptedSource([]), held, patience=0.3)
    box.post(letter())
    with pytest.raises(DeadLetterError, match=r"1 wait and none was written for 0\.\d s"):
        box.drain()
    held.open.set()
    box.drain()
    box.close()
