"""How far somebody is in a topic, and where that will cost records. Nothing is joined, committed or changed.

The law: a lag is counted to where the run ends, and what retention may take from the first offset that the run still
needs. What is not known is None, and is no warning. How long a record has waited is that record's own time: one record
of each partition is read for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from confluent_kafka import TopicPartition

from dali_feed.errors import SourceNotFoundError
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import Meaning, meaning, similar, some
from dali_feed.external_sources.kafka.topics import retention, span_text

SOON = 3600.0  # seconds


@dataclass(frozen=True, slots=True)
class Stand:
    """Where somebody stands in a topic.

    of         who it is, as text
    positions  partition -> the next offset
    needs      partition -> the first offset that is still needed; of a stream, and of a group, its position
    ends       partition -> where the run ends; None: it does not
    topic_id   of the topic that it is of; "" where that is not known
    state      of a group: Stable, Empty, ...; "" where that is not known, or it is none
    """

    of: str
    positions: Mapping[int, int]
    needs: Mapping[int, int]
    ends: Mapping[int, int] | None = None
    topic_id: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition: offsets, records per second between two looks, Unix seconds. What is not known is None.

    low       first offset that the broker keeps
    high      one past the last that may be read
    end       where the run ends: `high`, or its snapshot's end
    position  the next offset of the run; `need` the first that it still needs
    waits     when the record at `position` was made, the oldest that the run has not had
    oldest    when the record at `need` was made
    read, written  records per second
    """

    partition: int
    low: int
    high: int
    end: int
    position: int | None = None
    need: int | None = None
    waits: float | None = None
    oldest: float | None = None
    read: float | None = None
    written: float | None = None

    @property
    def lag(self) -> int | None:
        """Offsets that are still to come."""
        return None if self.position is None else max(0, self.end - self.position)

    @property
    def headroom(self) -> int | None:
        """Offsets that retention may take before it comes to one that is needed; below 0 it has been there."""
        return None if self.need is None else self.need - self.low


@dataclass(frozen=True, slots=True)
class LagFacts:
    """A topic and who reads it.

    stand     where they stand
    topic_id  the topic's now; "" where the brokers have none
    keeps     seconds that a record is kept at least; None: for ever, or not known, and `unknown` says why
    at        Unix seconds of the answers
    """

    topic: str
    servers: str
    stand: Stand
    topic_id: str
    partitions: tuple[PartitionLag, ...]
    keeps: float | None
    unknown: str
    at: float

    @property
    def lag(self) -> int | None:
        """Offsets that are still to come, in the partitions that know."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if known else None

    def seconds(self, each: PartitionLag) -> float | None:
        """How long ago the oldest record was made that the run has not had; 0 where it has had all."""
        if each.lag == 0:
            return 0.0
        return None if each.waits is None else max(0.0, self.at - each.waits)

    def left(self, each: PartitionLag) -> float | None:
        """Seconds until retention may begin to take what is needed, 0 or less where it may now; None: it does not.

        It takes whole segments, once their newest record is old enough: so this is the least.
        """
        if self.keeps is None or each.oldest is None:
            return None
        return each.oldest + self.keeps - self.at

    @property
    def longest(self) -> float | None:
        """The largest of all partitions' `seconds`."""
        return max((seconds for each in self.partitions if (seconds := self.seconds(each)) is not None), default=None)

    def rate(self, name: str) -> float | None:
        """Records per second of all partitions together: `read` or `written`."""
        known = [rate for each in self.partitions if (rate := getattr(each, name)) is not None]
        return sum(known) if known else None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "topic": self.topic,
            "servers": self.servers,
            "of": self.stand.of,
            "state": self.stand.state,
            "at": self.at,
            "lag": self.lag,
            "lag_seconds": self.longest,
            "read": self.rate("read"),
            "written": self.rate("written"),
            "retention": self.keeps,
            "partitions": [
                {**asdict(each), "lag": each.lag, "lag_seconds": self.seconds(each), "headroom": each.headroom}
                | {"headroom_seconds": self.left(each)}
                for each in self.partitions
            ],
        }


def since(before: LagFacts, now: LagFacts) -> LagFacts:
    """The second look with rates; none where a position went back, as at the beginning of an epoch."""
    seconds, then = now.at - before.at, {each.partition: each for each in before.partitions}
    if seconds <= 0:
        return now
    return replace(now, partitions=tuple(_rated(then.get(each.partition), each, seconds) for each in now.partitions))


def _rated(then: PartitionLag | None, now: PartitionLag, seconds: float) -> PartitionLag:
    if then is None:
        return now
    steps = None if then.position is None or now.position is None else now.position - then.position
    read = None if steps is None or steps < 0 else steps / seconds
    return replace(now, read=read, written=max(0.0, (now.high - then.high) / seconds))


def lag_warnings(facts: LagFacts) -> list[str]:
    """Where the run will lose data, or has; a sentence each."""
    return [*_another(facts), *_gone(facts), *_going(facts), *_slower(facts)]


def _another(facts: LagFacts) -> Iterator[str]:
    known, stand = facts.topic_id, facts.stand
    if "" not in (known, stand.topic_id) and known != stand.topic_id:
        yield (
            f"{facts.topic}: the topic must be the one that {stand.of} is of, whose id is {stand.topic_id}; "
            f"found one of id {known}: it was deleted and made again, and a run that continues ends with "
            "SourceChangedError; start without the state"
        )
    silent = [each.partition for each in facts.partitions if each.position is None]
    if silent and stand.ends is None:
        yield f"{stand.of} has no position in {_named(facts.topic, silent)}: nothing of it was read, or committed"
    beyond = [each.partition for each in facts.partitions if each.position is not None and each.position > each.high]
    if beyond:
        yield (
            f"the position of {stand.of} is past the end of {_named(facts.topic, beyond)}: the topic was "
            "truncated or made again, and a run that continues ends with SourceChangedError or DataLostError"
        )


def _gone(facts: LagFacts) -> Iterator[str]:
    lost = [each for each in facts.partitions if _is_needed(facts, each) and (each.headroom or 0) < 0]
    if lost:
        first = lost[0]
        more = f", and of {len(lost) - 1} more partitions" if len(lost) > 1 else ""
        yield (
            f"{facts.topic}[{first.partition}]: offsets {first.need}..{first.low - 1} are gone{more}: retention "
            f"or deletion removed them before {facts.stand.of} read them; a run that continues ends with "
            "DataLostError"
        )


def _going(facts: LagFacts) -> Iterator[str]:
    """Retention comes to what is needed before the run has had it."""
    left = [(seconds, each) for each in facts.partitions if (seconds := _left(facts, each)) is not None]
    if not left:
        return
    room, each = min(left, key=lambda one: one[0])
    where, rate, lag = f"{facts.topic}[{each.partition}]", facts.rate("read"), facts.lag
    cure = "set retention.ms=-1, or longer"
    if room <= 0:
        yield f"{where}: the records from offset {each.need} on, which are needed, may be deleted at any time; {cure}"
    elif rate and lag and lag / rate > room:
        yield (
            f"{where}: at {rate:,.0f} records/s the rest takes {span_text(lag / rate)}, and the records from "
            f"offset {each.need} on may be deleted in {span_text(room)}; {cure}, or read faster"
        )
    elif room < SOON and not rate:
        yield f"{where}: the records from offset {each.need} on may be deleted in {span_text(room)}; {cure}"


def _slower(facts: LagFacts) -> Iterator[str]:
    read, written = facts.rate("read"), facts.rate("written")
    if facts.lag and facts.stand.ends is None and read is not None and written and written > read:
        yield (
            f"{facts.stand.of} falls behind: {written:,.0f} records/s are written and {read:,.0f} read; "
            "add readers, or partitions"
        )


def _is_needed(facts: LagFacts, each: PartitionLag) -> bool:
    """Whether the run still wants something of it: of a group what is behind its position, of a snapshot all of it."""
    if facts.stand.ends is None:
        return bool(each.lag)
    return each.need is not None and each.need < each.end


def _left(facts: LagFacts, each: PartitionLag) -> float | None:
    return facts.left(each) if _is_needed(facts, each) and (each.headroom or 0) >= 0 else None


def _named(topic: str, partitions: Iterable[int]) -> str:
    return some([f"{topic}[{p}]" for p in partitions])


TIMES_SECONDS = 5.0  # for the records that are read for their time


def look(to: Connection, reader: str | Stand) -> LagFacts:
    """Where a group of that name stands, or a stand that is known, beside what the topic holds.

    Raises:
        SourceNotFoundError: no such topic, or no such group; the message names similar ones.
        SourceUnreachableError: no answer for `timeout` seconds.
        SourceDeniedError: no rights, or credentials that are refused.
    """
    group = reader if isinstance(reader, str) else ""
    with Cluster(to, group=group) as cluster:  # clients of its own: since the last look a connection may have gone
        partitions = cluster.partitions()
        stand = _stand_of(cluster, reader, partitions) if isinstance(reader, str) else reader
        lows, highs = (each.tolist() for each in cluster.bounds(partitions))
        parts = [
            PartitionLag(p, low, high, (stand.ends or {}).get(p, high), stand.positions.get(p), stand.needs.get(p))
            for p, low, high in zip(partitions, lows, highs, strict=True)
            if stand.ends is None or p in stand.ends  # of a snapshot those that it has
        ]
        now = time.time()
        waits = _times_at(cluster, {each.partition: max(each.low, each.position or 0) for each in parts if each.lag})
        needed = {each.partition: max(each.low, each.need) for each in parts if each.need is not None}
        same = {p: waits[p] for p, offset in needed.items() if p in waits and offset == stand.positions.get(p)}
        oldest = same | _times_at(cluster, {p: offset for p, offset in needed.items() if p not in same})
        settings, unknown = cluster.settings()
        topic_id = cluster.known_id()
    timed = [replace(each, waits=waits.get(each.partition), oldest=oldest.get(each.partition)) for each in parts]
    return LagFacts(to.topic, to.servers, stand, topic_id, tuple(timed), retention(settings), unknown, now)


def _times_at(cluster: Cluster, offsets: Mapping[int, int]) -> dict[int, float]:
    """Unix seconds of the first record at or behind each partition's offset, where there is one and it may be read."""
    known = dict[int, float]()
    left = {p: TopicPartition(cluster.to.topic, p, offset) for p, offset in offsets.items()}
    if not left:
        return known
    consumer, deadline = cluster.consumer, time.monotonic() + min(TIMES_SECONDS, cluster.to.timeout)
    consumer.assign(list(left.values()))
    try:
        while left and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is None or message.partition() not in left:
                continue
            error, partition = message.error(), int(message.partition() or 0)
            if error is not None and meaning(error) is Meaning.DENIED:
                break  # whoever may look at lags need not have the right to read
            if error is None and message.timestamp()[1] > 0:
                known[partition] = message.timestamp()[1] / 1000
            consumer.incremental_unassign([left.pop(partition)])
    finally:
        consumer.unassign()
    return known


def _stand_of(cluster: Cluster, group: str, partitions: list[int]) -> Stand:
    """Where a group stands by what it has committed."""
    positions, known = cluster.committed(partitions), cluster.groups()
    if not positions and group not in (known or ()):
        raise _missing(cluster.to, group, known)
    return Stand(f"group {group!r}", positions, positions, state=(known or {}).get(group, ""))


def _missing(to: Connection, group: str, known: Mapping[str, str] | None) -> SourceNotFoundError:
    none = "this broker does not list its groups"
    near = none if known is None else similar(group, known, "the groups that it lists")
    return SourceNotFoundError(
        f"{to.topic}: group {group!r} must have committed offsets at {to.servers}; there is no such group; {near}"
    )
