"""Offsets committed to a consumer group that nobody joins, so that lag tools see a training.

A bounded topic publishes them and never reads them; a stream may begin at them, once. An admin client does both: there
is no subscription, no member and no rebalance, and it closes its connection afterwards.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from dali_feed.errors import ClosedError, SourceError
from dali_feed.external_sources.kafka.errors import DENIED, Trouble, denied, unreachable
from dali_feed.external_sources.kafka.options import KafkaOptions, admin_options

__all__ = ["COMMIT_SECONDS", "commit_offsets", "committed_offsets"]

COMMIT_SECONDS = 5.0  # the training loop waits for it, after a checkpoint

_DENIED = DENIED | {KafkaError.GROUP_AUTHORIZATION_FAILED}
_NEEDS = "a group's offsets need the right Describe on it"
_SOON = frozenset(  # a cluster that makes its topic of offsets, or moves a group, answers a moment later
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)


def commit_offsets(options: KafkaOptions, group: str, offsets: Mapping[int, int]) -> None:
    """Set the group's offset of each of these partitions.

    Raises:
        SourceError: not done within 5 seconds, or the source's `timeout` where that is less; no rights; or the group
            has members, whose offsets they are.
    """
    trouble, deadline = Trouble(), time.monotonic() + min(COMMIT_SECONDS, options.timeout)
    admin = AdminClient(admin_options(options, trouble))
    wanted = [TopicPartition(options.topic, p, offset) for p, offset in offsets.items()]
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


def committed_offsets(
    options: KafkaOptions, group: str, partitions: Sequence[int], stop: threading.Event | None = None
) -> dict[int, int]:
    """The group's offset of each of these partitions that it has one of; the group is not joined.

    Raises:
        SourceDeniedError: no rights on the group.
        SourceUnreachableError: no answer for the source's `timeout`.
        ClosedError: the stop event is set.
    """
    trouble, begun, stopped = Trouble(), time.monotonic(), stop or threading.Event()
    admin = AdminClient(admin_options(options, trouble))
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(options.topic, p) for p in partitions])
    while not stopped.is_set():
        try:
            (future,) = admin.list_consumer_group_offsets([wanted], request_timeout=1.0).values()
            found = future.result(2.0).topic_partitions
            error = next((each.error for each in found if each.error is not None), None)
        except KafkaException as raised:
            error = raised.args[0]
        except concurrent.futures.TimeoutError:
            error = KafkaError(KafkaError._TIMED_OUT)
        if error is None:
            return {each.partition: each.offset for each in found if each.offset >= 0}
        admin.poll(0)  # runs the error callback, which knows more than "timed out"
        if trouble.denied or error.code() in _DENIED:
            said = trouble.denied or error.str()
            raise denied(options.topic, options.servers, said, options.config, _NEEDS)
        if time.monotonic() - begun >= options.timeout:
            seconds = time.monotonic() - begun
            raise unreachable(options.topic, options.servers, seconds, trouble.last or error.str())
        stopped.wait(0.05)
    msg = f"{options.topic}: reading was stopped"
    raise ClosedError(msg)


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
