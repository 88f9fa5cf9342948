"""A process that leaves a reader in the way that its first argument names; the second are the servers."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
import weakref
from typing import Any

from kit.broker.handle import Opened, labels

from dali_feed.external_sources import KafkaTopic
from dali_feed.external_sources.kafka.by_column import ByColumn
from dali_feed.native.kafka import Queue
from dali_feed.records.extents import Extents

COUNT = 40  # records of each partition


def read(reader: Opened, partition: int, start: int, stop: int) -> None:
    """What a partition has there, its own offsets as labels."""
    assert labels(reader.read(Extents.one(partition, start, stop))) == list(range(start, stop))


def made() -> Opened:
    """One in the middle of a partition."""
    reader = Opened(KafkaTopic("t", sys.argv[2]))
    read(reader, 0, 0, 10)
    assert isinstance(reader.own._way, ByColumn)
    return reader


def dropped() -> None:
    """Its last reference goes, also as a part of a cycle."""
    for cycle in (False, True):
        reader = made()
        gone, holder = weakref.ref(reader), [reader]
        if cycle:
            holder.append(holder)  # type: ignore[arg-type]
        del reader, holder
        gc.collect()
        assert gone() is None


def open_at_the_end() -> None:
    """The interpreter ends while it is open."""
    globals()["left"] = made()


def reading_at_the_end() -> None:
    """The interpreter ends while a thread waits for records in C."""
    waiting = waits()
    threading.Thread(target=lambda: made().read(Extents.one(0, 0, COUNT + 1)), daemon=True).start()
    waiting.wait()


def forked() -> None:
    """A child ends as processes do, with the reader of its parent; the parent reads on."""
    globals()["left"] = reader = made()
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        read(reader, 1, 0, COUNT)


def many_threads() -> None:
    """Threads with three readers each, at two partitions in turn, which nobody closes."""
    wrong: list[object] = []

    def work() -> None:
        try:
            readers = [made() for _ in range(3)]
            for n in range(8):
                for reader in readers:
                    read(reader, n % 2, n, n + 20)
        except BaseException as error:
            wrong.append(error)
            raise

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def interrupted() -> None:
    """Ctrl-C while a read waits in C for what does not come; then it reads on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reader, waiting = made(), waits()

    def press() -> None:
        waiting.wait()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    try:
        read(reader, 0, 0, COUNT + 1)
    except KeyboardInterrupt:
        read(reader, 1, 3, 30)
        read(reader, 0, 10, COUNT)
        reader.close()
        return
    raise AssertionError


def waits() -> threading.Event:
    """Set when a queue is empty: as it is asked again, C waits."""
    found, take = threading.Event(), Queue.take

    def noted(queue: Queue, *told: Any) -> int:
        why = take(queue, *told)
        if queue.waits:
            return why
        found.set()
        return take(queue, *told)

    Queue.take = noted  # type: ignore[method-assign,assignment]
    return found


if __name__ == "__main__":
    faulthandler.enable()
    globals()[sys.argv[1]]()
