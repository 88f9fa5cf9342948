"""What a feed is asked for, checked alike whoever runs it: our engines or torch's own loader."""

from __future__ import annotations

from dali_feed.checks import whole
from dali_feed.errors import ConfigError
from dali_feed.plan.order import Shuffle

__all__ = ["MAX_EPOCH", "check_epoch", "check_shares", "check_shuffle"]

MAX_EPOCH = 1 << 32


def check_shuffle(shuffle: object) -> None:
    """A bool or a Shuffle; ConfigError otherwise."""
    if shuffle is not True and shuffle is not False and not isinstance(shuffle, Shuffle):
        msg = f"shuffle: must be a bool or a Shuffle; found {shuffle!r}"
        raise ConfigError(msg)


def check_epoch(epoch: object) -> int:
    """The number of an epoch; ConfigError for what is none."""
    number = whole("set_epoch", epoch, 0)
    if number >= MAX_EPOCH:
        msg = f"set_epoch: must be below 2**32; found {epoch}"
        raise ConfigError(msg)
    return number


def check_shares(batch_size: object, rank: object, world_size: object, lanes: object) -> tuple[int, int, int, int]:
    """The four as they will be used, `lanes` None being the world size. ConfigError where they do not go together."""
    size, ranks, mine = whole("batch_size", batch_size, 1), whole("world_size", world_size, 1), whole("rank", rank, 0)
    if mine >= ranks:
        msg = f"rank: must be below world_size={ranks}; found {rank}"
        raise ConfigError(msg)
    streams = ranks if lanes is None else whole("lanes", lanes, 1)
    if streams % ranks:
        msg = (
            "lanes: world_size must divide it, so that ranks hold equally many;"
            f" found lanes={streams}, world_size={ranks}"
        )
        raise ConfigError(msg)
    if size * ranks % streams:
        msg = (
            f"lanes: every global batch takes the same number from each lane, so lanes must divide"
            f" batch_size * world_size = {size * ranks}; found lanes={streams}"
        )
        raise ConfigError(msg)
    return size, mine, ranks, streams
