"""A process that writes to a topic beside what is measured: at a rate, or as fast as it is told that they came."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from confluent_kafka import Producer

__all__ = ["Writing", "writing"]

SLICE = 0.001


class Writing:
    """What both processes see of it."""

    def __init__(self) -> None:
        at = multiprocessing.get_context("spawn")
        self.taken, self.sent = at.Value("q", 0, lock=False), at.Value("q", 0, lock=False)
        self.stop = at.Event()


@contextmanager
def writing(
    servers: str, topic: str, values: Sequence[bytes], rate: float | None, partitions: int, warm: int, ahead: int
) -> Iterator[Writing]:
    """Records of these values in turn, whose label is when they were sent, time.monotonic_ns; until the block ends.

    rate   records a second, with gaps of random length, once `warm` records were written; None: none
    ahead  until then, and without a rate, so many more are written than `taken` says
    """
    told = Writing()
    process = multiprocessing.get_context("spawn").Process(
        target=_write, args=(told, servers, topic, values, rate, partitions, warm, ahead), daemon=True
    )
    process.start()
    try:
        yield told
    finally:
        told.stop.set()
        process.join(60)


def _write(
    told: Writing,
    servers: str,
    topic: str,
    values: Sequence[bytes],
    rate: float | None,
    partitions: int,
    warm: int,
    ahead: int,
) -> None:
    options: dict[str, Any] = {
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "linger.ms": 0 if ahead == 1 else 5,
        "log_level": 0,
    }
    producer = Producer(options | {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1 << 20})
    gaps = np.random.default_rng(0)
    sent, due = 0, time.monotonic()
    while not told.stop.is_set():
        timed = rate is not None and sent >= warm
        while (time.monotonic() < due) if timed else (sent >= told.taken.value + ahead):
            producer.poll(SLICE)
            if told.stop.is_set():
                break
        if timed and rate is not None:
            due += gaps.uniform(0.5, 1.5) / rate
        else:
            due = time.monotonic()
        label: Any = [("label", b"%d" % time.monotonic_ns())]
        producer.produce(topic, values[sent % len(values)], partition=sent % partitions, headers=label)
        sent += 1
        told.sent.value = sent
        producer.poll(0)
    producer.flush(30)
