"""Memory that is used again once nobody looks at it any more.

The law: bytes that were given are not given again while any array, tensor or view over them is left, however it was
made. New memory costs a page fault for each 4 KB, which is more than to fill it; a ring would be written over
while somebody still looks at it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALIGNED", "Reused"]

ALIGNED = 64  # bytes: of a cache line, and the widest vector; where memory begins
IDLE = 4  # pieces of memory kept for the next ones


class _Lent:
    """What all arrays over the memory end in: NumPy goes on to what is behind an array, but never behind this."""

    __slots__ = ("__array_interface__", "_idle", "_memory")

    def __init__(self, memory: NDArray[np.uint8], idle: deque[NDArray[np.uint8]]) -> None:
        self.__array_interface__: dict[str, Any] = memory.__array_interface__
        self._memory, self._idle = memory, idle

    def __del__(self) -> None:
        """Nobody looks at it any more."""
        self._idle.append(self._memory)


class Reused:
    """A pool of memory. Thread-safe: a deque's ends are."""

    def __init__(self) -> None:
        self._idle: deque[NDArray[np.uint8]] = deque(maxlen=IDLE)

    def __call__(self, size: int) -> NDArray[np.uint8]:
        """So many bytes of any content, uint8 (size,)."""
        try:
            memory = self._idle.pop()
        except IndexError:
            memory = np.empty(0, np.uint8)
        if not size <= len(memory) <= 2 * size:  # much too large: batches have become smaller
            memory = _new(size)
        return np.asarray(_Lent(memory, self._idle))[:size]


def _new(size: int) -> NDArray[np.uint8]:
    """Memory that begins where a line does, which NumPy's own does not."""
    memory = np.empty(size + ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + size]
