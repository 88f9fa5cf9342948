"""The shares of lanes and ranks in batches, and a user's sampler: for our engines and for torch's own loader alike."""

from __future__ import annotations

import base64
import hashlib
import itertools
import logging
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed import sync
from dali_feed.checks import whole
from dali_feed.errors import ConfigError, SourceEmptyError, StateError
from dali_feed.plan.order import WINDOW_BYTES, Order, Shuffle, window_sizes
from dali_feed.records.source import Snapshot

log = logging.getLogger("dali_feed")

MAX_EPOCH = 1 << 32
MOST_LANES = 64  # that a run gets where nobody says how many
LEAST_PER_LANE = 16  # samples of a batch, and of an epoch, in each of those: MixUp mixes the samples of a lane


def check_shuffle(shuffle: object) -> None:
    """A bool or a Shuffle; ConfigError otherwise."""
    if shuffle is not True and shuffle is not False and not isinstance(shuffle, Shuffle):
        msg = f"shuffle: must be a bool or a Shuffle; found {shuffle!r}"
        raise ConfigError(msg)


def check_epoch(epoch: object) -> int:
    """The number of an epoch; ConfigError for a value that is none."""
    number = whole("set_epoch", epoch, 0)
    if number >= MAX_EPOCH:
        msg = f"set_epoch: the epoch must be below 2**32; found {epoch}"
        raise ConfigError(msg)
    return number


def world_sizes(lanes: int) -> str:
    """The numbers of ranks that can go on with a state of so many lanes: those that divide them."""
    return ", ".join(str(ranks) for ranks in range(1, lanes + 1) if lanes % ranks == 0)


@dataclass(frozen=True, slots=True)
class Shares:
    """How global batches are divided among lanes and ranks. ConfigError where the four do not fit together.

    batch_size  slots per batch on this rank
    rank        of this process; it holds the lanes l with l % world_size == rank
    world_size  ranks
    lanes       equal parts that an epoch's order is cut into
    most_lanes  where the user gave none: up to how many the records, or a state, may say; None: `lanes` are given
    """

    batch_size: int
    rank: int
    world_size: int
    lanes: int
    most_lanes: int | None = None

    def __post_init__(self) -> None:
        """Check all four, and keep NumPy's ints as Python's."""
        size, ranks = whole("batch_size", self.batch_size, 1), whole("world_size", self.world_size, 1)
        rank = whole("rank", self.rank, 0)
        if rank >= ranks:
            msg = f"rank: must be below world_size={ranks}; found {rank}"
            raise ConfigError(msg)
        lanes = whole("lanes", self.lanes, 1)
        if lanes % ranks:
            rule = "must be a multiple of world_size, so that ranks get equally many lanes (parts of an epoch's order)"
            msg = f"lanes: {rule}; found lanes={lanes}, world_size={ranks}"
            raise ConfigError(msg)
        if size * ranks % lanes:
            msg = (
                "lanes: the batches of all ranks together take equally many samples from each lane (an equal part of an"
                f" epoch's order), so batch_size * world_size = {size * ranks} must be a multiple of lanes; found"
                f" lanes={lanes}"
            )
            raise ConfigError(msg)
        for name, value in {"batch_size": size, "rank": rank, "world_size": ranks, "lanes": lanes}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, batch_size: int, rank: int, world_size: int, lanes: int | None, most_lanes: int = MOST_LANES) -> Shares:
        """As a user gives them: `lanes` None is the world size, until the records or a state say how many."""
        if lanes is None:
            return cls(batch_size, rank, world_size, world_size, most_lanes)
        return cls(batch_size, rank, world_size, lanes)

    def widened(self, snapshot: Snapshot, order: Order, *, drop_last: bool) -> Shares:
        """With the lanes of a run for which nobody gave `lanes`, so that other numbers of ranks can go on with it.

        They are the most that divide a global batch with at least 16 samples in each, that cut no extent which is best
        read in one go, and whose windows take 256 MB on a rank at most. An order that is not shuffled keeps those that
        it has, and on one rank an epoch that has all its records once keeps them once: there lanes must divide them.
        """
        parts, orders = ((snapshot,), (order,)) if snapshot.mix is None else (snapshot.parts, order.parts)
        counts = [len(part) for part in parts]
        extents = min(count // its.extent for count, its in zip(counts, orders, strict=True))
        if snapshot.mix is not None and snapshot.mix.samples is not None:
            counts.append(snapshot.mix.samples)
        ranks, batch = self.world_size, self.batch_size * self.world_size
        most = min(self.most_lanes or 0, extents, min(batch, *counts) // LEAST_PER_LANE) if order.shuffled else 0
        for lanes in range(most // ranks * ranks, self.lanes, -ranks):
            once = drop_last or ranks > 1 or not any(count % lanes for count in counts)
            window = sum(samples * size for samples, _, size in window_sizes(snapshot, order, lanes))
            if batch % lanes == 0 and once and lanes // ranks * window <= WINDOW_BYTES:
                return replace(self, lanes=lanes)
        return self

    def of_state(self, made_for: Mapping[str, Any]) -> Shares | None:
        """With the lanes that a state was saved with; None where the user gave others, or where they do not fit."""
        lanes = made_for.get("lanes")
        if self.most_lanes is None or not isinstance(lanes, int) or lanes < 1:
            return None
        fit = lanes % self.world_size == 0 and self.batch_size * self.world_size % lanes == 0
        return replace(self, lanes=lanes) if fit else None

    def log_world_sizes(self) -> None:
        """Say at INFO which numbers of ranks can go on with a state: those that divide the lanes."""
        log.info(
            "state: can be loaded at world size %s, with the same %d samples in each global batch. For others give"
            " lanes=, a multiple of each world size, when a run begins",
            world_sizes(self.lanes),
            self.batch_size * self.world_size,
        )

    @property
    def per_lane(self) -> int:
        """Slots that a full batch takes from each lane."""
        return self.batch_size * self.world_size // self.lanes

    @property
    def mine(self) -> range:
        """The lanes of this rank."""
        return range(self.rank, self.lanes, self.world_size)

    def last_step(self, lane_length: int) -> tuple[int, int]:
        """Samples that the last batches of all ranks have together, and how many of them are of one lane."""
        tail = lane_length % self.per_lane or self.per_lane
        return tail * self.lanes, tail

    def counts(self, left: int, *, drop_last: bool) -> list[int]:
        """Of `left` slots in every lane, how many each batch takes; the last one is the rest, or is left out."""
        full, rest = divmod(left, self.per_lane)
        return [self.per_lane] * full + ([rest] if rest and not drop_last else [])


# A user's sampler: its indices, read anew for each epoch, and what a state keeps of its order.
#
# The law: a state that has been taken can be gone on from. Where an order comes of random numbers, the state keeps
# where these stood before it was read: of the sampler's generator, of torch's own, or what the sampler's `state_dict`
# says. An order that nothing can make again is refused when a state is taken, not weeks later when it is needed.


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


def _epoch_in(sampler: Any) -> int | None:
    """The number that its `set_epoch` was called with last: its `epoch`, `_epoch` or `current_epoch`.

    Of a sampler around another one it may be that one's. None where there is no such number: of no other attribute is
    known whether it is one.
    """
    if not callable(getattr(sampler, "set_epoch", None)):
        return None
    numbers = (getattr(sampler, name, None) for name in ("epoch", "_epoch", "current_epoch"))
    number = next((number for number in numbers if number is not None), None)
    inner = getattr(sampler, "sampler", None)
    if number is None and inner is not None and inner is not sampler:
        return _epoch_in(inner)
    return int(number) if isinstance(number, int | np.integer) else None


class SamplerEpoch:
    """The epoch that a sampler stands in, and whether the user said so by its `set_epoch`, or we did."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._known, self._reading = _epoch_in(sampler), False
        # Guards both with the sampler's own number, so that no thread takes ours for the user's. Reentrant, as a
        # signal's handler may save a state.
        self._lock = sync.RLock()

    @property
    def number(self) -> int | None:
        """Of that epoch; None where the sampler has none."""
        return _epoch_in(self._sampler)

    @contextmanager
    def ours(self) -> Iterator[None]:
        """What its `set_epoch` is called with inside is not the user's word."""
        with self._lock:
            self._reading = True
        try:
            yield
        finally:
            with self._lock:
                self._known, self._reading = _epoch_in(self._sampler), False

    def news(self) -> int | None:
        """The number that the user has called it with since, said once; None for none. ConfigError for a wrong one."""
        with self._lock:
            number = _epoch_in(self._sampler)
            if self._reading or number is None or number == self._known:
                return None
            self._known = check_epoch(number)
            return number


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


def put_back(sampler: Any, state: Mapping[str, Any] | None, epoch: int | None) -> None:
    """Let it stand where it stood, by what `state_of` said and by the number of its epoch, as if it was not read."""
    if epoch is not None:
        sampler.set_epoch(epoch)
    inner = _inner(sampler)
    if state is None:
        return
    if "own" in state:
        inner.load_state_dict(state["own"])
    elif "generator" in state:
        inner.generator.set_state(_bytes(state["generator"]))
    else:
        sys.modules["torch"].set_rng_state(_bytes(state["torch"]))


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
