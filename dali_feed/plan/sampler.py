"""A sampler's indices, read anew for each epoch, and what a state keeps of them."""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError, SourceEmptyError

__all__ = ["digest_of", "has_dealt", "indices_of", "length_of", "read_whole", "told_epoch"]


def has_dealt(sampler: Any) -> bool:
    """Whether a sampler gives one rank's samples alone, as torch's DistributedSampler does."""
    return hasattr(sampler, "num_replicas") and hasattr(sampler, "rank")


def told_epoch(sampler: Any, epoch: int) -> None:
    """Call a sampler's `set_epoch`, if it has one, with the next epoch."""
    set_epoch = getattr(sampler, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


def length_of(thing: Any) -> int | None:
    """The length that it gives."""
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None


def read_whole(sampler: Iterable[Any], samples: int) -> list[Any]:
    """All indices that it gives in an epoch. ConfigError where one without a length does not end."""
    if length_of(sampler) is not None:
        return list(sampler)
    most = max(1 << 20, 16 * samples)
    items = list(itertools.islice(sampler, most + 1))
    if len(items) > most:
        msg = (
            f"sampler: must end, as the order of an epoch is read whole; found more than {most} indices for {samples}"
            f" samples, and no __len__ on {type(sampler).__qualname__}. Let it end with the epoch; it is read again for"
            " the next one"
        )
        raise ConfigError(msg)
    return items


def indices_of(sampler: Iterable[int], epoch: int, samples: int) -> NDArray[np.int64]:
    """The indices of an epoch, int64; calls `set_epoch` where there is one.

    ConfigError for an index that is no int, SourceEmptyError for none at all, as of a generator in a second epoch.
    """
    told_epoch(sampler, epoch)
    found = np.asarray([_index(item) for item in read_whole(sampler, samples)], np.int64)
    if not len(found):
        once = iter(sampler) is sampler
        cure = "An iterator gives its items once; give a list of them" if once else "Check what it was made from"
        msg = f"sampler: must give at least one index for each epoch; found none for epoch {epoch}. {cure}"
        raise SourceEmptyError(msg)
    return found


def _index(item: Any) -> int:
    try:
        if not isinstance(item, bool):
            return operator.index(item)
    except TypeError:
        pass
    msg = f"sampler: must give ints, one per sample; found {item!r}"
    raise ConfigError(msg)


def digest_of(sampler: Any, given: NDArray[np.int64] | list[Any]) -> str:
    """The digest that a state keeps of an order: the same on all ranks, also where each has a part of its own."""
    if has_dealt(sampler):
        alike = {k: v for k, v in sorted(vars(sampler).items()) if isinstance(v, int | float | str) and k != "rank"}
        alike.pop("epoch", None)
        told = f"{type(sampler).__qualname__} {alike}".encode()
    else:
        told = given.tobytes() if isinstance(given, np.ndarray) else repr(given).encode()
    return hashlib.sha256(told).hexdigest()[:16]
