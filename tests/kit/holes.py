"""Topics half of whose transactions were aborted."""

from __future__ import annotations

import numpy as np
from kit.broker.handle import Kafka, in_transactions
from kit.images import jpeg

from dali_feed.records.extents import Extents
from dali_feed.records.source import Snapshot
from dali_feed.testing import Message

COMMITTED = [n for n in range(120) if n // 10 % 2 == 0]


def fill(kafka: Kafka, count: int = 120, each: int = 10, partitions: int = 2) -> str:
    """Half of the transactions aborted: of `count` records half are there, of the offsets less than that."""
    topic = kafka.create(kafka.topic, partitions)
    records = [Message(jpeg(n), headers=(("label", b"%d" % n),), partition=n % partitions) for n in range(count)]
    in_transactions(kafka, topic, records, each, lambda k: bool(k % 2))
    return topic


def everything(snapshot: Snapshot) -> Extents:
    """All that a plan deals, as positions."""
    first, last = snapshot.numbers
    return snapshot.located(Extents(np.arange(len(first)), first, last))
