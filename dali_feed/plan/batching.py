"""The arguments of a feed, checked in the same way for our engines and for torch's own loader."""

from __future__ import annotations

from dataclasses import dataclass

from dali_feed.checks import whole
from dali_feed.errors import ConfigError
from dali_feed.plan.order import Shuffle

__all__ = [
    "MAX_EPOCH",
    "Dealt",
    "Shares",
    "check_epoch",
    "check_shuffle",
]


MAX_EPOCH = 1 << 32


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
    """

    batch_size: int
    rank: int
    world_size: int
    lanes: int

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
    def of(cls, batch_size: int, rank: int, world_size: int, lanes: int | None) -> Shares:
        """As a user gives them: `lanes` None is the world size."""
        return cls(batch_size, rank, world_size, world_size if lanes is None else lanes)

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


class Dealt:
    """The attributes that a feed has by its `shares`."""

    shares: Shares

    @property
    def batch_size(self) -> int:
        """Slots per batch on this rank."""
        return self.shares.batch_size

    @property
    def rank(self) -> int:
        """Which part of each global batch this process takes."""
        return self.shares.rank

    @property
    def world_size(self) -> int:
        """How many processes share a global batch."""
        return self.shares.world_size

    @property
    def lanes(self) -> int:
        """Equal parts that an epoch's order is cut into; docs/words.md has a picture."""
        return self.shares.lanes

    @property
    def per_lane(self) -> int:
        """Slots that a full batch takes from each lane."""
        return self.shares.per_lane
