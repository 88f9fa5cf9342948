"""A heap of which the garbage collector sees what is new alone: benches collect before each turn, and torch is big."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

__all__ = ["frozen_heap"]


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> Iterator[None]:
    """For the tests of the file that imports it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
