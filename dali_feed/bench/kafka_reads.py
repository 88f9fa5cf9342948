"""A topic read without making tensors: as librdkafka's plain consumer does, and as our reader does.

Each gives (records, payload bytes) by and by. What both do is the least that a loader could do: every payload of the
topic, once a pass.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from dali_feed.bench.contract import Topic
from dali_feed.external_sources import KafkaTopic
from dali_feed.plan.order import canonical
from dali_feed.records.source import Extents

__all__ = ["Reading", "extents_of", "plain"]

AT_ONCE = 64  # records of a call
SILENT_S = 60.0  # without a record: the broker is gone
Size = tuple[int, int]  # records and their bytes


def plain(
    which: Topic, config: Mapping[str, Any] | None = None, *, count: int | None = None
) -> Generator[Size, None, None]:
    """One consumer of confluent_kafka, all partitions from their first record on, librdkafka's defaults.

    Values are counted and dropped. After `count` records it ends; None: a partition begins anew at its end, so that
    neither connections nor ends are what is measured. To this end a broker is asked to wait for 10 ms there, not 500,
    which changes nothing where there are records.

    Raises:
        KafkaException: what the broker or librdkafka says.
    """
    options: dict[str, Any] = {"group.id": "dali_feed.bench", **(config or {}), "bootstrap.servers": which.servers}
    options |= {"enable.auto.commit": False, "auto.offset.reset": "error"}
    consumer = Consumer(options if count else options | {"enable.partition.eof": True, "fetch.wait.max.ms": 10})
    try:
        partitions = consumer.list_topics(which.name, timeout=SILENT_S).topics[which.name].partitions
        consumer.assign([TopicPartition(which.name, p, OFFSET_BEGINNING) for p in partitions])
        seen = 0
        while count is None or seen < count:
            first = consumer.poll(SILENT_S)
            if first is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{which.name}: nothing for {SILENT_S:.0f} s"))
            records = size = 0
            # What is there; with a timeout it would wait at the topic's end for records that do not come.
            for message in (first, *consumer.consume(AT_ONCE - 1, 0)):
                error = message.error()
                if error is None:
                    records, size = records + 1, size + len(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    consumer.seek(TopicPartition(which.name, message.partition() or 0, OFFSET_BEGINNING))
                else:
                    raise KafkaException(error)
            if records:
                seen += records
                yield records, size
    finally:
        consumer.close()


def extents_of(source: KafkaTopic, *, shuffled: bool) -> list[Extents]:
    """The extents of a topic in the order of an epoch: the canonical one, or one at random."""
    snapshot = source.snapshot()
    line = canonical(snapshot, snapshot.extent)
    order = np.random.default_rng(1).permutation(len(line)) if shuffled else np.arange(len(line))
    return [snapshot.located(line[k : k + 1]) for k in order.tolist()]


class Reading(Iterator[Size]):
    """Our readers in as many threads, sharing the extents as a loader's do, copied into slabs as blocks.

    source   whose readers they are
    extents  in the order they are read
    readers  threads, with a consumer each
    endless  whether it begins anew at the end; else the iteration ends there
    """

    def __init__(self, source: KafkaTopic, extents: Sequence[Extents], readers: int, *, endless: bool = False) -> None:
        self._source, self._extents, self._endless = source, extents, endless
        self._next, self._lock, self._stop = 0, threading.Lock(), threading.Event()
        self._found: queue.SimpleQueue[Size | BaseException | None] = queue.SimpleQueue()
        self._working = readers
        self._threads = [threading.Thread(target=self._work, name=f"bench-read-{n}") for n in range(readers)]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # Ctrl-C: they might go on for ever
            self._stop.set()
            raise

    def _task(self) -> Extents | None:
        with self._lock:
            if self._stop.is_set() or (self._next >= len(self._extents) and not self._endless):
                return None
            self._next += 1
            return self._extents[(self._next - 1) % len(self._extents)]

    def _work(self) -> None:
        try:
            reader = self._source.reader(stop=self._stop)
            try:
                while (extents := self._task()) is not None:
                    block = reader.read(extents)
                    there = [payload for payload in block.payloads if payload is not None]
                    self._found.put((len(there), sum(map(len, there))))
                    del there
                    block.lease.release()
                self._found.put(None)  # before its connection is closed, which is no reading
            finally:
                reader.close()
        except BaseException as error:  # noqa: BLE001  it is raised in the thread that waits
            self._found.put(error)

    def __next__(self) -> Size:
        while self._working:
            found = self._found.get()
            if isinstance(found, BaseException):
                self._working = 0
                raise found
            if found is not None:
                return found
            self._working -= 1
        raise StopIteration

    def close(self) -> None:
        """End the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
