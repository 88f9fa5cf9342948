"""The encoded images of a bench as they lie in tar shards, for those that read them by bare calls.

The law: an image is one `preadv` of its own bytes, into memory of the thread's that is used again. No index of ours, no
header, no label: who reads a record at random from a file can hardly do less.
"""

from __future__ import annotations

import functools
import os
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import DataLostError

__all__ = ["TarReads"]


class TarReads:
    """The images of some shards, numbered one shard after the other. For any thread; `close` it."""

    def __init__(self, shards: Sequence[Path]) -> None:
        self._shards, self._places = tuple(shards), _places(tuple(shards))
        self._files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in shards]
        self._own = threading.local()

    def __len__(self) -> int:
        return len(self._places)

    def __call__(self, rows: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """The bytes of those images, until the same thread's next call."""
        places = self._places[rows]
        ends = np.cumsum(places[:, 2])
        memory: NDArray[np.uint8] | None = getattr(self._own, "memory", None)
        if memory is None or len(memory) < ends[-1]:
            memory = self._own.memory = np.empty(int(ends[-1]) * 5 // 4, np.uint8)
        found = []
        for (shard, at, size), end in zip(places.tolist(), ends.tolist(), strict=True):
            view = memory[end - size : end]
            if os.preadv(self._files[shard], (view.data,), at) != size:
                msg = (
                    f"{self._shards[shard]}: must have {size} bytes at byte {at}, as before; it was cut; write it again"
                )
                raise DataLostError(msg)
            found.append(view)
        return found

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        files, self._files = self._files, []
        for file in files:
            os.close(file)


@functools.lru_cache(maxsize=1)  # listed once, not in every turn
def _places(shards: tuple[Path, ...]) -> NDArray[np.int64]:
    """Shard, first byte and size of each image, int64 (n, 3): of each member that is no label."""
    found = []
    for number, path in enumerate(shards):
        with tarfile.open(path) as tar:
            found += [(number, each.offset_data, each.size) for each in tar if not each.name.endswith(".cls")]
    return np.array(found, np.int64).reshape(-1, 3)
