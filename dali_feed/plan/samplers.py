"""A user's sampler: its indices, read anew for each epoch, and what a state keeps of its order.

The law: a state that has been taken can be gone on from. Where an order comes of random numbers, the state keeps where
these stood before it was read: of the sampler's generator, of torch's own, or what the sampler's `state_dict` says. An
order that nothing can make again is refused when a state is taken, not weeks later when it is needed.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import operator
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError, SourceEmptyError, StateError

_RANDOM = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")  # torch's, which may have a generator


def has_dealt(sampler: Any) -> bool:
    """Whether a sampler gives one rank's samples alone, as torch's DistributedSampler does."""
    return hasattr(sampler, "num_replicas") and hasattr(sampler, "rank")


def length_of(thing: Any) -> int | None:
    """The length that it gives."""
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None


def read_order(sampler: Any, epoch: int, samples: int) -> list[Any]:
    """All that it gives for an epoch, after a call of its `set_epoch`, if it has one.

    ConfigError where one without a length does not end.
    """
    set_epoch = getattr(sampler, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
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


def indices_of(sampler: Iterable[int], epoch: int, items: Iterable[Any]) -> NDArray[np.int64]:
    """What a sampler gave for an epoch as int64.

    ConfigError for an index that is no int, SourceEmptyError for none at all, as of a generator in a second epoch.
    """
    indices = np.asarray([_index(item) for item in items], np.int64)
    if not len(indices):
        once = iter(sampler) is sampler
        cure = "An iterator gives its items once; give a list of them" if once else "Check what it was made from"
        msg = f"sampler: must give at least one index for each epoch; found none for epoch {epoch}. {cure}"
        raise SourceEmptyError(msg)
    return indices


def _index(item: Any) -> int:
    try:
        if not isinstance(item, bool):
            return operator.index(item)
    except TypeError:
        pass
    msg = f"sampler: must give ints, one per sample; found {item!r}"
    raise ConfigError(msg)


def digest_of(sampler: Any, order: NDArray[np.int64] | list[Any]) -> str:
    """The digest that a state keeps of an order: the same on all ranks, also where each has a part of its own."""
    if has_dealt(sampler):
        alike = {k: v for k, v in sorted(vars(sampler).items()) if isinstance(v, int | float | str) and k != "rank"}
        alike.pop("epoch", None)
        content = f"{type(sampler).__qualname__} {alike}".encode()
    else:
        content = order.tobytes() if isinstance(order, np.ndarray) else repr(order).encode()
    return hashlib.sha256(content).hexdigest()[:16]


# Where a sampler's random numbers stand.


def _inner(sampler: Any) -> Any:
    """The sampler that has the state: a batch sampler's own, where it is around one."""
    while not _has_state(sampler) and hasattr(sampler, "sampler") and sampler.sampler is not sampler:
        sampler = sampler.sampler
    return sampler


def _has_state(sampler: Any) -> bool:
    return callable(getattr(sampler, "state_dict", None)) and callable(getattr(sampler, "load_state_dict", None))


def _draws_from_torch(sampler: Any) -> bool:
    kind = type(sampler)
    torchs = kind.__module__.startswith("torch.utils.data") and kind.__name__ in _RANDOM
    return torchs and getattr(sampler, "generator", None) is None


def state_of(sampler: Any) -> dict[str, Any] | None:
    """Where the random numbers of its next order begin, as plain JSON; None where it has none that we know of."""
    inner = _inner(sampler)
    if _has_state(inner):
        return {"own": inner.state_dict()}
    generator: Any = getattr(inner, "generator", None)
    if callable(getattr(generator, "get_state", None)):
        return {"generator": base64.b64encode(generator.get_state().numpy().tobytes()).decode()}
    if _draws_from_torch(inner):
        return {"torch": base64.b64encode(sys.modules["torch"].get_rng_state().numpy().tobytes()).decode()}
    return None


def go_back(sampler: Any, state: Mapping[str, Any], epoch: int, samples: int) -> list[Any]:
    """The order that `state_of` was taken before, read again; random numbers of torch's own stand as they did, after.

    Raises:
        StateError: the state is of another kind of sampler, or is none.
    """
    inner = _inner(sampler)
    try:
        if "own" in state and _has_state(inner):
            inner.load_state_dict(state["own"])
            return read_order(sampler, epoch, samples)
        if "generator" in state and hasattr(inner, "generator") and inner.generator is not None:
            inner.generator.set_state(_bytes(state["generator"]))
            return read_order(sampler, epoch, samples)
        if "torch" in state and _draws_from_torch(inner):
            torch = sys.modules["torch"]
            before = torch.get_rng_state()
            torch.set_rng_state(_bytes(state["torch"]))
            try:
                return read_order(sampler, epoch, samples)
            finally:
                torch.set_rng_state(before)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        msg = f"state: its order must be what state_dict() gave for a {type(inner).__name__}; found {error}"
        raise StateError(msg) from error
    kinds = {"own": "with a state_dict()", "generator": "with a generator", "torch": "of torch's without a generator"}
    wanted = ", ".join(kinds.get(kind, kind) for kind in state) or "of no kind"
    msg = f"state: was taken with a sampler {wanted}; found {type(inner).__name__}. Give the loader such a sampler"
    raise StateError(msg)


def _bytes(text: str) -> Any:
    data = np.frombuffer(base64.b64decode(text, validate=True), np.uint8).copy()
    return sys.modules["torch"].from_numpy(data)


def _as_indices(items: list[Any]) -> NDArray[np.int64] | list[Any]:
    """As a feed's own digest sees them."""
    try:
        return np.asarray([_index(item) for item in items], np.int64)
    except ConfigError:
        return items


def check_repeats(sampler: Any, epoch: int, digest: str, samples: int) -> None:
    """StateError for a sampler without a state that gives another order when it is read again.

    An iterator, which gives its items once, is not read again.
    """
    if isinstance(sampler, list | tuple | range | np.ndarray) or iter(sampler) is sampler:
        return
    again = read_order(sampler, epoch, samples)
    if digest not in (digest_of(sampler, again), digest_of(sampler, _as_indices(again))):
        name = type(sampler).__qualname__
        msg = (
            f"state: the order of an epoch must be one that can be made again; {name} gives another one each time. Give"
            " it a generator, state_dict() and load_state_dict(), or a set_epoch() that decides its order"
        )
        raise StateError(msg)
