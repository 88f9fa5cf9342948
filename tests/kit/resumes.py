"""The law of resume on one more source: each state, and each world size; each pair of them on some source.

A run of all states at all world sizes is that of `test_scripted_faults_resume_anywhere`, and of `make test-long`.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

from hypothesis import settings

from dali_feed.records.source import Source
from dali_feed.testing import assert_resumes_anywhere, resumes


def assert_resumes_in_turn(source: Source, **options: Any) -> None:
    """`assert_resumes_anywhere`, but a state goes on at one world size, and the next one at the next; each comes.

    With which it begins depends on the test alone, so that over all tests each comes after each number of batches.
    """
    if settings.get_current_profile_name() == "thorough":
        assert_resumes_anywhere(source, **options)
        return
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    with patch.object(resumes, "_restores", functools.partial(in_turn, zlib.crc32(test.encode()))):
        assert_resumes_anywhere(source, **options)


def in_turn(first: int, positions: Sequence[int], sizes: int) -> Iterator[tuple[int, int]]:
    """(after how many batches, which world size), as many as there are of either."""
    for n in range(max(len(positions), sizes)):
        yield positions[n % len(positions)], (first + n) % sizes
