"""A Kafka topic as a stream: the records from a position on, and those that are still to come.

The laws: a record is given to one rank, once, in the order of its partition. What the training loop received is what a
mark says; a stream that goes on from a mark gives what came behind it: nothing is lost, nothing comes twice.

A mark lacks nothing that its run had, or that is an error. Partition p is rank p % world_size's, and a rank's
position has all that it knew of; how many there were of all its ranks together is in the mark too. So one that is
absent, and whose rank is among the mark's, came to the topic later and is read from its beginning; one whose rank is
not among them may have been read, and nobody knows how far.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import number
from dali_feed.errors import ConfigError, SourceChangedError, SourceEmptyError, SourceError, StateError
from dali_feed.external_sources.kafka.cluster import Cluster, Identity
from dali_feed.external_sources.kafka.codec import Codec
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import check_same, some
from dali_feed.external_sources.kafka.group import ConsumerGroup, Membership
from dali_feed.external_sources.kafka.live_reader import KafkaLiveReader
from dali_feed.external_sources.kafka.topic import KafkaTopic, TopicSource
from dali_feed.formats.format import Format
from dali_feed.records.live import LiveReader, Pace, Positions, Progress, Stream
from dali_feed.records.source import LABEL, Member

StreamState = Mapping[str, Any] | Sequence[Mapping[str, Any]]
LAST = 1 << 62  # offset that no partition comes to
_STATE = "stream"  # where a loader's state has its mark


@dataclass(frozen=True, slots=True)
class Mark:
    """Positions by partition, of these ranks of a run of `world_size`."""

    topic: str
    topic_id: str
    world_size: int
    ranks: tuple[int, ...]
    positions: dict[int, int]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "topic": self.topic,
            "id": self.topic_id,
            "world_size": self.world_size,
            "ranks": list(self.ranks),
            "partitions": len(self.positions),
            "positions": {str(p): self.positions[p] for p in sorted(self.positions)},
        }

    def of_rank(self, rank: int, world_size: int, count: int) -> dict[int, int]:
        """The positions of a rank's partitions of a topic that has `count`.

        StateError where how far the run was in some of them is not known; SourceChangedError where there are fewer.
        """
        most = max(self.positions, default=-1)
        if most >= count:
            raise SourceChangedError(
                f"{self.topic}: the state has {most + 1} partitions and the topic now {count}: it was deleted and "
                "made again"
            )
        mine = range(rank, count, world_size)
        lacking = [p for p in mine if p not in self.positions and p % self.world_size not in self.ranks]
        if lacking:
            ranks = ", ".join(str(r) for r in sorted({p % self.world_size for p in lacking}))
            raise StateError(
                f"{self.topic}: a state must have the position of each partition of rank {rank} of {world_size}; "
                f"it lacks {some(lacking, 8)}, because it is of ranks {', '.join(map(str, self.ranks))} of "
                f"{self.world_size}; give the states of ranks {ranks} too"
            )
        return {p: self.positions.get(p, 0) for p in mine}


def mark_of(topic: str, state: StreamState) -> Mark:
    """A mark read back from JSON: by itself, in a loader's state, or those of several ranks.

    Raises StateError where it is not one of this topic.
    """
    if isinstance(state, Sequence) and not isinstance(state, str | bytes):
        return merged_marks(topic, state)
    if not isinstance(state, Mapping):
        raise StateError(
            f"{topic}: a state must be what a loader's state_dict() gave, a list of all ranks', or a mark; found"
            f" {type(state).__name__}"
        )
    mark = state.get(_STATE, state)
    if mark is None:
        raise StateError(
            f"{topic}: a state must say how far a stream is; this one was taken before anything was read. Take it"
            " after the first batch"
        )
    if "group" in mark:
        group = mark["group"]
        raise StateError(
            f"{topic}: a state must have the position of each partition; found the state of a worker of a group: the "
            f"group {group!r} has it"
        )
    try:
        positions = {int(p): int(v) for p, v in mark["positions"].items()}
        ranks, world_size = tuple(sorted(int(r) for r in mark["ranks"])), int(mark["world_size"])
        of, topic_id, count = str(mark["topic"]), str(mark.get("id", "")), int(mark["partitions"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        said = f"it has no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise StateError(
            f"{topic}: a state must be what a loader of a stream of this topic gave by state_dict(), or a mark; {said}"
        ) from error
    if of != topic:
        msg = f"{topic}: the state must be of the same topic; it is of {of}. Make the stream with that topic"
        raise StateError(msg)
    fits = world_size > 0 and all(0 <= r < world_size for r in ranks)
    if not fits or any(p < 0 or not 0 <= v < LAST or p % world_size not in ranks for p, v in positions.items()):
        msg = f"{topic}: a state must be of a stream of this topic; its ranks and positions do not fit together"
        raise StateError(msg)
    if count != len(positions) or any(p >= world_size and p - world_size not in positions for p in positions):
        raise StateError(
            f"{topic}: a state must have the position of each partition that its run read; of {count} it has "
            f"{len(positions)}: {', '.join(map(str, sorted(positions)))}; it was changed, and nobody knows how far the "
            "run was in the others"
        )
    return Mark(of, topic_id, world_size, ranks, positions)


def check_stretch(topic: str, starts: NDArray[np.int64], ends: NDArray[np.int64], last: Mark) -> None:
    """StateError where the second of two marks, `last`, stands before the first; SourceEmptyError if both are one."""
    behind = np.flatnonzero(ends < starts).tolist()
    if behind:
        p = behind[0]
        found = f"at {starts[p]} and at {ends[p]}" if p in last.positions else f"at {starts[p]} and without it"
        cure = "Give the states of one run, the earlier one first"
        if len(behind) == np.count_nonzero(starts != ends):
            cure = "They are the wrong way round: give the earlier one first"
        more = f", and {len(behind) - 1} more" if len(behind) > 1 else ""
        raise StateError(
            f"{topic}: replay(a, b): b must stand at or behind a in each partition; found them {found} in partition"
            f" {p}{more}. {cure}"
        )
    if not (ends > starts).any():
        raise SourceEmptyError(
            f"{topic}: replay(a, b): there must be a record between the two; found both at the same place in each of"
            f" {len(starts)} partitions. Give a later state as b"
        )


def rank_mark(topic: str, topic_id: str, positions: Mapping[int, int], rank: int, world_size: int) -> Mark:
    """A rank's. Raises ConfigError where its partitions are not those that the rank has."""
    if sorted(positions) != list(range(rank, rank + len(positions) * world_size, world_size)):
        raise ConfigError(
            f"{topic}: a state must have all partitions of rank {rank} of {world_size}, as its reader's blocks "
            f"say; found {sorted(positions)}"
        )
    return Mark(topic, topic_id, world_size, (rank,), {int(p): int(v) for p, v in positions.items()})


def merged_marks(topic: str, marks: Sequence[Mapping[str, Any]]) -> Mark:
    """One mark, made from those of several ranks. StateError: they are not of one run, or two are of one rank."""
    found = [mark_of(topic, state) for state in marks]
    if not found:
        raise StateError(f"{topic}: a state of at least one rank is needed; found none")
    ranks = sorted(rank for mark in found for rank in mark.ranks)
    for name, kinds in (
        ("of one topic's id", {mark.topic_id for mark in found}),
        ("of ranks of one world size", {mark.world_size for mark in found}),
    ):
        if len(kinds) > 1:
            raise StateError(f"{topic}: states must be {name}; found {', '.join(map(str, sorted(kinds)))}")
    if len(set(ranks)) < len(ranks):
        msg = f"{topic}: states must be of different ranks of one run; found ranks {', '.join(map(str, ranks))}"
        raise StateError(msg)
    positions = {p: v for mark in found for p, v in mark.positions.items()}
    return Mark(topic, found[0].topic_id, found[0].world_size, tuple(ranks), positions)


Start = str | float | datetime | StreamState

_GROUP = "group"
_TOO_LATE = 1e11  # seconds: the year 5138; as milliseconds it was in 1973, when there was no Kafka
_NAMES = ("earliest", "latest", _GROUP, "group or earliest", "group or latest")


def checked_start(topic: str, start: Any, group: str | None) -> str | float | StreamState:
    """`start` as it is, a datetime as seconds since 1970. Raises ConfigError for what is none."""
    if isinstance(start, str) and start in _NAMES:
        if start.startswith(_GROUP) and group is None:
            msg = f'{topic}: start={start!r} begins at the offsets of a consumer group; give its name, group="..."'
            raise ConfigError(msg)
        return start
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError(
                f"{topic}: start= as a datetime must have a time zone; found {start!r}; "
                "datetime.now(timezone.utc) has one"
            )
        return max(0.0, start.timestamp())  # to Kafka -1 ms is the end
    if isinstance(start, int | float) and not isinstance(start, bool) and math.isfinite(start) and start >= 0:
        if start >= _TOO_LATE:
            raise ConfigError(
                f"{topic}: start= counts seconds since 1970, and {start!r} of them are thousands of years; Kafka "
                f"counts milliseconds: give start={start / 1000!r}"
            )
        return float(start)
    if isinstance(start, Mapping) or (isinstance(start, Sequence) and not isinstance(start, str | bytes)):
        return start
    names = ", ".join(f'"{name}"' for name in _NAMES)
    raise ConfigError(f"{topic}: start must be {names}, a datetime, seconds since 1970 or a state; found {start!r}")


def begun(cluster: Cluster, start: str | float, group: str | None, partitions: list[int]) -> dict[int, int]:
    """The next offset to read of each of these partitions. SourceError where the group has none."""
    if not partitions:
        return {}
    found: dict[int, int] = {}
    if isinstance(start, str) and start.startswith(_GROUP):
        found = cluster.committed(partitions)
    lacking = [p for p in partitions if p not in found]
    if lacking and start == _GROUP:
        raise SourceError(
            f"{cluster.to.topic}: the group {group!r} must have an offset of each partition; it has none of "
            f"{some(lacking, 8)}; "
            'commit them, or begin with start="group or earliest" or "group or latest"'
        )
    return found | cluster.begins(start, lacking)


class KafkaStream(TopicSource, Stream):
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
        label, codec, config, format, claims: as `KafkaTopic`'s.
        timeout: seconds without any answer, reconnects included, after which the broker counts as unreachable. A topic
            that gets no records is no error.
        group: a consumer group's name, whose offsets `loader.commit()` sets, for lag tools and for `start="group"`;
            take one that nobody subscribes with. None: it does nothing. A `ConsumerGroup`: this process joins it as a
            worker, and the broker assigns the partitions; ranks do not matter. At least once: a record counts as done
            when the loop asks for the next batch or calls `loader.commit()`; after a crash what was not committed
            comes again, at another worker. `start` is for a group that has no offsets yet. The group owns the
            position: a state holds only the group's name.

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
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
        group: str | ConsumerGroup | None = None,
        format: Format | str | Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
        claims: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(group, str | ConsumerGroup | None):
            msg = f"{topic}: group must be a consumer group's name, or a ConsumerGroup to join; found {group!r}"
            raise ConfigError(msg)
        self._joins = group if isinstance(group, ConsumerGroup) else None
        named = group.group if isinstance(group, ConsumerGroup) else group
        super().__init__(topic, servers, label, codec, config, timeout, named, format, claims)
        self._pace = Pace(batch_timeout, batch_bytes, idle_timeout)
        waits = {"batch_timeout": batch_timeout, "batch_bytes": batch_bytes, "idle_timeout": idle_timeout}
        for name, value in waits.items():
            if value is not None:
                number(f"{topic}: {name}", value, "above 0, or None")
        if self._joins is not None:
            self._joins.check(topic, self._to.config, start)
        self._start = checked_start(topic, start, named)

    def __repr__(self) -> str:
        alone = super().__repr__()
        return alone if self._joins is None else f"{alone[:-1]}, group={self._joins.group!r}, at least once)"

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

    def reads(self, to: Connection) -> bool:
        """Whether its records are of that topic."""
        return self._to.meets(to)

    def live(
        self,
        at: Mapping[str, Any] | None,
        members: Sequence[str],
        *,
        rank: int = 0,
        world_size: int = 1,
        stop: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> LiveReader:
        """A reader of a rank's partitions from `at` on; None: from `start`. It asks the cluster where that is.

        Raises what `KafkaTopic.snapshot` does, ConfigError for a member that no record can have, StateError where `at`
        is not of this topic, or lacks a partition of this rank, and SourceError where the group has no offset of one.
        """
        to, parts, stopped = self._to, self._parts(members), stop or threading.Event()
        mine: Any = {"stop": stopped, "progress": progress, "rank": rank, "world_size": world_size}
        if (group := self._joins) is not None:  # a worker, which joins when it is first polled
            if at is not None:
                group.check_mark(to.topic, at)
            start = self._start if isinstance(self._start, str | float) else ""
            membership = Membership(to, group, start, rank, world_size)
            return KafkaLiveReader(to, parts, Identity(), {}, membership=membership, **mine)
        given = self._start if at is None else at
        begin = given if isinstance(given, str | float) else mark_of(to.topic, given)
        with Cluster(to, stopped, group=self._group or "") as cluster:
            count = len(cluster.partitions())
            known = (begin.topic_id if isinstance(begin, Mark) else "") or self._identity.topic_id
            self._identity.topic_id = self._topic_id(cluster, known)
            if isinstance(begin, Mark):
                positions = begin.of_rank(rank, world_size, count)
            else:
                positions = begun(cluster, begin, self._group, list(range(rank, count, world_size)))
        return KafkaLiveReader(to, parts, self._identity, positions, group=self._group, **mine)

    def mark(self, position: Positions, *, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
        """A rank's position as plain JSON, with the topic and its id; where a group has the position, the group.

        Raises ConfigError where the position is not of all partitions of the rank.
        """
        if self._joins is not None:
            return self._joins.mark(self._to.topic)
        return rank_mark(self._to.topic, self._identity.topic_id, position, rank, world_size).to_json()

    def merged(self, marks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One mark, made from those of several ranks of one run, from which a run of any world size continues.

        Raises StateError where they are not of one run, or two are of one rank.
        """
        if self._joins is not None:
            for each in marks:
                self._joins.check_mark(self._to.topic, each)
            return self._joins.mark(self._to.topic)
        return merged_marks(self._to.topic, marks).to_json()

    def replay(self, a: StreamState, b: StreamState) -> KafkaTopic:
        """The stretch of the stream between two states, as a bounded topic: a record has the id that it had here.

        A state is a loader's, a list of all ranks', or a mark.

        Raises:
            StateError: they are not states of this topic, lack partitions, or `a` is after `b`.
            SourceChangedError: they are of two topics of the name.
            SourceEmptyError: both stand at the same place.
        """
        topic = self._to.topic
        first, last = mark_of(topic, a), mark_of(topic, b)
        check_same(topic, first.topic_id, last.topic_id)
        count = max((*first.positions, *last.positions), default=-1) + 1
        starts, ends = (np.array([*each.of_rank(0, 1, count).values()], np.int64) for each in (first, last))
        check_stretch(topic, starts, ends, last)
        return self._topic().between(starts, ends, first.topic_id or last.topic_id)

    def _topic(self) -> KafkaTopic:
        """What the topic holds, of the same records made in the same way."""
        to, claims = self._to, None if self._claims is None else self._claims.folder
        made: Any = {"label": self._label, "codec": self._codec, "format": self._forms or None, "claims": claims}
        return KafkaTopic(to.topic, to.servers, config=to.config, timeout=to.timeout, **made)
