"""The law of resume on one more source: the state in the middle at each world size, and each other one at one.

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
    """`assert_resumes_anywhere`, but only the middle one of at least three states goes on at each world size.

    The others take turns; with which size these begin depends on the test alone.
    """
    if isinstance(positions := options.get("positions", 6), int):
        options["positions"] = max(3, positions)  # of fewer none is in the middle
    if settings.get_current_profile_name() == "thorough":
        assert_resumes_anywhere(source, **options)
        return
    turn = zlib.crc32(os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].encode())
    with patch.object(resumes, "_restores", functools.partial(in_turn, turn)):
        assert_resumes_anywhere(source, **options)


def in_turn(first: int, positions: Sequence[int], sizes: int) -> Iterator[tuple[int, int]]:
    """(after how many batches, which world size)."""
    middle = positions[len(positions) // 2]
    for k in range(sizes):
        yield middle, k
    for n, position in enumerate(position for position in positions if position != middle):
        yield position, (first + n) % sizes
