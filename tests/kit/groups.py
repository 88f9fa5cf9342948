"""Workers of a group as tests have them: a loop that holds one block at a time, and says how far it is."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kit.broker.handle import OpenedStream
from kit.limits import LONG

from dali_feed.external_sources.kafka.group import ConsumerGroup
from dali_feed.external_sources.kafka.stream import KafkaStream
from dali_feed.records.extents import unpack_ids
from dali_feed.records.live import LiveBlock


def until(done: Callable[[], bool], *turns: Callable[[], object]) -> None:
    """Take turns until it is done, for a long time at most."""
    deadline = time.monotonic() + LONG
    while not done():
        assert time.monotonic() < deadline, "it did not come to that"
        for turn in turns:
            turn()


def group_of_tests(group: str, protocol: Any = "classic", **more: Any) -> ConsumerGroup:
    """A group whose dead are missed after two or three seconds."""
    return ConsumerGroup(group, protocol, session=2.0 if protocol == "classic" else None, **more)


class Worker:
    """A reader, and what its loop got of it; a block is finished when the next one is asked for."""

    def __init__(
        self, topic: str, servers: str, group: ConsumerGroup, start: Any = "earliest", config: Any = None
    ) -> None:
        self.stop = threading.Event()
        self.stream = KafkaStream(topic, servers, start=start, group=group, label=None, timeout=20.0, config=config)
        self.opened = OpenedStream(self.stream, stop=self.stop)
        self.reader: Any = self.opened.own
        self.got: Counter[tuple[int, int]] = Counter()
        self.held: dict[int, int] = {}  # where partitions stand behind the block that the loop has
        self.done: dict[int, int] = {}

    def turn(self, records: int = 8, seconds: float = 0.05) -> LiveBlock:
        """One step of the loop."""
        self.done |= self.held
        self.held = {}
        block = self.opened.poll(records, float("inf"), seconds)
        self.take(block)
        return block

    def take(self, found: LiveBlock) -> None:
        """Note what came."""
        self.held = dict(found.position)
        partitions, offsets = unpack_ids(found.block.ids)
        self.got.update(zip(partitions.tolist(), offsets.tolist(), strict=True))

    def look(self) -> None:
        """What a loop does that takes its time: it asks for nothing."""
        self.opened.poll(0, 0, 0.0)

    @property
    def partitions(self) -> tuple[int, ...]:
        """Those that it is assigned."""
        found: tuple[int, ...] = self.reader.partitions
        return found

    def commit(self) -> None:
        """What `loader.commit()` does: all that came is finished."""
        self.done |= self.held
        self.reader.commit(self.done)

    def close(self) -> None:
        """Leave in order, all that came finished."""
        self.commit()
        self.reader.close()


def seen(workers: Sequence[Worker]) -> Counter[tuple[int, int]]:
    """How often each record came, to all of them together."""
    return sum((worker.got for worker in workers), Counter())


if __name__ == "__main__":  # SERVERS TOPIC OUT PROTOCOL: a worker in a process of its own; OUT gets a line per record
    logging.basicConfig(level=logging.WARNING)
    servers, topic, out, protocol = sys.argv[1:]
    mine = Worker(topic, servers, group_of_tests(topic, protocol))
    with Path(out).open("a") as lines:
        while True:
            ids = mine.turn(records=4).block.ids
            for partition, offset in zip(*unpack_ids(ids), strict=True):
                print(partition, offset, file=lines, flush=True)
            mine.commit()
