"""A shard that lies whole on one of a set's targets: a file as any other, whose reads are counted for its target."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dali_feed.records.storage_stats import StorageMeter, StorageStats
from dali_feed.storage.local import LocalFile
from dali_feed.storage.stamp import Stamp

__all__ = ["TargetFile"]


@dataclass(frozen=True, slots=True)
class TargetFile:
    """See `storage.contract.Opened`; `target` is the number of its target in the meter."""

    file: LocalFile
    target: int
    meter: StorageMeter

    def stamp(self) -> Stamp:
        """What `fstat` says."""
        return self.file.stamp()

    def read(self, view: memoryview, at: int) -> int:
        """See `storage.contract.Opened`."""
        began, got = time.perf_counter(), -1
        try:
            got = self.file.read(view, at)
        finally:
            self.meter.failures += got < 0
            self.meter.read(time.perf_counter() - began, max(0, got), self.target)
        return got

    def storage(self) -> tuple[StorageStats, ...]:
        """See `records.storage_stats.Stored`."""
        return (self.meter.stats(),)

    def close(self) -> None:
        """Close it. Safe to call twice."""
        self.file.close()
