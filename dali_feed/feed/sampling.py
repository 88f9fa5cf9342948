"""A sampler's indices, read anew for each epoch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError

__all__ = ["indices_of"]


def indices_of(sampler: Iterable[int], epoch: int) -> NDArray[np.int64]:
    """The indices of an epoch, int64; a sampler with `set_epoch` is told which. ConfigError for what is no int."""
    set_epoch = getattr(sampler, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
    indices = list(sampler)
    odd = [i for i in indices if not isinstance(i, int | np.integer) or isinstance(i, bool)]
    if odd:
        msg = f"sampler: must give ints, one per sample; found {odd[0]!r}"
        raise ConfigError(msg)
    return np.asarray(indices, np.int64)
