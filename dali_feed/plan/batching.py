"""The arguments of a feed, checked in the same way for our engines and for torch's own loader."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dali_feed.checks import whole
from dali_feed.errors import ConfigError
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
        sizes = ", ".join(str(ranks) for ranks in range(1, self.lanes + 1) if self.lanes % ranks == 0)
        log.info(
            "state: can be loaded at world size %s, with the same %d samples in each global batch. For others give"
            " lanes=, a multiple of each world size, when a run begins",
            sizes,
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
