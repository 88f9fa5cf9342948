"""What users of Kafka hold their clients to: ended in time, used in one process, and not after they are closed."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any

from confluent_kafka import Consumer

from dali_feed.errors import ClosedError, ConfigError
from dali_feed.external_sources.kafka.errors import LOG

__all__ = ["check_usable", "hang_up", "held", "let_go"]

CLOSE_SECONDS = 1.5


def hang_up(topic: str, consumer: Consumer | None) -> None:
    """Close a consumer; one that does not come to an end is left to its thread."""
    if consumer is not None:
        closing = threading.Thread(target=consumer.close, name="dali_feed-kafka-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        if closing.is_alive():
            LOG.warning("%s: the consumer did not close in %.1f s; it stays open", topic, CLOSE_SECONDS)


def check_usable(topic: str, pid: int, stop: threading.Event, *, closed: bool) -> None:
    """Raise ConfigError in a process that was forked from the reader's, ClosedError where it is closed or stopped."""
    if pid != os.getpid():
        msg = (
            f"{topic}: a Kafka reader must be used in the process that made it; process "
            f"{os.getpid()} was forked from {pid}; make a reader after the fork, or spawn"
        )
        raise ConfigError(msg)
    if closed:
        msg = f"{topic}: this reader is closed"
        raise ClosedError(msg)
    if stop.is_set():
        msg = f"{topic}: reading was stopped"
        raise ClosedError(msg)


# librdkafka's threads do not survive a fork, and destroying its client in the child hangs or aborts: the child keeps
# its parent's clients for ever, unused. By a reference that nobody has, as an interpreter that ends clears its lists.
_LIVE: weakref.WeakSet[Any] = weakref.WeakSet()


def held(user: Any) -> None:
    """From now on a child keeps what the `clients()` of this reader or writer are."""
    _LIVE.add(user)


def let_go(user: Any) -> None:
    """It has none any more."""
    _LIVE.discard(user)


def _after_fork() -> None:
    for user in list(_LIVE):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(user.clients()))


os.register_at_fork(after_in_child=_after_fork)
