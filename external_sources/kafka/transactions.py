"""A lane whose records come in transactions, with the run's position in each.

The law: the position, the first record that is not in the topic, is committed in the same transaction as the records
before it, as the offset of a consumer group of the run's own. So whoever goes on reads it there, in one question, and
no record is in the topic twice or not at all for those who read what is committed (isolation.level=read_committed,
librdkafka's default and Java's option).

The offset is kept at the topic's partition 0, for it must be that of a partition that there is; its metadata is the
tally. Brokers forget offsets of a group after offsets.retention.minutes, 7 days unless set: that is noticed.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dali_feed.errors import ConfigError, DataLostError, ProduceError
from dali_feed.external_sources.kafka.errors import LOG, QUIET, unreachable
from dali_feed.external_sources.kafka.lane import WAIT_SECONDS, Lane, LaneOptions
from dali_feed.external_sources.kafka.options import KafkaOptions, admin_options
from dali_feed.external_sources.kafka.tally import Settled
from dali_feed.external_sources.kafka.timely import StuckError, timely
from dali_feed.records.tally import Tally

__all__ = ["AbortedError", "TransactionLane", "name_of"]

TRANSACTION_SECONDS = 60.0
SLICE = 5.0
# It may hang for ever, whatever its own timeout says, when the coordinator of the group has gone (librdkafka to 2.16).
STUCK = 4 * SLICE
METADATA = 3500  # letters: brokers take 4,096
_AGAIN = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.CONCURRENT_TRANSACTIONS})


class AbortedError(Exception):
    """A transaction was taken back: its records are not in the topic. `refused` are those that must not come again."""

    def __init__(self, refused: dict[int, str]) -> None:
        super().__init__()
        self.refused = refused


def name_of(run: str, lane: str) -> str:
    """The transactional id, and the group's name."""
    return f"dali_feed-produce-{run}-{lane}"


class TransactionLane(Lane):
    """See `Lane`. Made, it has ended what a process before left behind, and stands at the position that was committed.

    opened  whether a position must be there: one that is not has been forgotten
    """

    def __init__(
        self,
        options: LaneOptions,
        compression: str,
        where: Callable[[int], str],
        name: str,
        *,
        opened: bool,
    ) -> None:
        self._at = TopicPartition(options.topic, 0)
        self._name, self._in_transaction = name, False
        patience = max(TRANSACTION_SECONDS, 2 * options.timeout)
        more: Mapping[str, Any] = {"transactional.id": name, "transaction.timeout.ms": round(patience * 1000)}
        super().__init__(options, compression, Settled(0, Tally(), where), more)
        self._refusals: dict[int, str] = {}
        self._stuck_since: float | None = None
        known = KafkaOptions(options.topic, options.servers, None, None, (), options.timeout, options.config)
        told = {**admin_options(known, self._trouble), "group.id": name, "enable.auto.commit": False}
        kept = {k: v for k, v in told.items() if not k.startswith(_PRODUCER_ONLY)}
        self._group = Consumer({**kept, "logger": QUIET})
        try:
            self._repeated(lambda: self._producer.init_transactions(SLICE))
            position, tally = self._committed()
            if position is None and opened:
                msg = (
                    f"{options.topic}: the position of the run {name} must be at {options.servers}; there is "
                    "none: brokers forget it after offsets.retention.minutes; look how many of its records are "
                    "in the topic, and produce the rest, or all of it into a new topic, with another journal="
                )
                raise DataLostError(msg)
            self.settled = Settled(position or 0, tally, where)
            self._where, self.position, self._before = where, position or 0, copy.deepcopy(tally)
            if position is None:
                self._kept()
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """A transaction, where there is none."""
        if not self._in_transaction:
            self._do(self._producer.begin_transaction)
            self._in_transaction = True

    def commit(self, position: int) -> None:
        """End the transaction, with all records before `position`. Raises AbortedError where one was refused."""
        self.begin()
        self.flush()
        self.settled.passed(position)
        at = TopicPartition(self._at.topic, 0, position, metadata=_told(self.settled.tally))
        group = self._group.consumer_group_metadata()
        producer = self._producer
        try:
            self._repeated(lambda: timely(lambda: producer.send_offsets_to_transaction([at], group, SLICE), STUCK))
        except StuckError:
            raise self._stuck() from None
        self._repeated(lambda: self._producer.commit_transaction(SLICE))
        self._in_transaction, self._stuck_since = False, None
        self.position, self._before = position, copy.deepcopy(self.settled.tally)

    def refused(self, number: int, reason: str | None) -> None:
        """A record that is not sent is settled: a transaction was taken back for it, or there is none."""
        self.settled.begin(number)
        self.settled.end(number, reason)

    def back(self) -> None:
        """Take back what is not committed, and stand where the last transaction ended.

        By a new producer, whose first question ends the transaction: one that has had to bump its epoch was seen to
        send nothing more, now and then.
        """
        if self._in_transaction:
            super().close()
            self._fatal, self._in_transaction = None, False
            self._producer = self._made()
            self._repeated(lambda: self._producer.init_transactions(SLICE))
        self._refusals = {}
        self.settled = Settled(self.position, copy.deepcopy(self._before), self._where)

    def close(self) -> None:
        """Drop what is not committed, and say so to the broker, or readers would wait for its end."""
        try:
            if self._in_transaction:
                self._producer.purge()
                self._producer.abort_transaction(1.0)
        except KafkaException:
            pass  # the broker ends it by itself when its time is over
        super().close()
        self._group.close()

    def _stuck(self) -> Exception:
        """Take the transaction back, or give up where none could be ended for the timeout."""
        now, options = time.monotonic(), self._options
        self._stuck_since = now if self._stuck_since is None else self._stuck_since
        if now - self._stuck_since > options.timeout:
            return unreachable(options.topic, options.servers, now - self._stuck_since, self._trouble.last)
        LOG.warning(
            "%s: librdkafka does not finish the end of a transaction; a new producer sends it again", options.topic
        )
        return AbortedError({})

    def _refuse(self, number: int, reason: str) -> None:
        """The transaction is spoilt by it."""
        self._refusals[number] = reason
        super()._refuse(number, reason)

    def _look(self, since: float) -> None:
        """A spoilt transaction sends nothing more."""
        if self._refusals:
            raise AbortedError(self._refusals)
        super()._look(since)

    def _stopped(self, error: KafkaError) -> Exception:
        """Nothing is taken once the transaction is spoilt."""
        self._producer.poll(WAIT_SECONDS)
        return AbortedError(self._refusals) if self._refusals else super()._stopped(error)

    def _kept(self) -> None:
        """Have the broker keep position 0, and see that it does: from then on none is a position forgotten."""
        while True:
            try:
                self.commit(0)
                break
            except AbortedError:
                self.back()
        if self._committed()[0] is None:
            msg = (
                f"{self._at.topic}: transactions need a broker that stores their offsets; "
                f"{self._options.servers} did not (the embedded broker does not); leave transactional=True out"
            )
            raise ProduceError(msg)

    def _committed(self) -> tuple[int | None, Tally]:
        found: list[TopicPartition] = []
        self._repeated(lambda: found.extend(self._group.committed([self._at], SLICE)))
        at = found[-1]
        if at.error is not None:
            raise self.ended(at.error)
        if at.offset < 0:
            return None, Tally()
        try:
            return at.offset, Tally.of(json.loads(at.metadata or ""))
        except (KeyError, TypeError, ValueError) as error:
            msg = (
                f"{self._at.topic}: the group {self._name} must be used by this run only; found metadata "
                f"{at.metadata!r}"
            )
            raise ConfigError(msg) from error

    def _do(self, what: Callable[[], object]) -> None:
        try:
            what()
        except KafkaException as error:
            raise self.ended(error.args[0]) from error

    def _repeated(self, what: Callable[[], object]) -> None:
        """Do it, until it is done or the timeout is over: each step may be asked for again."""
        begun = time.monotonic()
        while True:
            try:
                what()
            except KafkaException as error:
                found = error.args[0]
                if self._fatal is None and (found.retriable() or found.code() in _AGAIN):
                    self._producer.poll(WAIT_SECONDS)
                    if not self._trouble.denied and time.monotonic() - begun <= self._options.timeout:
                        continue
                    if self._trouble.denied:
                        raise self._denied(self._trouble.denied) from error
                raise self.ended(self._fatal or found) from error
            else:
                return


_PRODUCER_ONLY = ("batch.", "compression.", "linger.", "message.send.", "queue.buffering.", "retr", "sticky.")


def _told(tally: Tally) -> str:
    """The tally in few letters: places of failures are left out first, then their reasons."""
    told = tally.told()
    if len(text := json.dumps(told)) <= METADATA:
        return text
    told["failures"] = {reason[:100]: [count, []] for reason, (count, _) in told["failures"].items()}
    if len(text := json.dumps(told)) <= METADATA:
        return text
    return json.dumps(told | {"failures": {"several reasons": [tally.failed, []]}})
