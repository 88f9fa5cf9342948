"""One thread's way into a Kafka topic.

The law: a record's row is given by its offset alone. Offsets have holes (control records, aborted
and compacted data), so a run is done when the POSITION passes its stop: at the record `stop - 1`, at any record
beyond it, or at the end of the partition. A read never jumps: data that is gone is an error with its offsets. Runs
that follow each other closely in a partition, as where holes are left out, are read on and not assigned anew.

The consumer is assigned at our offsets and belongs to no group; nothing is committed. One consumer per reader,
one reader per thread, none across fork.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dali_feed.errors import ClosedError, DataLostError, SourceChangedError, SourceError
from dali_feed.external_sources.kafka.by_column import Client, by_column
from dali_feed.external_sources.kafka.by_message import ByMessage
from dali_feed.external_sources.kafka.errors import (
    BROKEN,
    DENIED,
    GONE,
    LOG,
    Trouble,
    denied,
    gone,
    remade,
    unreachable,
)
from dali_feed.external_sources.kafka.filled import Filled
from dali_feed.external_sources.kafka.freed import keep_freed
from dali_feed.external_sources.kafka.held import check_usable, hang_up, held, let_go
from dali_feed.external_sources.kafka.identity import Asker, Witness, identify
from dali_feed.external_sources.kafka.members import MemberRows
from dali_feed.external_sources.kafka.options import SLICE_SECONDS, Identity, KafkaOptions, connect
from dali_feed.external_sources.kafka.records import Rows, Takes, rows_for
from dali_feed.external_sources.kafka.run import Event, Run, Way
from dali_feed.external_sources.kafka.statistics import Statistics
from dali_feed.external_sources.kafka.wait import Wait
from dali_feed.records.gauges import KafkaStats
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Slabs

__all__ = ["KafkaReader"]

NEAR_BYTES = 4 << 20  # what is passed over rather than assigned anew: most of it has been fetched by then
NEAR = 64  # offsets, before anything is known of their size
FIRST = 4  # records taken at once before their size is known
MORE = 32  # at most
CACHED = 256 << 10  # bytes of records taken at once, then: they are copied while a core still has them in its cache


class KafkaReader:
    """Reads runs of offsets; see `dali_feed.records.source.Reader`.

    Raises from `read`:
        DataLostError: offsets that were promised are gone (retention, deleted records).
        SourceChangedError: the topic or a partition is gone, or ends before the run does.
        SourceUnreachableError: no progress for `timeout` seconds, reconnects included.
        SourceDeniedError: no rights.
        ClosedError: closed, or the stop event is set (seen within 0.1 s).
        ConfigError: used in a process that was forked from the reader's.
    """

    def __init__(
        self,
        options: KafkaOptions,
        slabs: Slabs | None = None,
        stop: threading.Event | None = None,
        identity: Identity | None = None,
        *,
        modest: bool = False,
    ) -> None:
        self._options, self._modest = options, modest  # one that is modest fetches little at once
        self._times = 1
        self._identity = identity or Identity()
        self._asker: Asker | None = None
        self._witness = Witness(options.topic, aloud=True)
        self._slabs: Slabs = SlabPool() if slabs is None else slabs
        self._stop = threading.Event() if stop is None else stop
        self._pid = os.getpid()
        self._closed = False
        self._trouble = Trouble()
        self._statistics = Statistics(options.topic)
        self._consumer: Consumer | None = None
        self._way: Way | None = None  # how its records are taken
        self._columns = False  # whether by column
        self._at = (-1, -1)  # the partition, and the offset from which everything is with the way or still to come
        self._passed = self._received = 0  # offsets, and bytes of their records
        self._row_bytes = 0  # that C put into a row of the last read: of what is asked for, holes too
        self._use = threading.RLock()  # of the connection: another thread that closes waits for the read to end
        held(self)

    def read(self, extents: Extents) -> Block:
        """All records of `extents`, in their order, in one block; see `dali_feed.records.source.Reader.read`."""
        self._guard()
        lease = self._slabs.lease()
        options = self._options
        count = int(extents.lengths.sum())
        rows: Rows
        if options.asked is not None:
            rows = MemberRows.of(options.asked, count, lease, options.claims)
        else:
            rows = rows_for(options.label, options.codec, options.fields, count, lease, options.claims)
        try:
            wanted = rows.wanted()
            if wanted is not None and by_column(wanted):
                rows.filled = Filled(wanted, count, lease, self._row_bytes)
            self.fill(extents, rows, rows.filled)
            rows.finish()
            if rows.filled is not None:
                self._row_bytes = rows.filled.settle()
        except BaseException:
            lease.release()
            raise
        return Block(extents.ids(), rows.payloads, rows.columns(), lease, rows.faults)

    def fill(self, extents: Extents, rows: Takes, filled: Filled | None = None) -> None:
        """Give each record of `extents`, with its row, to `rows`, or to C for `filled`. Raises what `read` does."""
        self._guard()
        with self._use:
            try:
                self._runs(extents, rows, filled)
            finally:
                if self._closed:  # by another thread, which may not have waited
                    self._drop()

    def _runs(self, extents: Extents, rows: Takes, filled: Filled | None) -> None:
        try:
            first = 0
            for partition, start, stop in zip(
                extents.partition.tolist(), extents.start.tolist(), extents.stop.tolist(), strict=True
            ):
                if start < stop:
                    self._run(Run(partition, start, stop, first - start, rows, filled))
                first += stop - start
            if len(extents) and not self._witness.vouches(self._identity.topic_id):
                self._identify(int(extents.partition[0]), int(extents.start[0]))
        except BaseException as error:
            self._drop() if isinstance(error, SourceError) else self._forget()
            if isinstance(error, KafkaException):
                msg = f"{self._options.topic} at {self._options.servers}: reading failed: {error.args[0].str()}"
                raise SourceError(msg) from error
            raise

    def fetch_times(self, times: int) -> None:
        """See `dali_feed.records.source.Scales`. The consumer is made anew for it: librdkafka asks once."""
        if times != self._times:
            self._times = times
            self._drop()

    @property
    def trouble(self) -> str:
        """The last error of librdkafka; empty while records come."""
        return self._trouble.last

    def gauges(self) -> KafkaStats | None:
        """What its consumers have measured; see `records.gauges.Gauged`."""
        return self._statistics.gauges()

    def rest(self) -> None:
        """Take librdkafka's statistics, which pile up in it otherwise; see `records.source.Reader`."""
        with self._use:
            if self._consumer is not None and self._consumer.poll(0) is not None:
                self._forget()  # a record came along; the next read assigns anew

    def close(self) -> None:
        """Close the connection, within two seconds whatever the broker does. Safe to call twice, and amid a read."""
        self._closed = True
        if self._pid == os.getpid():
            let_go(self)
            if self._use.acquire(timeout=5 * SLICE_SECONDS):
                try:
                    self._drop()
                    self._asker = None
                finally:
                    self._use.release()

    def clients(self) -> tuple[Any, ...]:
        """What must not be destroyed in a child."""
        return self._consumer, self._asker

    def _is_near(self, partition: int, start: int) -> bool:
        """Whether it is better to read on to `start` than to assign the consumer anew."""
        gap = start - self._at[1]
        near = gap <= NEAR if not self._received else gap * self._received <= NEAR_BYTES * self._passed
        return self._at[0] == partition and gap >= 0 and near

    def _run(self, run: Run) -> None:
        """Read all of it."""
        partition, start, stop = run.partition, run.want, run.stop
        self._trouble.clear()
        wait = Wait(self._options.timeout)
        columns = run.filled is not None
        if columns != self._columns:  # these are read in the other way
            self._drop()
            self._columns = columns
        if not self._is_near(partition, start):
            self._assign(partition, start)
        self._passed += stop - self._at[1]
        while run.want < stop:
            self._more(run, wait)
        self._received += run.received
        self._at = (partition, stop)

    def _more(self, run: Run, wait: Wait) -> None:
        """The next records or events, where some come within a slice of time; waits as long as the timeout allows."""
        way, want, received = self._line(), run.want, run.received
        most = FIRST if not self._received else max(1, min(MORE, CACHED * self._passed // self._received))
        came = way.come(run, most)
        if self._stop.is_set():
            msg = f"{self._where(run.partition, want)}: reading was stopped"
            raise ClosedError(msg)
        if self._witness.doubts(self._identity.topic_id):
            if run.filled is not None and run.want > want:
                run.filled.undo(slice(want + run.shift, run.want + run.shift))
            run.want, run.received = want, received
            return self._doubt(run.partition, want, wait)
        if not came:
            return self._silence(run.partition, want, run.stop, wait)
        event = way.look(run)
        if run.want > want:
            wait.progress()
        if event is not None:
            run.want = max(run.want, self._event(event, run, wait))
            if run.want < run.stop and way is self._way:  # an end, said once, may prove the next run's rows absent
                way.skip()
        return None

    def _silence(self, partition: int, want: int, stop: int, wait: Wait) -> None:
        """Nothing came: wait on, assign anew once at half of the timeout, or give up."""
        seconds, where = wait.seconds, self._where(partition, want)
        if self._trouble.denied:
            raise denied(where, self._options.servers, self._trouble.denied, self._options.config)
        if self._trouble.gone:
            self._check_gone(partition, want)
        if seconds >= self._options.timeout:
            if wait.end_seen is not None:
                msg = (
                    f"{where}: the snapshot has offsets up to {stop - 1}, but the partition has ended at "
                    f"{wait.end_seen} for {seconds:.1f} s: it was truncated or made again; take a new snapshot"
                )
                raise SourceChangedError(msg)
            raise unreachable(where, self._options.servers, seconds, self._trouble.last)
        if wait.due():
            # A consumer may be stuck on a partition whose leader moved; or a slow link is at a fetch of megabytes.
            LOG.warning("%s: nothing came for %.0f s; connecting again (%s)", where, seconds, self._trouble.last)
            self._drop()
            self._assign(partition, want, modest=True)

    def _event(self, event: Event, run: Run, wait: Wait) -> int:
        """Handle what is no record; returns the position that it proves."""
        error, about, end = event
        partition, want, stop = run.partition, run.want, run.stop
        code, where = error.code(), self._where(partition, want)
        if code == KafkaError._PARTITION_EOF:
            if about != partition:
                return want
            wait.end_seen = end if end is not None and end < stop else None
            return want if end is None else end
        if code == KafkaError._AUTO_OFFSET_RESET:
            if about != partition:
                return want  # of an assignment before this one
            self._lost(partition, want, stop, wait)
            return want
        if code in DENIED:
            raise denied(where, self._options.servers, error.str())
        if code in GONE:
            self._trouble.gone = error.str()
            return want  # looked into when nothing more comes
        if code in BROKEN or error.fatal():
            msg = f"{where}: the broker's data cannot be read: {error.str()}"
            raise SourceError(msg)
        self._trouble.last = error.str()  # of the connection, or of the group that we do not use: librdkafka retries
        return want

    def _identify(self, partition: int, want: int) -> None:
        """Raise where the topic is no longer the one that the snapshot was taken of."""
        known, where = self._identity.topic_id, self._where(partition, want)
        if not known:
            return
        self._asker = self._asker or Asker(self._options, self._stop)
        identify(self._asker, known, where, self._options.servers)

    def _doubt(self, partition: int, want: int, wait: Wait) -> None:
        """The consumer stands at another topic of the name: raise, unless a broker only lags behind the others."""
        self._identify(partition, want)
        if wait.seconds >= self._options.timeout:
            raise remade(self._where(partition, want), self._identity.topic_id, self._witness.topic_id)
        self._stop.wait(SLICE_SECONDS)
        self._drop()
        self._assign(partition, want)

    def _lost(self, partition: int, want: int, stop: int, wait: Wait) -> None:
        """The broker does not have the offset: raise, or assign anew, once, where it turns out that it has."""
        self._identify(partition, want)
        where, held = self._where(partition, want), "the broker no longer holds them"
        try:
            low, high = self._live().get_watermark_offsets(TopicPartition(self._options.topic, partition), timeout=2.0)
        except KafkaException as error:
            LOG.debug("%s: watermarks: %s", where, error)
        else:
            if low <= want and stop <= high and wait.refused != want:  # a replica that lags behind its leader
                wait.refused = want
                LOG.warning(
                    "%s: the broker refused this offset, but it has it (%d..%d); connecting again", where, low, high - 1
                )
                self._drop()
                return self._assign(partition, want)
            held = f"the broker holds {low}..{high - 1}" if high > low else f"the broker holds nothing (next is {high})"
        msg = (
            f"{where}: the snapshot has offsets {want}..{stop - 1}, but {held}: retention or deletion removed them, or "
            "the topic was made again; take a new snapshot, and give the topic a longer retention"
        )
        raise DataLostError(msg)

    def _check_gone(self, partition: int, want: int) -> None:
        """There was word that there is no such topic or partition: raise where that is so, else go on from `want`."""
        said, self._trouble.gone = self._trouble.gone, ""
        if self._topic_is_there(partition):
            self._assign(partition, want)
            return
        raise gone(self._where(partition, want), self._options.servers, said)

    def _topic_is_there(self, partition: int) -> bool:
        """A restarted broker may say 'unknown' for a moment; the metadata has the last word, asked for a second."""
        topic, deadline = self._options.topic, time.monotonic() + 1.0
        while not self._stop.wait(SLICE_SECONDS):
            try:
                found = self._live().list_topics(topic, timeout=1.0).topics.get(topic)
            except KafkaException as error:
                self._trouble.last = error.args[0].str()
                return True  # no answer: wait, as in any outage
            if found is not None and found.error is None and partition in found.partitions:
                return True
            if time.monotonic() > deadline:
                return False
        return True

    def _forget(self) -> None:
        self._at = (-1, -1)
        if self._way is not None:
            self._way.drop()

    def _assign(self, partition: int, offset: int, *, modest: bool = False) -> None:
        if self._way is None:
            self._trouble.clear()
            keep_freed()
            options, debug = self._options, Witness.DEBUG if self._identity.topic_id else ""
            self._witness = Witness(options.topic, aloud="debug" in options.config)
            keep = None if self._modest else self._statistics.begin()
            small = modest or self._modest
            client = Client() if self._columns else None
            self._consumer = connect(
                options,
                self._trouble,
                modest=small,
                times=self._times,
                logger=self._witness,
                debug=debug,
                statistics=keep,
                client=client,
            )
            way = None if client is None else client.way(self._consumer, options.topic)
            self._way = way or ByMessage(self._consumer, options.topic)
        self._way.assign(partition, offset)
        self._at = (partition, offset)

    def _live(self) -> Consumer:
        self._guard()
        if self._consumer is None:  # never between _assign and _drop
            raise ClosedError(self._options.topic)
        return self._consumer

    def _line(self) -> Way:
        self._guard()
        if self._way is None:  # never between _assign and _drop
            raise ClosedError(self._options.topic)
        return self._way

    def _drop(self) -> None:
        """Close the consumer; one that does not come to an end is left to its thread."""
        self._forget()
        way, self._way = self._way, None
        if way is not None:
            way.close()
        consumer, self._consumer = self._consumer, None
        hang_up(self._options.topic, consumer)

    def _guard(self) -> None:
        check_usable(self._options.topic, self._pid, self._stop, closed=self._closed)

    def _where(self, partition: int, offset: int) -> str:
        return f"{self._options.topic}[{partition}]@{offset}"
