"""librdkafka's statistics: one text of JSON an interval, made into figures when somebody asks.

The law: a reading thread pays for keeping the text, and nothing else. Of 240 partitions it is 180 KB, and made into
figures in 5 ms, which whoever asks pays, once for each text.

What librdkafka says and does not mean, as measured: `consumer_lag` is -1 without commits, so a lag is counted from
positions; `fetchq_cnt` and `fetchq_size` of each partition are those of the queue that they all share, so the largest
stands for it; `rtt` of a fetch has in it how long the broker waited for data, `fetch.wait.max.ms` at most. Texts that
nobody collects stay in librdkafka, 128 MB an hour of these: a consumer that nobody asks for records must be polled
all the same.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from confluent_kafka import Message

from dali_feed.records.gauges import BrokerStats, KafkaStats, PartitionStats
from dali_feed.records.metrics import counted, merged

INTERVAL_MS = 5000
_MICRO = 1e-6


class Statistics:
    """Of one reader, whose consumers come one after the other. `gauges` may be called from any thread."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._lock = threading.Lock()
        self._texts: list[str] = []  # the last two of the consumer that there is now
        self._before: KafkaStats | None = None  # what the consumers before it counted
        self._last: tuple[str, KafkaStats] | None = None  # of the last text
        self._times: dict[int, float] = {}

    def begin(self) -> Callable[[str], None]:
        """The `stats_cb` of a new consumer; what the one before has counted stays counted."""
        before = self.gauges()
        texts: list[str] = []

        def keep(text: str) -> None:
            texts[:] = [*texts[-1:], text]

        with self._lock:  # the one before may still be closing: its list is nobody's any more
            self._before = None if before is None else counted(before)
            self._texts, self._last = texts, None
        return keep

    def seen(self, batch: Sequence[Message]) -> None:
        """Keep when the last records were made that came of each partition."""
        for partition, message in {message.partition(): message for message in batch}.items():
            if partition is not None and (milliseconds := message.timestamp()[1]) > 0:
                self._times[partition] = milliseconds / 1000

    def gauges(self) -> KafkaStats | None:
        """The figures; None before the first text."""
        with self._lock:
            texts = self._texts[:]
            if not texts:
                return self._before
            if self._last is None or self._last[0] is not texts[-1]:
                new = figures(self._topic, *map(json.loads, texts))
                both = new if self._before is None else merged([new, self._before])
                self._last = texts[-1], both
            stats = self._last[1]
        now, times = time.time(), self._times.copy()
        return replace(
            stats,
            partitions=tuple(
                replace(one, seconds=max(0.0, now - times[one.partition])) if one.partition in times else one
                for one in stats.partitions
            ),
        )


def figures(topic: str, *texts: Mapping[str, Any]) -> KafkaStats:
    """What one consumer's statistics say of a topic: of the last of the texts, and rates since the one before it.

    Where the training loop stands no consumer knows.
    """
    latest, first = texts[-1], texts[0]
    seconds = (latest["ts"] - first["ts"]) * _MICRO
    then = _partitions(first, topic)
    stats: list[PartitionStats] = []
    queue = 0, 0
    for number, each in sorted((int(number), each) for number, each in _partitions(latest, topic).items()):
        queue = max(queue, (each["fetchq_cnt"], each["fetchq_size"]))
        if number < 0 or not (each["desired"] or each["rxmsgs"] or each["hi_offset"] >= 0):
            continue  # librdkafka's own, and those that this consumer never came to
        before = then.get(str(number), {}).get("rxbytes", 0)
        stats.append(
            PartitionStats(
                number,
                end=_known(each["ls_offset"]),
                low=_known(each["lo_offset"]),
                records=each["rxmsgs"],
                size=each["rxbytes"],
                rate=(each["rxbytes"] - before) / seconds if seconds > 0 else None,
                leader=_known(each["leader"]),
            )
        )
    brokers = [_broker(name, each) for name, each in latest["brokers"].items() if each["nodeid"] >= 0]
    group = latest.get("cgrp", {})
    return KafkaStats(
        topic,
        tuple(stats),
        tuple(sorted(brokers, key=lambda each: each.broker)),
        readers=1,
        queue_records=queue[0],
        queue_bytes=queue[1],
        rebalances=group.get("rebalance_cnt", 0),
        at=float(latest["time"]),
    )


def _partitions(latest: Mapping[str, Any], topic: str) -> dict[str, Any]:
    partitions: dict[str, Any] = latest["topics"].get(topic, {}).get("partitions", {})
    return partitions


def _broker(name: str, each: Mapping[str, Any]) -> BrokerStats:
    return BrokerStats(
        name,
        each["state"],
        answers=each["rtt"]["cnt"],
        waited=each["rtt"]["sum"] * _MICRO,
        latency_p99=each["rtt"]["p99"] * _MICRO if each["rtt"]["cnt"] else None,
        throttle=each["throttle"]["avg"] * 1e-3 if each["throttle"]["cnt"] else None,
        fetches=each["req"].get("Fetch", 0),
        disconnects=each["disconnects"],
    )


def _known(number: int) -> int | None:
    return number if number >= 0 else None  # -1001: not known
