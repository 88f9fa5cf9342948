"""Records of a stream as they come, made into a block: as many rows as there are, whatever there was room for."""

from __future__ import annotations

import numpy as np
from confluent_kafka import Message

from dali_feed.external_sources.kafka.members import MemberRows
from dali_feed.external_sources.kafka.options import KafkaOptions
from dali_feed.external_sources.kafka.records import Rows, rows_for
from dali_feed.records.extents import pack_ids
from dali_feed.records.source import Block, Slabs

__all__ = ["Taken"]

MOST = 4096  # rows, of one block


class Taken:
    """Up to `records` records, copied once into a lease of `slabs`.

    count  how many there are
    size   bytes of their payloads
    weigh  those of one record
    """

    def __init__(self, options: KafkaOptions, slabs: Slabs, records: int) -> None:
        self.most = min(records, MOST)
        self.count = self.size = 0
        self.weigh = options.claims.weigh
        self._lease = slabs.lease()
        self._partitions: list[int] = []
        self._offsets: list[int] = []
        self._rows: Rows
        if options.asked is not None:
            self._rows = MemberRows.of(options.asked, self.most, self._lease, options.claims)
        else:
            self._rows = rows_for(options.label, options.codec, options.fields, self.most, self._lease, options.claims)

    @property
    def full(self) -> bool:
        """Whether there is no row left."""
        return self.count == self.most

    def take(self, partition: int, offset: int, message: Message) -> None:
        """Copy a record into the next row."""
        self._rows.take(self.count, message)
        self._partitions.append(partition)
        self._offsets.append(offset)
        self.count += 1
        self.size += self.weigh(message)

    def block(self) -> Block:
        """The records."""
        n, rows = self.count, self._rows
        ids = pack_ids(np.array(self._partitions, np.int64), np.array(self._offsets, np.int64))
        columns = {name: values[:n] for name, values in rows.columns().items()}
        return Block(ids, rows.payloads[:n], columns, self._lease, rows.faults)

    def release(self) -> None:
        """Give the memory back: there will be no block."""
        self._lease.release()
