"""A window of which some reads are done: how far its slots can be filled at once."""

from __future__ import annotations

import threading

import numpy as np

from dali_feed.compiler.program import NoImage
from dali_feed.feed.reading import ReadPool
from dali_feed.feed.usable import looker
from dali_feed.feed.window import EmptyWindows, MeanSize, Proof, Window
from dali_feed.options import Decode
from dali_feed.plan.order import WindowPlan
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Extents
from dali_feed.testing.scripted import ScriptedSource, Stall


def test_slots_are_there_up_to_the_first_read_that_is_not() -> None:
    """In whatever order they come, and no further than is asked; once all is read there is no end."""
    event = threading.Event()
    source = ScriptedSource([*(b"record" for _ in range(8)), Stall(event, b"record"), *(b"record" for _ in range(3))])
    pool = ReadPool(source, SlabPool(), 1)
    begins = np.array([0, 4, 8])
    order = np.array([0, 5, 1, 4, 2, 9, 3, 6, 7, 8, 10, 11])
    plan = WindowPlan(0, Extents(np.zeros(3, np.int64), begins, begins + 4), order, begins + 4)
    window = Window(
        plan,
        0,
        sizes=MeanSize(200, 1000, 1 << 30),  # four records to a read
        look=looker(NoImage(), Decode()),
        pool=pool,
        where=str,
        proof=Proof(),
        empty=EmptyWindows(),
        others=lambda: iter(()),
    )
    try:
        assert len(window.tasks) == 3
        assert window.loaded_to(0, 12) == 0
        for task in window.tasks:
            pool.request(task)
        assert window.tasks[1].done.wait(60)
        assert [window.loaded_to(0, stop) for stop in (3, 5, 6, 12)] == [3, 5, 5, 5]
        assert [window.loaded_to(first, 12) for first in (2, 5, 6)] == [5, 5, 9]
        assert [window.loaded(0, 5), window.loaded(0, 6), window.loaded(6, 9)] == [True, False, True]
        window.wait(0, 5)
        assert window.loaded_to(0, 12) == 5
        event.set()
        window.wait(0, 12)
        assert window.loaded_to(0, 12) == 12
    finally:
        event.set()
        window.release()
        pool.close()
