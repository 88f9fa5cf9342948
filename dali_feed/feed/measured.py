"""How large records really are: a snapshot knows only a sample, which may say nothing of the part being read.

The law: reads ahead fit into the memory by the sizes read so far, and a window that really
does not fit ends the run with its figures. The order is never changed by it: the plan alone makes extents and windows.
"""

from __future__ import annotations

from dali_feed.errors import ConfigError
from dali_feed.records.slabs import slabs_for

__all__ = ["Measured"]


class Measured:
    """Mean payload size: the snapshot's until reads say that records are larger. The feed thread's own.

    memory  bytes of slabs that a window may take
    before  how large they were in the pass before, where one is known: reads are the same, and are estimated better
    """

    def __init__(self, record_bytes: int, slab_bytes: int, memory: int, before: int = 0) -> None:
        self._told, self.slab_bytes, self.memory = record_bytes, slab_bytes, memory
        self._rows = self._bytes = 0
        self._before = before

    def __bool__(self) -> bool:
        return self._rows > 0 or self._before > 0

    def anew(self) -> Measured:
        """For the pass behind this one."""
        return Measured(self._told, self.slab_bytes, self.memory, max(1, self.record_bytes))

    def add(self, rows: int, size: int) -> None:
        """So many positions were read, with so many bytes of payloads in slabs."""
        self._rows, self._bytes = self._rows + rows, self._bytes + size

    @property
    def record_bytes(self) -> int:
        """Bytes of a record, on the safe side of the two."""
        return max(self._told, self._bytes // max(1, self._rows))

    def slabs(self, records: int) -> int:
        """Bytes of slabs that so many records take: an estimate."""
        return slabs_for(records, max(self.record_bytes, self._before), self.slab_bytes)

    def too_large(self, first: str, records: int, held: int, rows: int) -> ConfigError:
        """The error of a window from `first` on of which `rows` of its records take `held` bytes: more than may be."""
        return ConfigError(
            f"Tuning(memory={self.memory}): must hold each window; in the window of {records} records from "
            f"{first}, {rows} of them take {held} bytes, but the source's sample says {self._told} bytes per "
            f"record. Give several times {held // max(1, rows) * records} bytes, or a narrower "
            "Shuffle(extent=..., window=...)"
        )
