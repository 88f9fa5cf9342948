"""Memory that is used again: never while anybody looks at it, and then without new pages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dali_feed.records.slabs import ALIGNED, Reused

SIZE = 1 << 12


def address(memory: np.ndarray) -> int:
    """Where it begins."""
    return int(memory.__array_interface__["data"][0])


def test_memory_comes_again_when_nothing_over_it_is_left() -> None:
    """The bytes of an array that was deleted are those of the next one."""
    reused = Reused()
    first = reused(SIZE)
    where = address(first)
    del first
    assert address(reused(SIZE)) == where


@pytest.mark.parametrize(
    "look",
    [
        lambda memory: memory[8:16].view(np.float32).reshape(1, 2),
        lambda memory: np.asarray(np.asarray(memory)[3:][1:]),
        lambda memory: torch.from_numpy(memory)[5:].numpy()[1:],
        lambda memory: memoryview(memory)[2:3],
        lambda memory: np.frombuffer(memory, np.uint8)[7:],
    ],
)
def test_memory_that_is_looked_at_is_not_given_again(look: object) -> None:
    """However a view was made and cut, it keeps the bytes until it is deleted itself."""
    reused = Reused()
    memory = reused(SIZE)
    where, kept = address(memory), look(memory)  # type: ignore[operator]
    del memory
    other = reused(SIZE)
    assert address(other) != where
    del kept
    assert address(reused(SIZE)) == where


def test_memory_is_as_large_as_asked_for() -> None:
    """A larger piece serves a smaller batch; a too small one, or one twice as large, is let go."""
    reused = Reused()
    for size in (10, 8, 1000, 3, 0):
        assert reused(size).shape == (size,)


@pytest.mark.parametrize("size", [1, 100, SIZE, 5 << 20])
def test_memory_begins_with_a_line(size: int) -> None:
    """Whatever its size, so that vectors and lines of a cache lie in it as they lie in memory."""
    reused = Reused()
    held = [reused(size) for _ in range(3)]
    assert [address(memory) % ALIGNED for memory in held] == [0, 0, 0]
