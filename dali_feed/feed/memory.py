"""Whether what must be in memory at once fits into `Tuning(memory=...)`."""

from __future__ import annotations

from dali_feed.errors import ConfigError
from dali_feed.feed.window import window_memory
from dali_feed.options import Tuning
from dali_feed.plan.shares import Shares
from dali_feed.records.slabs import SLAB_BYTES

__all__ = ["check_memory", "slab_bytes"]


def slab_bytes(memory: int) -> int:
    """Slabs so small that some dozens of reads fit into a small memory; 8 MiB from 256 MiB on."""
    return max(256 << 10, min(SLAB_BYTES, memory // 32))


def check_memory(
    tuning: Tuning, shares: Shares, *, window: int, extent: int, record_bytes: int, lane_length: int
) -> None:
    """Raise ConfigError, with the figure that would do, where the memory is too small.

    window        records of a window
    extent        records that are read in one go
    record_bytes  mean payload size
    lane_length   slots of a lane in an epoch
    """
    lanes = len(shares.mine)
    slots = shares.per_lane * (tuning.prefetch + 1)
    windows = min(-(-(slots - 1) // window) + 1, -(-lane_length // window))  # that batches in flight, and one, touch

    def least(memory: int) -> int:
        return windows * window_memory(window, extent, record_bytes, slab_bytes(memory)) * lanes

    memory = tuning.memory
    while (need := least(memory)) > memory:
        memory = need  # slabs, and what their ends waste, grow with it
    if memory > tuning.memory:
        msg = (
            f"Tuning(memory={tuning.memory}): must hold the windows that batches in flight touch;"
            f" a window is {window} records of about {record_bytes} bytes, and this rank"
            f" has {lanes} lanes. Give memory={memory} or more, or a narrower"
            " Shuffle(window=...)"
        )
        raise ConfigError(msg)
