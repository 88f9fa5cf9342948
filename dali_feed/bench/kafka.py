"""`dali-feed bench kafka`: what of a topic's records reaches a training loop, beside reading them alone.

Contestants, in turns over the same topic:

    plain      one consumer of confluent_kafka with librdkafka's defaults, all partitions; values counted and dropped
    in order   our readers, extents in the order of shuffle=False, copied into blocks; ways: 1 or 2 readers
    at random  the same in a random order, as a shuffled epoch has them
    kafka      our loader: read, screened, decoded, cropped, normalized
    NAME       another loader that does the same
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from dali_feed.bench.data import BenchJob, Topic
from dali_feed.bench.loading import verdicts
from dali_feed.bench.ours import KAFKA_SHUFFLE, loader, ours, transform
from dali_feed.bench.runner import CHANCE, Contestant, Opens, Race, Steps, installed
from dali_feed.external_sources import KafkaTopic
from dali_feed.options import Tuning
from dali_feed.plan.order import canonical
from dali_feed.records.pieces import nbytes
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Extents, Source

UNIT = "records"
SHOWN = [
    *("who", "way", "records/s", "least", "most", "MB/s", "of plain", "of kafka"),
    *("cpu us", "p50 ms", "p99 ms", "peak MB", "server us", "busy"),
]
READERS = ("x2", "x1")  # the default first
NEAR = 0.8  # of reading alone: reading limits
AT_ONCE = 64  # records of a call
SILENT_S = 60.0  # without a record: the broker is gone
Size = tuple[int, int]  # records and their bytes


def plain(topic: Topic, config: Mapping[str, Any], *, count: int | None = None) -> Generator[Size, None, None]:
    """One consumer of confluent_kafka, all partitions from their first record on, librdkafka's defaults.

    Values are counted and dropped. After `count` records it ends; None: a partition begins anew at its end, so that
    neither connections nor ends are what is measured. To this end a broker is asked to wait for 10 ms there, not 500,
    which changes nothing where there are records. Raises KafkaException: what the broker or librdkafka says.
    """
    options: dict[str, Any] = {"group.id": "dali_feed.bench", **config, "bootstrap.servers": topic.servers}
    options |= {"enable.auto.commit": False, "auto.offset.reset": "error"}
    consumer = Consumer(options if count else options | {"enable.partition.eof": True, "fetch.wait.max.ms": 10})
    try:
        partitions = consumer.list_topics(topic.name, timeout=SILENT_S).topics[topic.name].partitions
        consumer.assign([TopicPartition(topic.name, p, OFFSET_BEGINNING) for p in partitions])
        seen = 0
        while count is None or seen < count:
            first = consumer.poll(SILENT_S)
            if first is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic.name}: nothing for {SILENT_S:.0f} s"))
            records = size = 0
            # What is there; with a timeout it would wait at the topic's end for records that do not come.
            for message in (first, *consumer.consume(AT_ONCE - 1, 0)):
                error = message.error()
                if error is None:
                    records, size = records + 1, size + len(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    consumer.seek(TopicPartition(topic.name, message.partition() or 0, OFFSET_BEGINNING))
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


class TopicReading(Iterator[Size]):
    """Our readers in as many threads, sharing the extents as a loader's do, copied into slabs as blocks.

    `endless`: it begins anew at the end; else the iteration ends there.
    """

    def __init__(self, source: KafkaTopic, extents: Sequence[Extents], readers: int, *, endless: bool = False) -> None:
        self._source, self._extents, self._endless = source, extents, endless
        self._next, self._stop = 0, threading.Event()
        self._lock = threading.Lock()  # guards _next
        self._results: queue.SimpleQueue[Size | BaseException | None] = queue.SimpleQueue()
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
            reader, pool = self._source.reader(["value"], self._stop), SlabPool()
            try:
                while (extents := self._task()) is not None:
                    lease = pool.lease()
                    block = reader.read(extents, lease)
                    there = len(block.ids) - len(block.absent_rows())
                    self._results.put((there, nbytes(block.values["value"])))
                    del block
                    lease.release()
                self._results.put(None)  # before its connection is closed, which is no reading
            finally:
                reader.close()
        except BaseException as error:  # noqa: BLE001  it is raised in the thread that waits
            self._results.put(error)

    def __next__(self) -> Size:
        while self._working:
            result = self._results.get()
            if isinstance(result, BaseException):
                self._working = 0
                raise result
            if result is not None:
                return result
            self._working -= 1
        raise StopIteration

    def close(self) -> None:
        """End the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


class _Sized(Steps):
    """Steps over (records, bytes), which know the size of a record."""

    def __init__(self, sizes: Iterator[Size]) -> None:
        self._sizes, self._records, self._bytes = sizes, 0, 0

    def __next__(self) -> int:
        records, size = next(self._sizes)
        self._records, self._bytes = self._records + records, self._bytes + size
        return records

    def extras(self) -> dict[str, float | str]:
        return {"bytes": self._bytes / self._records}


def contestants(
    job: BenchJob,
    alone: Callable[[], KafkaTopic],
    whole: Callable[[], Source],
    config: Mapping[str, Any],
    *,
    peers: bool = True,
) -> list[Contestant]:
    """In the order of their turns; `alone` makes a source without labels, to be read alone, `whole` the loader's.

    `config`: options of librdkafka that the broker asks for, secrets revealed.
    """
    topic, version = job.data.topic or Topic("", ""), installed("dali-feed")

    @contextmanager
    def plainly(_: str) -> Iterator[Steps]:
        sizes = plain(topic, config)
        try:
            yield _Sized(sizes)
        finally:
            sizes.close()  # and with it the consumer

    def reading(*, shuffled: bool) -> Opens:
        @contextmanager
        def opens(way: str) -> Iterator[Steps]:
            source = alone()
            extents = extents_of(source, shuffled=shuffled)
            with closing(TopicReading(source, extents, int(way.removeprefix("x")), endless=True)) as sizes:
                yield _Sized(sizes)

        return opens

    options: dict[str, Any] = {"device": job.device, "engine": job.engine, "transform": transform(job.crop)}
    options |= {"shuffle": KAFKA_SHUFFLE, "tuning": Tuning(threads=job.threads)}
    chosen = [
        Contestant("plain", plainly, role="top", version=installed("confluent-kafka")),
        Contestant("in order", reading(shuffled=False), READERS, role="ours", version=version),
        Contestant("at random", reading(shuffled=True), READERS, role="ours", version=version),
        Contestant("kafka", ours(lambda: loader(whole(), job.batch, **options)), role="ours", version=version),
    ]
    if peers:
        from dali_feed.bench.peers import kafka_peer  # which loads torchvision's datasets

        why = "it does not take --config; measure on a listener that needs no such options" if config else None
        chosen.append(kafka_peer(job, why))
    return chosen


def findings(race: Race) -> list[str]:
    """What limits a loop that trains from the topic, and who is faster."""
    sentences = []
    tensors, random = race.row("kafka"), race.row("at random")
    if tensors is not None and (share := race.ratio(tensors, "at random")) is not None:
        rate = f"A loop gets {race.cell(tensors, race.figure):,.0f} images/s, {share.median:.2f} of what reading alone "
        limit = "decoding is the limit, and a faster broker would change little; see `dali-feed bench loader`."
        if share.median >= NEAR:
            limit = "reading the topic is the limit; see Tuning(readers=...) and the broker's network and disks."
        sentences.append(f"{rate}gives in random order: {limit}")
    if random is not None and (ratio := race.ratio(random, "plain")) is not None:
        times = f"{ratio.median:.2f} times what a plain consumer gives in order"
        sentences.append(f"Our readers in random order give {times}.")
    peers = [row.who for row in race.rows if row.role == "peer"] if tensors is not None else []
    ratios = {who: ratio for who in peers if tensors is not None and (ratio := race.ratio(tensors, who))}
    if ratios:
        fastest = min(ratios, key=lambda who: ratios[who].median)
        chance = f"; their turns overlap, so that {CHANCE}" if ratios[fastest].chance else ""
        times = f"dali_feed gives {ratios[fastest].median:.2f} times the tensors of the fastest other loader"
        sentences.append(f"{times}, {fastest}{chance}.")
    return sentences + verdicts(race)
