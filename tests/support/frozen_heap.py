"""A heap of which the garbage collector sees what is new alone: benches collect before each turn, and torch is big.

It stays so: to thaw it would thaw what tests/conftest.py froze too, and each later collection of the process would look
through a million objects of libraries again.
"""

from __future__ import annotations

import gc

import pytest

__all__ = ["frozen_heap"]


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> None:
    """For the tests of the file that imports it."""
    gc.collect()
    gc.freeze()
