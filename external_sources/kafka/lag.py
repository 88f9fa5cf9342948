"""Asks a cluster how far somebody is in a topic. Nothing is joined, committed or changed.

How long a record has waited is that record's own time: one record of each partition is read for it.
"""

from __future__ import annotations

import concurrent.futures
import difflib
import time
from collections.abc import Mapping
from dataclasses import replace

from confluent_kafka import KafkaException, TopicPartition

from dali_feed.errors import SourceNotFoundError
from dali_feed.external_sources.kafka.at_topic import AtTopic, at_topic
from dali_feed.external_sources.kafka.commit import committed_offsets
from dali_feed.external_sources.kafka.errors import DENIED
from dali_feed.external_sources.kafka.identity import Asker
from dali_feed.external_sources.kafka.lag_facts import LagFacts, PartitionLag, Stand
from dali_feed.external_sources.kafka.options import KafkaOptions

__all__ = ["look"]

TIMES_SECONDS = 5.0  # for the records that are read for their time


def look(options: KafkaOptions, reader: str | Stand) -> LagFacts:
    """Where a group of that name stands, or a stand that is known, beside what the topic holds.

    Raises:
        SourceNotFoundError: no such topic, or no such group; the message names similar ones.
        SourceUnreachableError: no answer for `timeout` seconds.
        SourceDeniedError: no rights, or credentials that are refused.
    """
    with at_topic(options) as at:  # clients of its own: since the last look a connection may have gone
        return _looked(at, reader)


def _looked(at: AtTopic, reader: str | Stand) -> LagFacts:
    topic, partitions = at.options.topic, at.cluster.partitions()
    stand = _stand_of(at, reader, partitions) if isinstance(reader, str) else reader
    lows, highs = (each.tolist() for each in at.cluster.watermarks(partitions))
    found = [
        PartitionLag(
            p,
            low,
            high,
            high if stand.ends is None else stand.ends.get(p, high),
            stand.positions.get(p),
            stand.needs.get(p),
            member=stand.holders.get(p, ""),
        )
        for p, low, high in zip(partitions, lows, highs, strict=True)
        if stand.ends is None or p in stand.ends  # of a snapshot those that it has
    ]
    now = time.time()
    waits = _times_at(at, {each.partition: max(each.low, each.position or 0) for each in found if each.lag})
    wanted = {each.partition: max(each.low, each.need) for each in found if each.need is not None}
    same = {p: waits[p] for p, offset in wanted.items() if p in waits and offset == stand.positions.get(p)}
    oldest = same | _times_at(at, {p: offset for p, offset in wanted.items() if p not in same})
    answers = at.cluster.answers()
    settings, unknown = at.settings() if answers else ({}, "this broker does not answer questions about settings")
    topic_id = (Asker(at.options).ask(topic) or "") if answers else ""
    parts = [replace(each, waits=waits.get(each.partition), oldest=oldest.get(each.partition)) for each in found]
    return LagFacts(topic, at.options.servers, stand, topic_id, tuple(parts), _keeps(settings), unknown, now)


def _keeps(settings: Mapping[str, str]) -> float | None:
    kept = settings.get("retention.ms", "")
    if not kept.isdecimal() or "delete" not in settings.get("cleanup.policy", "delete"):
        return None  # -1: for ever
    return int(kept) / 1000


def _times_at(at: AtTopic, offsets: Mapping[int, int]) -> dict[int, float]:
    """Unix seconds of the first record at or behind each partition's offset, where there is one and it may be read."""
    topic, consumer, found = at.options.topic, at.consumer, dict[int, float]()
    left = {p: TopicPartition(topic, p, offset) for p, offset in offsets.items()}
    if not left:
        return found
    deadline = time.monotonic() + min(TIMES_SECONDS, at.options.timeout)
    consumer.assign(list(left.values()))
    try:
        while left and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is None or message.partition() not in left:
                continue
            error, partition = message.error(), message.partition()
            if error is not None and error.code() in DENIED:
                break  # whoever may look at lags need not have the right to read
            if error is None and message.timestamp()[1] > 0:
                found[int(partition or 0)] = message.timestamp()[1] / 1000
            consumer.incremental_unassign([left.pop(int(partition or 0))])
    finally:
        consumer.unassign()
    return found


def _stand_of(at: AtTopic, group: str, partitions: list[int]) -> Stand:
    """Where a group stands by what it has committed, and who its members are."""
    positions = committed_offsets(at.options, group, partitions)
    known = _groups(at)
    if not positions and group not in (known or ()):
        raise _missing(at, group, known)
    state, members, holders = _members(at, group)
    state = state or (known or {}).get(group, "")
    return Stand(f"group {group!r}", positions, positions, state=state, members=members, holders=holders)


def _groups(at: AtTopic) -> dict[str, str] | None:
    """The cluster's groups that may be seen, and their states; None where it does not say."""
    try:
        found = at.admin.list_consumer_groups(request_timeout=at.options.timeout).result(at.options.timeout + 1)
    except (KafkaException, concurrent.futures.TimeoutError):
        return None
    if found.errors and not found.valid:
        return None
    return {each.group_id: _state(each.state) for each in found.valid}


def _members(at: AtTopic, group: str) -> tuple[str, int | None, dict[int, str]]:
    """Its state, how many members it has, and which partition is whose; "", None and nothing where it does not say."""
    try:
        (future,) = at.admin.describe_consumer_groups([group], request_timeout=at.options.timeout).values()
        told = future.result(at.options.timeout + 1)
    except (KafkaException, concurrent.futures.TimeoutError):
        return "", None, {}  # an older broker, or a group of the newer kind
    holders = {
        each.partition: f"{member.client_id} at {member.host.lstrip('/')}"
        for member in told.members
        if member.assignment is not None
        for each in member.assignment.topic_partitions
        if each.topic == at.options.topic
    }
    return _state(told.state), len(told.members), holders


def _state(state: object) -> str:
    name = str(getattr(state, "name", "")).replace("_", " ").lower()
    return "" if name in ("unknown", "dead") else name


def _missing(at: AtTopic, group: str, known: Mapping[str, str] | None) -> SourceNotFoundError:
    if known is None:
        near = "this broker does not list its groups"
    elif close := difflib.get_close_matches(group, known, n=5, cutoff=0.5):
        near = f"did you mean {', '.join(close)}?"
    else:
        near = f"none of the groups that it lists ({len(known)}) has a similar name"
    return SourceNotFoundError(
        f"{at.options.topic}: group {group!r} must have committed offsets at {at.options.servers}; there is no such "
        f"group; {near}"
    )
