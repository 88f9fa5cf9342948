"""Files by number, without end. It stands alone so that a new process imports NumPy for it and no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["EndlessFiles"]


class EndlessFiles:
    """Sample number n of a line of files without end, each epoch in an order of its own; made in any process."""

    def __init__(self, files: list[str], seed: int) -> None:
        self._files, self._seed = files, seed
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def read(self, n: int) -> NDArray[np.uint8]:
        """One file's bytes."""
        epoch, at = divmod(n, len(self._files))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng((self._seed, epoch)).permutation(len(self._files))
        return np.fromfile(self._files[self._order[at]], np.uint8)

    def __call__(self, sample: Any) -> NDArray[np.uint8]:
        """What DALI's workers ask for."""
        return self.read(sample.idx_in_epoch)

    def batches(self, size: int) -> Iterator[list[NDArray[np.uint8]]]:
        """What DALI asks for in this process."""
        first = 0
        while True:
            yield [self.read(n) for n in range(first, first + size)]
            first += size
