"""What a reader that stands before another one passes on, whatever it makes of the records."""

from __future__ import annotations

from typing import Any

from dali_feed.records.gauges import Gauged, KafkaStats
from dali_feed.records.live import LiveReader
from dali_feed.records.source import Reader, Scales
from dali_feed.records.storage_stats import StorageStats, storage_of

__all__ = ["PassingOn"]


class PassingOn:
    """The base of such a reader; its subclass has `read`, or `poll` and `commit`."""

    def __init__(self, reader: Reader | LiveReader) -> None:
        self._reader: Any = reader

    @property
    def trouble(self) -> str:
        """The source's reader's, where it has one."""
        return getattr(self._reader, "trouble", "")

    def gauges(self) -> KafkaStats | None:
        """What the source's reader has measured, where it does."""
        return self._reader.gauges() if isinstance(self._reader, Gauged) else None

    def storage(self) -> tuple[StorageStats, ...]:
        """What the source's reader has measured of its files, where it does."""
        return storage_of([self._reader])

    def fetch_times(self, times: int) -> None:
        """How much it fetches at once, where it can choose; see `records.source.Scales`."""
        if isinstance(self._reader, Scales):
            self._reader.fetch_times(times)

    def rest(self) -> None:
        """Let the source's reader look after itself, where it has to."""
        if (rest := getattr(self._reader, "rest", None)) is not None:
            rest()

    def close(self) -> None:
        """Safe to call twice."""
        self._reader.close()
