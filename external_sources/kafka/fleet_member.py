"""A member of a consumer group: what becomes of partitions when they are dealt, taken away or lost.

The callbacks here run in whatever thread polls the consumer. They raise nothing, as librdkafka would be left without
an answer: what goes wrong is kept, and raised by the next `poll`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from dali_feed.errors import SourceChangedError
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.errors import LOG, Trouble
from dali_feed.external_sources.kafka.fleet import Fleet
from dali_feed.external_sources.kafka.fleet_commit import Asked, Commits
from dali_feed.external_sources.kafka.fleet_events import Events
from dali_feed.external_sources.kafka.fleet_start import Start, begun
from dali_feed.external_sources.kafka.held import hang_up
from dali_feed.external_sources.kafka.identity import Witness
from dali_feed.external_sources.kafka.options import KafkaOptions, connect
from dali_feed.records.live import Drain, Positions

__all__ = ["Member"]


class Member:
    """One consumer that has joined; `dealt` are its partitions, with the offset that the group is known to have there.

    forget  called with the partitions that go, before the loop is waited for
    begin   called with those that were dealt, and where they begin
    """

    def __init__(
        self,
        options: KafkaOptions,
        fleet: Fleet,
        start: Start,
        settings: Mapping[str, Any],
        drain: Drain | None,
        forget: Callable[[Collection[int]], None],
        begin: Callable[[Positions], None],
        statistics: Callable[[str], None] | None = None,
    ) -> None:
        self._options, self._fleet, self._start, self._drain = options, fleet, start, drain
        self._forget, self._begin = forget, begin
        self.trouble = Trouble()
        self.events = Events(options, fleet, self.trouble)
        self.commits = Commits(options, fleet.group, self.trouble)
        self.dealt: dict[int, int] = {}
        self._begun: Asked | None = None  # the commit of where the group begins
        self._note, self._topic_id = "", ""
        self._failed: BaseException | None = None
        self._paused = self._leaving = False
        self._witness = Witness(options.topic, aloud="debug" in options.config)
        self.consumer: Consumer = connect(
            options,
            self.trouble,
            logger=self._witness,
            debug=Witness.DEBUG,
            tuning=fleet.tuning(),
            member={**settings, "on_commit": self.commits},
            statistics=statistics,
        )

    def join(self) -> None:
        """Ask for partitions. Raises where there is no such topic, no answer or no right."""
        Cluster(self._options, self.consumer, self.trouble).partitions()
        self.consumer.subscribe(
            [self._options.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def poll(self, seconds: float) -> Message | None:
        """A record or an event; callbacks run in here, and what is returned came after them.

        One at a time: of several at once the first may be of a partition that a callback behind it gives up.
        """
        found = self.consumer.poll(seconds)
        if self._failed is not None:
            raise self._failed
        self.commits.serve(self.consumer, self._note)
        if self._begun is not None and self._begun.done.is_set():
            error, self._begun = self._begun.error, None
            if error is not None:
                raise error
        self._topic_id = self._topic_id or self._witness.topic_id
        if self._witness.doubts(self._topic_id):
            msg = (
                f"{self._options.topic}: the topic must be the one that the worker began with, whose id is "
                f"{self._topic_id}; found one of id {self._witness.topic_id}: the topic was deleted and made "
                "again; start the worker again"
            )
            raise SourceChangedError(msg)
        return found

    def pause(self) -> None:
        """Let no records come, so that a poll meets events alone."""
        if not self._paused:
            self._paused = True
            self.consumer.pause(self._places(self.dealt))

    def resume(self) -> None:
        """Let records come again, from where they stopped."""
        if self._paused:
            self._paused = False
            self.consumer.resume(self._places(self.dealt))

    @property
    def may_give(self) -> bool:
        """Whether it is known at the broker where the group begins in all that was dealt."""
        return self._begun is None

    def ask(self, position: Positions) -> Asked:
        """Have the offsets committed of partitions that are this worker's; of others, and what is already, none."""
        return self.commits.ask(lambda: self._new(position), self._landed)

    def commit_now(self) -> None:
        """Commit what was asked for, and wait for the broker; see `Commits.now`."""
        self.commits.now(self.consumer, self._note)

    def leave(self) -> None:
        """Commit what the loop has finished and leave the group, within seconds whatever the broker does."""
        self._leaving = True
        if self._drain is not None and self.dealt and self._failed is None:
            try:
                self._bye(self._drain(list(self.dealt), 0.0))
            except Exception as error:  # noqa: BLE001  whatever it is, the group must be left
                LOG.warning("%s: left the group without a commit: %s", self.events.who, error)
        hang_up(self._options.topic, self.consumer)

    def _new(self, position: Positions) -> dict[int, int]:
        """What of a position may be committed, and was not."""
        dealt = dict(self.dealt)  # another thread may change it
        return {p: offset for p, offset in position.items() if p in dealt and offset > dealt[p]}

    def _landed(self, offsets: Positions) -> None:
        self.dealt |= {p: offset for p, offset in offsets.items() if p in self.dealt}

    def _bye(self, position: Positions) -> None:
        """Commit before partitions go."""
        if (new := self._new(position)) and (error := self.commits.send(self.consumer, new, self._note)) is not None:
            LOG.warning("%s: gave up %s without a commit: %s", self.events.who, _listed(new), error.str())

    def _places(self, partitions: Collection[int]) -> list[TopicPartition]:
        return [TopicPartition(self._options.topic, p) for p in partitions]

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        found = sorted(each.partition for each in partitions)
        places: list[TopicPartition] = []
        try:
            if found and not self._leaving:
                options, group = self._options, self._fleet.group
                told = begun(options, consumer, self.trouble, group, self._start, found)
                self._note = told.note
                self.dealt |= told.offsets
                if told.fresh:
                    # It is sent with the next poll: librdkafka lets a commit wait until it has this callback's answer.
                    self._begun = self.commits.ask(lambda: {p: o for p, o in told.fresh.items() if p in self.dealt})
                self._begin(told.offsets)
                places = [TopicPartition(options.topic, p, offset) for p, offset in told.offsets.items()]
                LOG.info("%s: was assigned %s", self.events.who, _listed(found))
        except BaseException as error:  # noqa: BLE001  raised by the next poll
            self._failed = self._failed or error
        self._answer(consumer.incremental_assign, places)
        if self._paused and places:
            consumer.pause(places)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        found = sorted(each.partition for each in partitions)
        try:
            if found and not self._leaving and self._failed is None:
                self._forget(found)
                if self._drain is not None:
                    done = self._drain(found, self._fleet.drain)
                    self._bye({p: offset for p, offset in done.items() if p in found})
                LOG.info("%s: gave up %s", self.events.who, _listed(found))
        except BaseException as error:  # noqa: BLE001  raised by the next poll
            self._failed = self._failed or error
        self._drop(found)
        self._answer(consumer.incremental_unassign, partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        found = sorted(each.partition for each in partitions)
        self._drop(found)
        self._forget(found)
        LOG.warning(
            "%s: the group removed this worker, and took %s from it (%s); what it has not committed comes "
            "again, at other workers. It joins again. Possible reasons: the process was stopped, the connection "
            "was broken, or the broker did not answer, for longer than Fleet(session=)",
            self.events.who,
            _listed(found),
            self.trouble.last or "no sign of life",
        )
        self._answer(consumer.incremental_unassign, partitions)

    def _drop(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            self.dealt.pop(partition, None)

    def _answer(self, how: Callable[[list[TopicPartition]], Any], partitions: list[TopicPartition]) -> None:
        try:
            how(partitions)
        except (KafkaException, RuntimeError) as error:  # a fatal error, which comes as an event, or closed
            LOG.debug("%s: %s", self.events.who, error)


def _listed(partitions: Collection[int]) -> str:
    return f"partition{'s' * (len(partitions) != 1)} {', '.join(map(str, partitions))}"
