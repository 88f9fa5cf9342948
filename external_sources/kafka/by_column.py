"""Records that C copies out of librdkafka's memory into rows, some hundred nanoseconds each beside the copy.

It can be had where the loops in C are compiled (`dali_feed.native`), confluent_kafka has its librdkafka beside it as
its wheels do, and the rows say what they want of each record. The client is confluent_kafka's as ever: settings, log,
statistics and errors of the connection go its ways. What a partition gives is taken from that partition's own queue.

The law of `identity.py` is kept: the line that tells of another topic stands in the client's queue before any record of
that topic stands in the partition's. So the client's queue is emptied after records were taken, and what they are is
judged after that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from dali_feed.errors import SourceError
from dali_feed.external_sources.kafka.filled import Filled, Wanted
from dali_feed.external_sources.kafka.options import SLICE_SECONDS
from dali_feed.external_sources.kafka.run import Event, Run
from dali_feed.native.kafka import EMPTY, LOOK, ROOM, Found, Functions, Queue, RunInC, functions, newest_client, plugin

__all__ = ["ByColumn", "Client", "by_column", "librdkafka"]

_PLUGINS = "plugin.library.paths"


@cache
def librdkafka() -> str | None:
    """The library that confluent_kafka's wheel has beside it; None where it was built in another way."""
    package = Path(confluent_kafka.__file__).parent
    found = sorted((package.parent / f"{package.name}.libs").glob("librdkafka*.so*"))
    return str(found[0]) if len(found) == 1 else None


def by_column(wanted: Wanted) -> bool:
    """Whether records can be taken so."""
    path = librdkafka()
    return wanted.fits() and path is not None and functions(path) is not None


class Client:
    """What a consumer must be told, so that its handle is known."""

    def __init__(self) -> None:
        path = librdkafka()
        self.own = None if path is None else functions(path)

    def options(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What the consumer must be told beside `config`."""
        if self.own is None or ";" in plugin(self.own):  # which would be two paths
            return {}
        newest_client(self.own)  # none that was made before counts
        theirs = config.get(_PLUGINS)
        return {_PLUGINS: ";".join(filter(None, (theirs, plugin(self.own))))}

    def way(self, consumer: Consumer, topic: str) -> ByColumn | None:
        """The way of the consumer that was made with these options in this thread; None if its handle is not known."""
        handle = None if self.own is None else newest_client(self.own)
        return None if self.own is None or handle is None else ByColumn(consumer, self.own, handle, topic)


class _Head:
    """A record in the place of a `Message`, for rows that take it in Python."""

    def __init__(self, found: Found, topic: str) -> None:
        self._found, self._topic = found, topic

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._found.partition

    def offset(self) -> int:
        return self._found.offset

    def value(self) -> bytes | None:
        return self._found.value

    def key(self) -> bytes | None:
        return self._found.key

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return list(self._found.headers) or None

    def timestamp(self) -> tuple[int, int]:
        return self._found.time

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self._found.value or b"")


class ByColumn:
    """See `Way`. Its runs have `filled`."""

    def __init__(self, consumer: Consumer, own: Functions, handle: int, topic: str) -> None:
        self._consumer, self._topic = consumer, topic
        self._own, self._handle = own, handle
        self._queue: Queue | None = None
        self._left: Queue | None = None  # of the partition before this one
        self._partition = -1
        self._run = RunInC()
        self._events: list[Message] = []  # of the client's own queue

    def assign(self, partition: int, offset: int) -> None:
        """See `Way`."""
        self.drop()
        if partition != self._partition or self._queue is None:
            self._leave()
            # Before it is assigned, or its first records would go to the client's queue.
            new = Queue(self._own, self._handle, self._topic, partition, keeps=self._consumer)
            self._left, self._queue, self._partition = self._queue, new, partition
        self._consumer.assign([TopicPartition(self._topic, partition, offset)])

    def come(self, run: Run, most: int) -> bool:
        """See `Way`."""
        del most
        if self._events:
            return True
        queue, filled, told = self._queue, _filled(run), self._run
        if not queue:  # librdkafka has none of that partition
            self._hear(SLICE_SECONDS)
            return bool(self._events)
        told.want, told.stop, told.bytes = run.want, run.stop, 0
        filled.begin(run.shift)
        until = time.monotonic() + SLICE_SECONDS
        while (why := queue.take(told, filled.told, max(0, int((until - time.monotonic()) * 1000)))) == ROOM:
            filled.grow(told.need)
            if time.monotonic() >= until:  # large records, each with memory of its own, never let C look at the clock
                why = LOOK
                break
        came = told.want > run.want or why not in (EMPTY, LOOK)
        run.want = told.want
        run.received += told.bytes
        if came:
            self._leave()
        self._hear(0)
        return came or bool(self._events)

    def _hear(self, seconds: float) -> None:
        """Take what the client itself has: logs and statistics go to their functions meanwhile."""
        while (message := self._consumer.poll(seconds)) is not None:
            self._events.append(message)

    def look(self, run: Run) -> Event | None:
        """See `Way`."""
        if self._events:
            first = self._events[0]
            if (told := first.error()) is not None:
                return Event(told, first.partition(), first.offset())
            self.assign(run.partition, run.want)  # a record, which has no business there: all from there on once more
            return None
        queue = self._queue
        if queue is None or not queue.waits or run.want >= run.stop:
            return None
        offset = queue.offset
        if offset is not None and offset >= run.stop:
            run.want = run.stop
            return None
        found = queue.head()
        if offset is None:
            if not found.error:  # skipped, it might have been records
                msg = (
                    f"{self._topic}[{run.partition}]@{run.want}: a partition's queue must hold records and errors; "
                    "librdkafka gave something else: set DALI_FEED_NATIVE=0 to read without the loops in C"
                )
                raise SourceError(msg)
            return Event(KafkaError(found.error, found.said, found.fatal), found.partition, found.offset)
        row = found.offset + run.shift
        _filled(run).leave_out(row)
        head: Any = _Head(found, self._topic)
        run.rows.take(row, head)
        run.received += len(head)
        run.want = found.offset + 1
        queue.skip()
        return None

    def skip(self) -> None:
        """See `Way`."""
        if self._events:
            self._events.pop(0)
        elif self._queue is not None:
            self._queue.skip()

    def drop(self) -> None:
        """See `Way`."""
        self._events.clear()
        if self._queue is not None:
            self._queue.skip()

    def close(self) -> None:
        """See `Way`."""
        self._leave()
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()

    def _leave(self) -> None:
        """Close the queue of the partition before: nothing more comes into it once there are records of this one.

        Closed sooner it would keep a fetch, some megabytes of each partition, for as long as the client lives.
        """
        queue, self._left = self._left, None
        if queue is not None:
            queue.close()


def _filled(run: Run) -> Filled:
    if run.filled is None:  # never: the reader takes such a run by message
        msg = f"partition {run.partition}@{run.want}: rows that C does not fill must be read by message"
        raise SourceError(msg)
    return run.filled
