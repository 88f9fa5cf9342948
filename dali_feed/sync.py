"""Threads, and what they meet on: locks, conditions, queues, futures and the clock, all from this one module.

The rooms whose threads meet take theirs from here by name (`sync.Condition()`), when they need one and not before. So a
test puts others in their place: threads that a seeded scheduler runs one at a time, on a clock of its own
(tests/kit/schedules.py). Thousands of schedules then take seconds, and one that breaks a law comes again by its seed.
"""

from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import (
    TIMEOUT_MAX,
    Barrier,
    BrokenBarrierError,
    Condition,
    Event,
    Lock,
    RLock,
    Thread,
    current_thread,
    get_ident,
)
from time import monotonic, perf_counter, sleep

__all__ = [
    "TIMEOUT_MAX",
    "Barrier",
    "BrokenBarrierError",
    "Condition",
    "Empty",
    "Event",
    "Future",
    "Lock",
    "RLock",
    "SimpleQueue",
    "Thread",
    "current_thread",
    "get_ident",
    "monotonic",
    "perf_counter",
    "sleep",
]
