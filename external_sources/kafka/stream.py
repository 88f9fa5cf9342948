"""A Kafka topic as a stream: the records from a position on, and those that are still to come.

The law: a record is given to one rank, once, in the order of its partition. What the training loop received is what a
mark says; a stream that goes on from a mark gives what came behind it: nothing is lost, nothing comes twice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, SourceEmptyError
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.errors import Trouble, remade
from dali_feed.external_sources.kafka.fleet import Fleet, fleet_of
from dali_feed.external_sources.kafka.fleet_reader import FleetReader
from dali_feed.external_sources.kafka.mark import Mark, Told, check_stretch, made_mark, mark_of, merged_marks
from dali_feed.external_sources.kafka.options import connect
from dali_feed.external_sources.kafka.records import LABEL, Codec
from dali_feed.external_sources.kafka.start import Start, begun, checked_start
from dali_feed.external_sources.kafka.stream_reader import StreamReader
from dali_feed.external_sources.kafka.topic import KafkaTopic
from dali_feed.external_sources.kafka.topic_source import TopicSource
from dali_feed.external_sources.live_formatted import LiveFormatted
from dali_feed.formats.format import Format
from dali_feed.records.live import Drain, LiveReader, LiveSource, Pace, Positions
from dali_feed.records.members import Member
from dali_feed.records.source import Slabs

__all__ = ["KafkaStream"]


class KafkaStream(TopicSource):
    """The records of a topic from `start` on, for ever.

    Partition p is read by rank p % world_size; a rank may have none. Partitions that are added to the topic are noticed
    within some seconds and read from their beginning.

    Args:
        topic: its name. No topic is ever created.
        servers: bootstrap addresses, "host:port,host:port" or a list of them.
        start: where it begins, if it does not continue from a state. "latest": at the ends of the partitions, with what
            comes from now on. "earliest": with the first record that is kept. "group": at the offsets of the consumer
            group `group`, which are only read: the group is not joined. A partition without an offset is an error; with
            "group or earliest" and "group or latest" it begins there. A datetime with a time zone, or seconds since
            1970: with the first record of that time or later, by the records' own timestamps. A loader's state, a list
            of the states of all ranks, or a mark: after it. Offsets are looked up once, when a reader is made.
        batch_timeout: seconds from its first record until a batch that is not full comes; None: a batch comes only when
            it is full.
        batch_bytes: bytes of payloads that make a batch full; None: `batch_size` alone does.
        idle_timeout: seconds without any record until an empty batch comes; None: never.
        label, codec, fields, config, format, claims: as `KafkaTopic`'s.
        timeout: seconds without any answer, reconnects included, after which the broker counts as unreachable. A topic
            that gets no records is no error.
        group: the consumer group whose offsets `loader.commit()` sets, for lag tools and for `start="group"`; None:
            it does nothing. Take a group that nobody subscribes with.
        fleet: a `Fleet`, or a consumer group's name: this process joins it as a worker, and the broker assigns the
            partitions; ranks do not matter. At least once: a record counts as done when the loop asks for the next
            batch or calls `loader.commit()`; after a crash what was not committed comes again, at another worker.
            `start` is for a group that has no offsets yet. The group owns the position: a state holds only the group's
            name.

    Raises:
        ConfigError: a value that is not allowed, or an option in `config` that decides what is read.
    """

    def __init__(  # noqa: PLR0913  what is read, and how
        self,
        topic: str,
        servers: str | Sequence[str],
        *,
        start: Start = "latest",
        batch_timeout: float | None = None,
        batch_bytes: int | None = None,
        idle_timeout: float | None = None,
        label: str | None = LABEL,
        codec: Codec | None = None,
        fields: Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
        group: str | None = None,
        format: Format | str | Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
        fleet: Fleet | str | None = None,
        claims: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            topic,
            servers,
            label=label,
            codec=codec,
            fields=fields,
            config=config,
            timeout=timeout,
            group=group,
            format=format,
            claims=claims,
        )
        self._pace = Pace(batch_timeout, batch_bytes, idle_timeout)
        names = ("batch_timeout", "batch_bytes", "idle_timeout")
        for name, value in zip(names, (batch_timeout, batch_bytes, idle_timeout), strict=True):
            if value is not None and not value > 0:
                msg = f"{topic}: {name} must be above 0, or None; found {value!r}"
                raise ConfigError(msg)
        self._fleet = None if fleet is None else fleet_of(fleet)
        if self._fleet is not None:
            self._fleet.check(topic, self._options.config, group, start)
            group = self._fleet.group
        self._start = checked_start(topic, start, group)

    def __repr__(self) -> str:
        alone = super().__repr__()
        return alone if self._fleet is None else f"{alone[:-1]}, fleet={self._fleet.group!r}, at least once)"

    @property
    def pace(self) -> Pace:
        """When a batch is handed over."""
        return self._pace

    def members(self) -> tuple[Member, ...]:
        """What a few of the records that the topic holds now have; see `KafkaTopic.members`. None of an empty one."""
        try:
            return self._topic().members()
        except SourceEmptyError:
            return ()

    def giving(self, image: str | None, members: tuple[str, ...]) -> LiveSource:
        """The same records with other members; see `records.members`."""
        found: LiveSource = self._formed(image, members, LiveFormatted)
        return found

    def live(
        self,
        at: Mapping[str, Any] | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        slabs: Slabs | None = None,
        stop: threading.Event | None = None,
        drain: Drain | None = None,
    ) -> LiveReader:
        """A reader of a rank's partitions from `at` on; None: from `start`. It asks the cluster where that is.

        Raises:
            ConfigError: `format=` without columns: it says nothing of images and labels.
            SourceNotFoundError: no such topic; the message names similar ones.
            SourceUnreachableError: no answer for `timeout` seconds.
            SourceDeniedError: no rights, or credentials that are refused.
            SourceChangedError: the topic was deleted and made again since `at`.
            StateError: `at` is not of this topic, or lacks a partition of this rank.
            SourceError: the group has no offset of a partition.
            ClosedError: the stop event is set.
        """
        self._check_made()
        if self._fleet is not None:
            return self._joined(self._fleet, at, rank, world_size, slabs, stop, drain)
        options, trouble, stopped = self._options, Trouble(), stop or threading.Event()
        given = self._start if at is None else at
        begin = given if isinstance(given, str | float) else mark_of(options.topic, given)
        consumer = connect(options, trouble)
        try:
            asked = Cluster(options, consumer, trouble, stopped)
            count = len(asked.partitions())
            self._identity.topic_id = self._known(begin.topic_id if isinstance(begin, Mark) else "")
            if isinstance(begin, Mark):
                positions = begin.of_rank(rank, world_size, count)
            else:
                mine = list(range(rank, count, world_size))
                positions = begun(options, asked, begin, self._group, mine, stopped)
        finally:
            consumer.close()
        return StreamReader(
            options,
            self._identity,
            positions,
            rank=rank,
            world_size=world_size,
            group=self._group,
            slabs=slabs,
            stop=stopped,
        )

    def mark(self, position: Positions, *, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
        """A rank's position as plain JSON, with the topic and its id; of a fleet its group, which has the position.

        Raises ConfigError where the position is not of all partitions of the rank.
        """
        if self._fleet is not None:
            return self._fleet.mark(self._options.topic)
        return made_mark(self._options.topic, self._identity.topic_id, position, rank, world_size).told()

    def merged(self, marks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One mark, made from those of several ranks of one run, from which a run of any world size continues.

        Raises StateError where they are not of one run, or two are of one rank.
        """
        if self._fleet is not None:
            for each in marks:
                self._fleet.check_mark(self._options.topic, each)
            return self._fleet.mark(self._options.topic)
        return merged_marks(self._options.topic, marks).told()

    def replay(self, a: Told, b: Told) -> KafkaTopic:
        """The stretch of the stream between two states, as a bounded topic: a record has the id that it had here.

        A state is a loader's, a list of all ranks', or a mark.

        Raises:
            StateError: they are not states of this topic, lack partitions, or `a` is after `b`.
            SourceChangedError: they are of two topics of the name.
            SourceEmptyError: both stand at the same place.
        """
        topic = self._options.topic
        first, last = mark_of(topic, a), mark_of(topic, b)
        ids = {first.topic_id, last.topic_id} - {""}
        if len(ids) > 1:
            raise remade(topic, first.topic_id, last.topic_id)
        count = max((*first.positions, *last.positions), default=-1) + 1
        starts, ends = (np.array([*each.of_rank(0, 1, count).values()], np.int64) for each in (first, last))
        check_stretch(topic, starts, ends, last)
        return self._topic().between(starts, ends, *ids)

    def _joined(
        self,
        fleet: Fleet,
        at: Mapping[str, Any] | None,
        rank: int,
        world_size: int,
        slabs: Slabs | None,
        stop: threading.Event | None,
        drain: Drain | None,
    ) -> FleetReader:
        """A worker, which joins when it is first polled."""
        if at is not None:
            fleet.check_mark(self._options.topic, at)
        start = self._start if isinstance(self._start, str | float) else ""
        return FleetReader(
            self._options, fleet, start, rank=rank, world_size=world_size, slabs=slabs, stop=stop, drain=drain
        )

    def _known(self, known: str) -> str:
        """The topic's id, which must be that of a mark."""
        found = self._topic_id(known or self._identity.topic_id)
        if "" not in (known, found) and known != found:
            raise remade(self._options.topic, known, found)
        return found

    def _topic(self) -> KafkaTopic:
        """What the topic holds, of the same records made in the same way."""
        known = self._options
        return KafkaTopic(
            known.topic,
            known.servers,
            label=known.label,
            codec=known.codec,
            fields=None if known.codec is None else known.fields,
            config=known.config,
            timeout=known.timeout,
            format=self._forms or None,
            claims=self._claims,
        )
