"""Insides that contract/topics/test_stream_batches.py needs not: they go with what they test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from kit.images import jpeg

from dali_feed import DataLoader
from dali_feed.errors import ClosedError, SourceError
from dali_feed.options import Tuning
from dali_feed.testing import ScriptedStream
from dali_feed.testing.scripted import Abort, Item

QUICK = Tuning(threads=1)


@contextlib.contextmanager
def loading(source: ScriptedStream, batch_size: int = 4, **options: Any) -> Iterator[Any]:
    """A loader on the CPU, closed at the end."""
    options = {"device": "cpu", "tuning": QUICK, "info": True, "timeout": 60, **options}
    with DataLoader(source, batch_size, **options) as loader:
        yield loader


def records(first: int, stop: int) -> list[tuple[bytes, int]]:
    """Pictures with their numbers as labels."""
    return [(jpeg(n), n) for n in range(first, stop)]


def test_an_error_comes_in_its_place_and_a_new_iterator_goes_on_there() -> None:
    """Records before it are handed over first, also those of a batch that is not full; nothing is lost."""
    items: list[Item] = [*records(0, 5), Abort(SourceError("the broker is gone"))]
    source = ScriptedStream(items)
    with loading(source) as loader:
        batches = iter(loader)
        assert [next(batches)[1].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4]]
        with pytest.raises(SourceError, match="the broker is gone"):
            next(batches)
        with pytest.raises(ClosedError):
            next(batches)
        source._items[0][5] = (jpeg(5), 5)
        source.append(0, *records(6, 9))
        assert next(iter(loader))[1].tolist() == [5, 6, 7, 8]
