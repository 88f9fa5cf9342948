"""Whether what must be in memory at once fits into `Tuning(memory=...)`."""

from __future__ import annotations

from collections.abc import Sequence

from dali_feed.errors import ConfigError
from dali_feed.feed.window import window_memory
from dali_feed.options import Tuning
from dali_feed.plan.shares import Shares
from dali_feed.records.slabs import SLAB_BYTES

__all__ = ["check_memory", "slab_bytes"]


def slab_bytes(memory: int) -> int:
    """Slabs so small that some dozens of reads fit into a small memory; 8 MiB from 256 MiB on."""
    return max(256 << 10, min(SLAB_BYTES, memory // 32))


def check_memory(tuning: Tuning, shares: Shares, *, windows: Sequence[tuple[int, int, int]], lane_length: int) -> None:
    """Raise ConfigError, with the figure that would do, where the memory is too small.

    windows      of each that a lane has open at once: its records, how many are read in one go, mean payload size
    lane_length  slots of a lane in an epoch
    """
    lanes = len(shares.mine)
    slots = shares.per_lane * (tuning.prefetch + 1)

    def least(memory: int) -> int:
        need = 0
        for window, extent, record_bytes in windows:
            # those that batches in flight, and one, touch
            touched = min(-(-(slots - 1) // window) + 1, -(-lane_length // window))
            need += touched * window_memory(window, extent, record_bytes, slab_bytes(memory)) * lanes
        return need

    memory = tuning.memory_bytes
    while (need := least(memory)) > memory:
        memory = need  # slabs, and what their ends waste, grow with it
    if memory > tuning.memory_bytes:
        window, _, record_bytes = max(windows, key=lambda its: its[0] * its[2])
        msg = (
            f"Tuning(memory={tuning.memory!r}): must hold the windows that batches in flight touch;"
            f" a window is {window} records of about {record_bytes} bytes, and this rank"
            f" has {lanes} lanes. Give memory={memory} or more, or a narrower"
            " Shuffle(window=...)"
        )
        raise ConfigError(msg)
