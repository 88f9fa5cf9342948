"""One thread's way into a Kafka topic, by message or by column.

The law: a record's row is given by its offset alone. Offsets have holes (control records, aborted
and compacted data), so a run is done when the POSITION passes its stop: at the record `stop - 1`, at any record
beyond it, or at the end of the partition. A read never jumps: data that is gone is an error with its offsets. Runs
that follow each other closely in a partition, as where holes are left out, are read on and not assigned anew.

The consumer is assigned at our offsets and belongs to no group; nothing is committed. One consumer per reader,
one reader per thread, none across fork.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from dali_feed.errors import ClosedError, DataLostError, SourceChangedError, SourceError
from dali_feed.external_sources.kafka.by_column import ByColumn, Event, FilledByC, OffsetRun, by_column, librdkafka
from dali_feed.external_sources.kafka.client import (
    SLICE_SECONDS,
    Guard,
    close_in_time,
    consumer,
    keep_freed,
    modest,
)
from dali_feed.external_sources.kafka.cluster import Cluster, Identity, Witness
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import LOG, Meaning, Patience, Trouble, check_same, failed, gone, meaning
from dali_feed.external_sources.kafka.rows import Cells, KafkaParts
from dali_feed.external_sources.kafka.statistics import Statistics
from dali_feed.native.kafka import functions, newest_client, plugin
from dali_feed.records.extents import Extents
from dali_feed.records.gauges import KafkaStats
from dali_feed.records.source import Block, Lease, Reader


class ByMessage:
    """Records as confluent_kafka gives them, a `Message` each. For every kind of rows and every client.

    The consumer is assigned to one partition at a time.
    """

    def __init__(self, consumer: Consumer, topic: str, doubts: Callable[[], bool]) -> None:
        self._consumer, self._topic, self._doubts = consumer, topic, doubts
        self._left: list[Message] = []
        self._at = 0  # the first of them that nobody has had

    def assign(self, partition: int, offset: int) -> None:
        """From now on records come from there; what came before is dropped."""
        self.drop()
        self._consumer.assign([TopicPartition(self._topic, partition, offset)])

    def fetch(self, run: OffsetRun, most: int) -> Event | None:
        """Records of the run into their rows, as far as they have come; what is no record and stands behind them.

        Waits for a slice of time where nothing is there; `most` records are best taken at once. Of a topic in doubt
        nothing is taken.
        """
        if self._at >= len(self._left):
            batch = self._consumer.consume(most, 0)
            if not batch and (message := self._consumer.poll(SLICE_SECONDS)) is not None:
                batch = [message]
            self._left, self._at = batch, 0
        return None if self._doubts() else self._take(run)

    def _take(self, run: OffsetRun) -> Event | None:
        left, take = self._left, run.take
        partition, want, stop, shift, received = run.partition, run.want, run.stop, run.shift, 0
        event = None
        for n in range(self._at, len(left)):
            message = left[n]
            if (error := message.error()) is not None:
                event = Event(error, message.partition(), message.offset())
                n += 1  # noqa: PLW2901  it is dealt with
                break
            offset = message.offset()
            if offset is not None and offset >= want and message.partition() == partition:  # else an older assignment's
                if offset >= stop:
                    want = stop
                    break
                received += len(message)
                take(offset + shift, message)
                want = offset + 1
                if want == stop:
                    n += 1  # noqa: PLW2901  this one is done
                    break
        else:
            n = len(left)
        self._at, run.want = n, want
        run.received += received
        return event

    def drop(self) -> None:
        """What is there is not wanted."""
        self._left, self._at = [], 0

    def close(self) -> None:
        """Before the consumer is closed."""
        self.drop()


Take = Callable[[int, Message], None]
Spoilt = Callable[[int, str], None]  # of a row, why its record cannot be read

NEAR_BYTES = 4 << 20  # what is passed over rather than assigned anew: most of it has been fetched by then
NEAR = 64  # offsets, before anything is known of their size
FIRST = 4  # records taken at once before their size is known
MORE = 32  # at most
CACHED = 256 << 10  # bytes of records taken at once, then: they are copied while a core still has them in its cache


class TopicReader:
    """What readers of a topic have: one consumer at a time, and what it says of itself."""

    def __init__(self, to: Connection, parts: KafkaParts, stop: threading.Event | None, identity: Identity) -> None:
        self._to, self._parts, self._identity = to, parts, identity
        self._guard = Guard(to.topic, self, stop)
        self._trouble = Trouble()
        self._statistics = Statistics(to.topic)
        self._witness = Witness(to.topic, aloud=True)
        self._cluster: Cluster | None = None  # for questions, made at the first one
        self._consumer: Consumer | None = None
        self._doubting = 0.0  # since when it stands at another topic

    @property
    def trouble(self) -> str:
        """The last error of librdkafka; empty while records come."""
        return self._trouble.last

    def gauges(self) -> KafkaStats | None:
        """What its consumers have measured."""
        return self._statistics.gauges()

    @property
    def packing(self) -> tuple[float, tuple[str, ...]]:
        """See `Witness.packing`, of a reader that is modest."""
        return self._witness.packing

    def clients(self) -> tuple[Any, ...]:
        """What must not be destroyed in a child."""
        return self._consumer, self._cluster

    def _connect(
        self,
        settings: Mapping[str, Any] | None = None,
        tuning: Mapping[str, Any] | None = None,
        *,
        small: bool,
        quiet: bool = False,
        member: bool = False,
    ) -> Consumer:
        """A new consumer; one that is `small` fetches little at once, and a quiet one has no statistics.

        It says which topic it reads where one is known, or it is a member of a group, which knows it by that.
        """
        self._trouble.clear()
        to = self._to
        self._witness = Witness(to.topic, aloud="debug" in to.config)
        lines = [Witness.DEBUG] * bool(self._identity.topic_id or member) + [Witness.SIZES] * quiet
        debug = {"debug": ",".join(filter(None, lines))} if any(lines) else {}
        self._consumer = consumer(
            to,
            self._trouble,
            tuning=tuning,
            settings={**debug, **(modest(to.config) if small else {}), **(settings or {})},
            logger=self._witness,
            statistics=None if quiet else self._statistics.begin(),
        )
        return self._consumer

    def _drop(self) -> None:
        """Close the consumer; one that does not come to an end is left to its thread."""
        client, self._consumer = self._consumer, None
        close_in_time(self._to.topic, client)

    def _identify(self, where: str) -> None:
        """Raise where the topic is no longer the one that was begun with."""
        if known := self._identity.topic_id:
            self._cluster = self._cluster or Cluster(self._to, self._guard.stop)
            self._cluster.check_identity(known, where)

    def _doubts(self, where: str) -> bool:
        """Whether the consumer stood at another topic of the name, and was closed.

        Raises SourceChangedError unless a broker only lags behind the others.
        """
        if not self._witness.doubts(self._identity.topic_id):
            self._doubting = 0.0
            return False
        self._identify(where)
        now = time.monotonic()
        self._doubting = self._doubting or now
        if now - self._doubting >= self._to.timeout:
            check_same(where, self._identity.topic_id, self._witness.topic_id)
        self._guard.stop.wait(SLICE_SECONDS)
        self._drop()
        return True

    def _behind(self, partition: int, first: int, stop: int) -> int:
        """The offset, `first` to `stop`, from which on records can be read, where some before it cannot be unpacked.

        Nobody says where a batch ends, but who reads on behind it is not given it: so places are tried. A refusal says
        where its batch begins: behind the first one there may be good records before that.
        """
        reader = KafkaReader(self._to, stop=self._guard.stop, identity=self._identity, modest=True)
        last, step = first - 1, 1  # the last offset that is known to be in it
        try:
            while last + 1 < stop:
                self._guard.check()
                at = last + max(1, min(step, (stop - last) // 2))
                try:
                    reader.fill(Extents.one(partition, at, at + 1), lambda *_: None)
                    stop = at
                except SpoiltBatchError as error:
                    if error.base <= last + 1:
                        last, step = at, 2 * step
                    else:
                        stop = min(at, error.base)
        finally:
            reader.close()
        return stop

    def _bounds(self, client: Consumer, partition: int, where: str) -> tuple[int, int]:
        """The first offset that the broker holds, and the one behind the last; (-1, -1) where it does not say."""
        try:
            return client.get_watermark_offsets(TopicPartition(self._to.topic, partition), timeout=2.0)
        except KafkaException as error:
            LOG.debug("%s: watermarks: %s", where, error)
            return -1, -1


def range_text(low: int, high: int) -> str:
    """What the broker holds of a partition, behind "the broker"."""
    if high < 0:
        return "no longer holds them"
    return f"holds {low}..{high - 1}" if high > low else f"holds nothing (next is {high})"


class SpoiltBatchError(SourceError):
    """A batch of records cannot be unpacked, whose first offset is `base`."""

    def __init__(self, text: str, base: int) -> None:
        super().__init__(text)
        self.base = base


def spoilt_text(error: KafkaError) -> str:
    """Why the records of such a batch cannot be used."""
    return (
        f"the record's batch must be one that can be unpacked; {error.str()}; where it is only large, raise "
        "receive.message.max.bytes in config="
    )


class DoubtedError(Exception):
    """What was filled may be another topic's."""


class KafkaReader(TopicReader, Reader):  # type: ignore[override]  # `trouble` is read only here
    """Reads runs of offsets; see `dali_feed.records.source.Reader`.

    `read` raises DataLostError where offsets that were promised are gone, SourceChangedError where the topic or a
    partition is, or ends before the run does, SourceUnreachableError after `timeout` seconds without progress,
    SourceDeniedError, ClosedError within 0.1 s of the stop event, and ConfigError in a forked process.
    """

    def __init__(
        self,
        to: Connection,
        parts: KafkaParts | None = None,
        stop: threading.Event | None = None,
        identity: Identity | None = None,
        *,
        modest: bool = False,
    ) -> None:
        super().__init__(to, parts or KafkaParts(), stop, identity or Identity())
        self._modest = modest  # one that is modest fetches little at once
        self._way: ByMessage | ByColumn | None = None  # how its records are taken
        self._columns = False  # whether by column
        self._at = (-1, -1)  # the partition, and the offset from which everything is with the way or still to come
        self._end = -1  # where the partition has ended, said once for an assignment
        self._passed = self._received = 0  # offsets, and bytes of their records
        self._use = threading.RLock()  # of the connection: another thread that closes waits for the read to end

    def read(self, extents: Extents, lease: Lease) -> Block:
        """All records of `extents`, in their order, in one block; see `dali_feed.records.source.Reader.read`."""
        self._guard.check()
        mark = lease.mark()
        while True:
            cells = Cells(self._parts, extents.positions, lease)
            filled = FilledByC(cells) if by_column(self._parts) else None
            try:
                self.fill(extents, cells.take, filled, cells.spoilt)
            except DoubtedError:  # all of it once more
                lease.rewind(mark)
                continue
            return cells.block(extents.ids())

    def fill(self, extents: Extents, take: Take, filled: FilledByC | None = None, spoilt: Spoilt | None = None) -> None:
        """Give each record of `extents`, with its row, to `take`, or to C for `filled`. Raises what `read` does.

        Those of a batch that cannot be unpacked go to `spoilt`; without it that is a SpoiltBatchError.
        """
        self._guard.check()
        with self._use:
            try:
                self._runs(extents, take, filled, spoilt)
            finally:
                if self._guard.closed:  # by another thread, which may not have waited
                    self._drop()

    def _runs(self, extents: Extents, take: Take, filled: FilledByC | None, spoilt: Spoilt | None) -> None:
        try:
            first = 0
            for partition, start, stop in zip(
                extents.partition.tolist(), extents.start.tolist(), extents.stop.tolist(), strict=True
            ):
                if start < stop:
                    self._run(OffsetRun(partition, start, stop, first - start, take, filled, spoilt))
                first += stop - start
            if len(extents) and not self._witness.vouches(self._identity.topic_id):
                self._identify(self._to.where(int(extents.partition[0]), int(extents.start[0])))
        except BaseException as error:
            self._drop() if isinstance(error, SourceError) else self._forget()
            if isinstance(error, KafkaException):
                raise failed(self._to, error) from error
            raise

    def holds(self, partition: int, offset: int) -> bool:
        """Whether an offset lies in what the broker keeps of a partition; True where the broker does not say."""
        self._guard.check()
        with self._use:
            self._assign(partition, offset)
            low, high = self._bounds(self._open()[0], partition, self._to.where(partition, offset))
        return high < 0 or low <= offset < high

    def rest(self) -> None:
        """Take librdkafka's statistics, which pile up in it otherwise; see `records.source.Reader`."""
        with self._use:
            if self._consumer is not None and self._consumer.poll(0) is not None:
                self._forget()  # a record came along; the next read assigns anew

    def close(self) -> None:
        """Close the connection, within two seconds whatever the broker does. Safe to call twice, and amid a read."""
        if self._guard.close() and self._use.acquire(timeout=5 * SLICE_SECONDS):
            try:
                self._drop()
                self._cluster = None
            finally:
                self._use.release()

    def _is_near(self, partition: int, start: int) -> bool:
        """Whether it is better to read on to `start` than to assign the consumer anew."""
        gap = start - self._at[1]
        near = gap <= NEAR if not self._received else gap * self._received <= NEAR_BYTES * self._passed
        return self._at[0] == partition and gap >= 0 and near

    def _run(self, run: OffsetRun) -> None:
        partition, start, stop = run.partition, run.want, run.stop
        self._trouble.clear()
        patience = Patience(self._to, self._trouble, self._guard.stop)
        if (run.filled is not None) != self._columns:  # these are read in the other way
            self._drop()
            self._columns = run.filled is not None
        if not self._is_near(partition, start):
            self._assign(partition, start)
        elif self._end > start:  # which proves that these rows are absent
            run.want, run.end_seen = min(self._end, stop), self._end if self._end < stop else None
        self._passed += stop - self._at[1]
        while run.want < stop:
            self._more(run, patience)
        self._received += run.received
        self._at = (partition, stop)

    def _more(self, run: OffsetRun, patience: Patience) -> None:
        """The next records or events, where some come within a slice of time; waits as long as the timeout allows."""
        (_, way), want = self._open(), run.want
        most = FIRST if not self._received else max(1, min(MORE, CACHED * self._passed // self._received))
        event = way.fetch(run, most)
        where = self._to.where(run.partition, run.want)
        if self._guard.stop.is_set():
            patience.check(where)
        if self._doubts(where):
            if run.want > want:
                raise DoubtedError
            return self._assign(run.partition, want)
        if run.want > want:
            patience.progress()
            run.end_seen = None
        if event is not None:
            after = self._event(event, run)
            if after > run.want:  # places that were tried meanwhile were no silence
                patience.progress()
                run.want = after
        elif run.want == want:
            self._silence(run, patience)
        return None

    def _silence(self, run: OffsetRun, patience: Patience) -> None:
        """Nothing came: wait on, assign anew once at half of the timeout, or give up."""
        where = self._to.where(run.partition, run.want)
        if self._trouble.gone and not self._trouble.denied:
            self._check_gone(run.partition, run.want)
        if patience.over and run.end_seen is not None and not self._trouble.denied:
            raise SourceChangedError(
                f"{where}: the snapshot has offsets up to {run.stop - 1}, but the partition has ended at "
                f"{run.end_seen} for {patience.seconds:.1f} s: it was truncated or made again; take a new snapshot"
            )
        patience.check(where)
        if patience.half_over():
            # A consumer may be stuck on a partition whose leader moved; or a slow link is at a fetch of megabytes.
            seconds, words = patience.seconds, self._trouble.last
            LOG.warning("%s: nothing came for %.0f s; connecting again (%s)", where, seconds, words)
            self._drop()
            self._assign(run.partition, run.want, small=True)

    def _event(self, event: Event, run: OffsetRun) -> int:
        """Handle what is no record; returns the position that it proves."""
        error, about, end = event
        kind = meaning(error)
        if kind in (Meaning.END, Meaning.RESET) and about != run.partition:
            return run.want  # of an assignment before this one
        if kind is Meaning.END:
            self._end = -1 if end is None else end
            run.end_seen = end if end is not None and end < run.stop else None
            return run.want if end is None else end
        if kind is Meaning.RESET:
            self._lost(run)
        elif kind is Meaning.SPOILT and end is not None and about == run.partition:
            return self._step_over(run, end, error)
        else:
            self._trouble.judge(error, self._to, self._to.where(run.partition, run.want))
        return run.want

    def _step_over(self, run: OffsetRun, base: int, error: KafkaError) -> int:
        """Go on behind a batch, from `base` on, that cannot be unpacked; its records that are wanted are faults."""
        first = max(run.want, base)
        where = self._to.where(run.partition, first)
        if run.spoilt is None:
            raise SpoiltBatchError(f"{where}: {spoilt_text(error)}", base)
        after = self._behind(run.partition, first, run.stop)
        if after == first == run.refused:
            self._trouble.judge(error, self._to, where)
        run.refused = first  # it can be read after all, once
        for offset in range(first, after):
            run.spoilt(offset + run.shift, spoilt_text(error))
        self._assign(run.partition, after)
        return after

    def _lost(self, run: OffsetRun) -> None:
        """The broker does not have the offset: raise, or assign anew, once, where it turns out that it has."""
        partition, want, stop = run.partition, run.want, run.stop
        where = self._to.where(partition, want)
        self._identify(where)
        low, high = self._bounds(self._open()[0], partition, where)
        if 0 <= low <= want and stop <= high and run.refused != want:  # a replica that lags behind its leader
            run.refused = want
            LOG.warning(
                "%s: the broker refused this offset, but it has it (%d..%d); connecting again", where, low, high - 1
            )
            self._drop()
            return self._assign(partition, want)
        raise DataLostError(
            f"{where}: the snapshot has offsets {want}..{stop - 1}, but the broker {range_text(low, high)}: retention "
            "or deletion removed them, or the topic was made again; take a new snapshot, and give the topic a longer "
            "retention"
        )

    def _check_gone(self, partition: int, want: int) -> None:
        """There was word that there is no such topic or partition: raise where that is so, else go on from `want`."""
        words, self._trouble.gone = self._trouble.gone, ""
        if self._topic_is_there(partition):
            self._assign(partition, want)
            return
        raise gone(self._to, words, self._to.where(partition, want))

    def _topic_is_there(self, partition: int) -> bool:
        """A restarted broker may say 'unknown' for a moment; the metadata has the last word, asked for a second."""
        topic, deadline = self._to.topic, time.monotonic() + 1.0
        while not self._guard.stop.wait(SLICE_SECONDS):
            try:
                there = self._open()[0].list_topics(topic, timeout=1.0).topics.get(topic)
            except KafkaException as error:
                self._trouble.last = error.args[0].str()
                return True  # no answer: wait, as in any outage
            if there is not None and there.error is None and partition in there.partitions:
                return True
            if time.monotonic() > deadline:
                return False
        return True

    def _forget(self) -> None:
        self._at = (-1, -1)
        if self._way is not None:
            self._way.drop()

    def _assign(self, partition: int, offset: int, *, small: bool = False) -> None:
        if self._way is None:
            keep_freed()
            self._way = self._begin(small=small)
        self._way.assign(partition, offset)
        self._at, self._end = (partition, offset), -1

    def _begin(self, *, small: bool) -> ByMessage | ByColumn:
        """A new consumer, and how its records are taken: by column where that is wanted, and its handle is known."""
        topic, path = self._to.topic, librdkafka() if self._columns else None
        own = None if path is None else functions(path)
        if own is not None and ";" in plugin(own):  # which would be two paths
            own = None
        if own is not None:
            newest_client(own)  # none that this thread made before counts
        settings = {} if own is None else {"plugin.library.paths": plugin(own)}
        modest = {"fetch.wait.max.ms": 1} if self._modest else {}  # it goes from place to place: see client.py
        client = self._connect(settings, modest, small=small or self._modest, quiet=self._modest)
        handle = None if own is None else newest_client(own)
        if own is None or handle is None:
            return ByMessage(client, topic, lambda: self._witness.doubts(self._identity.topic_id))
        return ByColumn(client, own, handle, topic)

    def _open(self) -> tuple[Consumer, ByMessage | ByColumn]:
        self._guard.check()
        if self._consumer is None or self._way is None:  # never between _assign and _drop
            raise ClosedError(self._to.topic)
        return self._consumer, self._way

    def _drop(self) -> None:
        self._forget()
        way, self._way = self._way, None
        if way is not None:
            way.close()
        super()._drop()
