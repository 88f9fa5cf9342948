"""Where a member of a group begins: at the group's offset, and where there is none yet at one that is set at once.

The law: a partition is begun once. Whoever is dealt one of which the group has no offset commits where it begins before
it reads, so that a worker which dies at once costs nothing: "latest" is not looked up again by the next one. A
partition that came after the group began is read from its beginning, whatever `start` says: nobody has skipped it. So
each commit says, in its metadata, of how many partitions the topic was when the group began.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dali_feed.errors import DataLostError
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.errors import DENIED, Trouble, denied, unreachable
from dali_feed.external_sources.kafka.options import KafkaOptions, connect

__all__ = ["GROUP_RIGHT", "REFUSED", "Begun", "Start", "begun"]

Start = str | float  # as `start.checked_start` gives it; "group": there must be offsets

GROUP_RIGHT = "joining a group needs the right Read on it, and Describe and Read on the topic"
REFUSED = DENIED | {KafkaError.GROUP_AUTHORIZATION_FAILED}
ASK_SECONDS = 1.0
_OF_MEMBERS = ("max.poll.", "heartbeat.")
_NOTE = re.compile(r"partitions=(\d+)\b")


@dataclass(frozen=True, slots=True)
class Begun:
    """Where a member stands in the partitions it was dealt.

    offsets  partition -> the next offset to read
    fresh    those of them that the group had no offset of; to be committed before anything is read
    first    how many partitions the topic had when the group began
    """

    offsets: dict[int, int]
    fresh: dict[int, int]
    first: int

    @property
    def note(self) -> str:
        """The metadata of this group's commits."""
        return f"partitions={self.first}"


def begun(
    options: KafkaOptions, consumer: Consumer, trouble: Trouble, group: str, start: Start, dealt: Sequence[int]
) -> Begun:
    """Where the group is in the partitions that were dealt. It is called in the member's callback.

    Raises:
        DataLostError: `start` is "group", and it has no offset of a partition that was there when it began.
        SourceUnreachableError: no answer for `timeout` seconds.
        SourceDeniedError: no rights.
    """
    found = _committed(options, consumer, trouble, dealt)
    missing = [p for p in dealt if p not in found]
    fresh: dict[int, int] = {}
    first = _first_of(found)
    if missing:
        alone = replace(options, config={k: v for k, v in options.config.items() if not k.startswith(_OF_MEMBERS)})
        asking = connect(alone, trouble)  # a question asked by the member itself would end its callback in a crash
        try:
            cluster = Cluster(alone, asking, trouble)
            everything = cluster.partitions()
            whole = _committed(options, consumer, trouble, everything)
            first = _first_of(whole) if whole else len(everything)
            early = [p for p in missing if p < first]
            if early and start == "group":
                raise _none(options.topic, early[0], group)
            fresh = _places(cluster, "earliest", [p for p in missing if p >= first])
            fresh |= _places(cluster, start, early)
        finally:
            asking.close()
    return Begun({p: each.offset for p, each in found.items()} | fresh, fresh, first)


def _first_of(found: Mapping[int, TopicPartition]) -> int:
    """What the notes of a group's commits say; 0 where another tool has set them: it knew all partitions there were."""
    notes = (_NOTE.search(each.metadata or "") for each in found.values())
    return max((int(note[1]) for note in notes if note), default=0)


def _none(topic: str, partition: int, group: str) -> DataLostError:
    return DataLostError(
        f"{topic}[{partition}]: the group {group!r} must have an offset of it; there is none: nobody has committed"
        ' one, or the broker forgot it (offsets.retention.minutes); set it, or give start="earliest" or "latest"'
    )


def _committed(
    options: KafkaOptions, consumer: Consumer, trouble: Trouble, partitions: Sequence[int]
) -> Mapping[int, TopicPartition]:
    """The group's offsets of the partitions that it has one of."""
    asked = [TopicPartition(options.topic, p) for p in partitions]
    begin = time.monotonic()
    while True:
        try:
            found = consumer.committed(asked, timeout=ASK_SECONDS)
        except KafkaException as error:
            wrong = error.args[0]
        else:
            wrong = next((each.error for each in found if each.error is not None), None)
            if wrong is None:
                return {each.partition: each for each in found if each.offset >= 0}
        if wrong.code() in REFUSED or trouble.denied:
            said = trouble.denied or wrong.str()
            raise denied(options.topic, options.servers, said, options.config, GROUP_RIGHT)
        if (seconds := time.monotonic() - begin) >= options.timeout:
            raise unreachable(options.topic, options.servers, seconds, trouble.last or wrong.str())
        time.sleep(0.05)  # a coordinator that moves answers a moment later


def _places(cluster: Cluster, start: Start, partitions: list[int]) -> dict[int, int]:
    if not partitions:
        return {}
    if isinstance(start, str):
        lows, highs = cluster.watermarks(partitions)
        offsets = highs if start.endswith("latest") else lows
    else:
        offsets = cluster.since(partitions, math.ceil(1000 * start))
    return dict(zip(partitions, offsets.tolist(), strict=True))
