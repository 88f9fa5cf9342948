"""Whether what must be in memory at once fits into `Tuning(memory=...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dali_feed.errors import ConfigError
from dali_feed.feed.window import window_memory
from dali_feed.records.slabs import SLAB_BYTES

if TYPE_CHECKING:
    from dali_feed.feed.feed import Feed

__all__ = ["check_memory", "slab_bytes"]


def slab_bytes(memory: int) -> int:
    """Slabs so small that some dozens of reads fit into a small memory; 8 MiB from 256 MiB on."""
    return max(256 << 10, min(SLAB_BYTES, memory // 32))


def _least(feed: Feed, slab: int) -> int:
    """What must fit: every window that the batches in flight and the one being dealt can touch."""
    slots = feed.per_lane * (feed.tuning.prefetch + 1)
    samples = feed.window_samples
    windows = min(-(-(slots - 1) // samples) + 1, -(-feed._planned().lane_length // samples))
    each = window_memory(samples, feed.order.extent, feed.snapshot.record_bytes, slab)
    return windows * each * (feed.lanes // feed.world_size)


def check_memory(feed: Feed) -> None:
    """Raise ConfigError, with the figure that would do, where the feed's memory is too small."""
    memory = feed.tuning.memory
    while (need := _least(feed, slab_bytes(memory))) > memory:
        memory = need  # slabs, and what their ends waste, grow with it
    if memory > feed.tuning.memory:
        msg = (
            f"Tuning(memory={feed.tuning.memory}): must hold the windows that batches in flight touch;"
            f" a window is {feed.window_samples} records of about {feed.snapshot.record_bytes} bytes, and this rank"
            f" has {feed.lanes // feed.world_size} lanes. Give memory={memory} or more, or a narrower"
            " Shuffle(window=...)"
        )
        raise ConfigError(msg)
