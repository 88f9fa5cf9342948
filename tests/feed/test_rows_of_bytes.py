"""Rows of bytes in a batch become lists of views in the thread that has the time for it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from kit.groups import until
from kit.inside import Feed

from dali_feed import Tuning
from dali_feed.columns import Bytes
from dali_feed.feed.batch import Batch
from dali_feed.records.pieces import Pieces
from dali_feed.testing import ScriptedSource

RECORDS = [(b"%03d" % n * (n % 5), n) for n in range(24)]
TUNING = Tuning(prefetch=1, threads=1, readers=1)


def feed() -> Feed:
    """Batches of four of these records."""
    return Feed(ScriptedSource(RECORDS), 4, columns={"raw": Bytes("value")}, tuning=TUNING)


def test_the_feed_thread_makes_views_where_it_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that waits makes those of its batch itself, and whoever made them, each batch has its records."""
    views, makers = Pieces.views, list[str]()

    def noted(pieces: Pieces) -> Any:
        makers.append(threading.current_thread().name)
        return views(pieces)

    monkeypatch.setattr(Pieces, "views", noted)
    with feed() as loaded:
        batches = iter(loaded)
        given = [next(batches).fields["raw"]]  # when it landed there was none for the loop to take
        assert threading.current_thread().name in makers
        until(lambda: "dali_feed-feed" in makers)  # of one that waits behind another, which nobody takes
        given += [batch.fields["raw"] for batch in batches]
    assert [[bytes(value) for value in batch] for batch in given] == [
        [value for value, _ in RECORDS[first : first + 4]] for first in range(0, 24, 4)
    ]
    assert {type(batch) for batch in given} == {list}


def test_views_are_made_once() -> None:
    """And columns of other kinds are left as they are."""
    of = np.zeros(2, np.int64)
    rows, numbers = Pieces([memoryview(b"abc")], of, of, of + 3), np.arange(2)
    batch = Batch(None, None, {"raw": rows, "n": numbers, "text": ["a", "b"]})
    batch.make_views()
    made = batch.fields["raw"]
    batch.make_views()
    assert batch.fields == {"raw": [b"abc", b"abc"], "n": numbers, "text": ["a", "b"]}
    assert batch.fields["raw"] is made
