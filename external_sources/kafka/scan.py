"""Which offsets of a topic hold a record: the topic read once, from end to end, and nothing kept of it but that.

The law: it is what a reader would be given. Brokers have no list of offsets, and no fetch without the
records themselves, so the price is the bytes of the topic over the network once, at the pace of an epoch's reads.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ClosedError
from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.external_sources.kafka.sample import Sizes, Weigh
from dali_feed.records.present import Present
from dali_feed.records.source import Extents, Int64s

__all__ = ["scanned"]

LOG = logging.getLogger("dali_feed.kafka")
READERS = 2  # consumers, in a thread each
STEP = 1 << 16  # offsets that a reader takes in one go
TELL_SECONDS = 30.0

Flags = NDArray[np.bool_]


def scanned(
    reader: Callable[[threading.Event], KafkaReader], topic: str, starts: Int64s, stops: Int64s, weigh: Weigh = len
) -> tuple[Present, int]:
    """The offsets in starts..stops-1 of each partition that hold a record, and the bytes of all of them.

    Raises what `KafkaReader.read` does.
    """
    flags = [np.zeros(length, bool) for length in (stops - starts).tolist()]
    scan = _Scan(reader, starts.tolist(), flags, weigh)
    try:
        scan.run(topic)
    finally:
        scan.close()
    return Present.of_flags(starts.tolist(), flags), scan.size


class _Scan:
    """Threads that take partitions in turn."""

    def __init__(
        self, reader: Callable[[threading.Event], KafkaReader], starts: list[int], flags: list[Flags], weigh: Weigh
    ) -> None:
        self._reader, self._starts, self._flags, self._weigh = reader, starts, flags, weigh
        self._todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for partition in sorted(range(len(flags)), key=lambda p: -len(flags[p])):
            if len(flags[partition]):
                self._todo.put(partition)
        self._done: queue.SimpleQueue[tuple[int, int] | BaseException | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"dali_feed-scan-{n}", daemon=True) for n in range(READERS)
        ]
        self.size = 0

    def run(self, topic: str) -> None:
        """Read it all; raises what a thread raised."""
        total, passed, left, told = sum(map(len, self._flags)), 0, READERS, time.monotonic()
        for thread in self._threads:
            thread.start()
        while left:
            item = self._done.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
                continue
            passed, self.size = passed + item[0], self.size + item[1]
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                LOG.warning("%s: %.0f %% of its offsets have been looked at", topic, 100 * passed / total)

    def close(self) -> None:
        """End the threads."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(5)

    def _work(self) -> None:
        reader = self._reader(self._stop)
        try:
            while True:
                try:
                    self._partition(reader, self._todo.get_nowait())
                except queue.Empty:
                    break
            self._done.put(None)
        except ClosedError:
            self._done.put(None)
        except BaseException as error:  # noqa: BLE001  whoever asked must hear of it, whatever it is
            self._done.put(error)
        finally:
            reader.close()

    def _partition(self, reader: KafkaReader, partition: int) -> None:
        first, flags = self._starts[partition], self._flags[partition]
        for a in range(0, len(flags), STEP):
            b = min(a + STEP, len(flags))
            sizes = Sizes(b - a, None, self._weigh)
            reader.fill(Extents.one(partition, first + a, first + b), sizes)
            flags[a:b] = np.asarray(sizes.found) >= 0
            self._done.put((b - a, sizes.size))
