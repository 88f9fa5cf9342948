"""Offsets committed to a consumer group that nobody joins, so that lag tools see a training.

They are published and never read. An admin client sets them; there is no subscription, no
member and no rebalance, and it closes its connection afterwards.
"""

from __future__ import annotations

import concurrent.futures
import time

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from dali_feed.errors import SourceError
from dali_feed.external_sources.kafka.errors import Trouble
from dali_feed.external_sources.kafka.options import KafkaOptions, admin_options
from dali_feed.records.source import Int64s

__all__ = ["COMMIT_SECONDS", "commit_offsets"]

COMMIT_SECONDS = 5.0  # the training loop waits for it, after a checkpoint

_SOON = frozenset(  # a cluster that makes its topic of offsets, or moves a group, answers a moment later
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)


def commit_offsets(options: KafkaOptions, group: str, offsets: Int64s) -> None:
    """Set the group's offset of each partition.

    Raises:
        SourceError: not done within 5 seconds, or the source's `timeout` where that is less; no rights; or the group
            has members, whose offsets they are.
    """
    trouble, deadline = Trouble(), time.monotonic() + min(COMMIT_SECONDS, options.timeout)
    admin = AdminClient(admin_options(options, trouble))
    wanted = [TopicPartition(options.topic, p, offset) for p, offset in enumerate(offsets.tolist())]
    while True:
        error = _once(admin, ConsumerGroupTopicPartitions(group, wanted), max(0.05, deadline - time.monotonic()))
        if error is None:
            return
        if error.code() not in _SOON or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    admin.poll(0)  # runs the error callback, which knows more than "timed out"
    said = trouble.denied or trouble.last
    msg = (
        f"{options.topic}: offsets of group {group!r} could not be set at {options.servers}: {error.str()}"
        f"{f' ({said})' if said else ''}; check that the broker runs, that the group has no members, and the right Read"
        " on the group"
    )
    raise SourceError(msg)


def _once(admin: AdminClient, wanted: ConsumerGroupTopicPartitions, seconds: float) -> KafkaError | None:
    """One attempt; what went wrong with it, or with the first partition where something did."""
    try:
        (future,) = admin.alter_consumer_group_offsets([wanted], request_timeout=seconds).values()
        done = future.result(seconds + 1)
    except KafkaException as error:
        found: KafkaError = error.args[0]
        return found
    except concurrent.futures.TimeoutError:
        return KafkaError(KafkaError._TIMED_OUT)
    return next((each.error for each in done.topic_partitions if each.error is not None), None)
