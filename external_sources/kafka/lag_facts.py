"""How far somebody is in a topic, and where that will cost records. Nothing is asked here.

The law of this file: a lag is counted to where the run ends, and what retention may take from the first offset that the
run still needs. What is not known is None, and is no warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dali_feed.external_sources.kafka.topic_facts import span_text

__all__ = ["LagFacts", "PartitionLag", "Stand", "lag_warnings", "since"]

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
    members    how many a group has; None: not known
    holders    partition -> the member that reads it
    """

    of: str
    positions: Mapping[int, int]
    needs: Mapping[int, int]
    ends: Mapping[int, int] | None = None
    topic_id: str = ""
    state: str = ""
    members: int | None = None
    holders: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition: offsets, records per second between two looks, Unix seconds. What is not known is None.

    low       first offset that the broker keeps
    high      one past the last that may be read
    end       where the run ends: `high`, or its snapshot's end
    position  the next offset of the run; `need` the first that it still needs
    waits     when the record at `position` was made, the oldest that the run has not had
    oldest    when the record at `need` was made
    member    who reads it
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
    member: str = ""
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
        return max((found for each in self.partitions if (found := self.seconds(each)) is not None), default=None)

    def rate(self, name: str) -> float | None:
        """Records per second of all partitions together: `read` or `written`."""
        known = [found for each in self.partitions if (found := getattr(each, name)) is not None]
        return sum(known) if known else None

    def told(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "topic": self.topic,
            "servers": self.servers,
            "of": self.stand.of,
            "state": self.stand.state,
            "members": self.stand.members,
            "at": self.at,
            "lag": self.lag,
            "lag_seconds": self.longest,
            "read": self.rate("read"),
            "written": self.rate("written"),
            "retention": self.keeps,
            "partitions": [
                asdict(each)
                | {
                    "lag": each.lag,
                    "lag_seconds": self.seconds(each),
                    "headroom": each.headroom,
                    "headroom_seconds": self.left(each),
                }
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
    read = None if then.position is None or now.position is None else (now.position - then.position) / seconds
    return replace(
        now, read=None if read is None or read < 0 else read, written=max(0.0, (now.high - then.high) / seconds)
    )


def lag_warnings(facts: LagFacts) -> list[str]:
    """Where the run will lose data, or has; a sentence each."""
    return [*_another(facts), *_gone(facts), *_going(facts), *_behind(facts)]


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
    left = [(found, each) for each in facts.partitions if (found := _left(facts, each)) is not None]
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


def _behind(facts: LagFacts) -> Iterator[str]:
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


def _named(topic: str, partitions: Sequence[int]) -> str:
    more = f" and {len(partitions) - 5} more partitions" if len(partitions) > 5 else ""
    return ", ".join(f"{topic}[{p}]" for p in partitions[:5]) + more
