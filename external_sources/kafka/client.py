"""Clients of Kafka: where they connect to, their settings, and how they come to an end.

The laws: settings that decide which records are read, and in which order, are ours alone. Every call into librdkafka
that may not come back has an end. librdkafka's threads do not survive a fork, and destroying its client in the child
hangs or aborts: a child keeps its parent's clients for ever, unused.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np
from confluent_kafka import Consumer, KafkaException

from dali_feed.errors import ClosedError, ConfigError, SourceDeniedError
from dali_feed.external_sources.kafka.errors import LOG, QUIET, Trouble, check_files
from dali_feed.external_sources.kafka.statistics import INTERVAL_MS
from dali_feed.secrets import hidden, revealed

__all__ = [
    "OURS",
    "SLICE_SECONDS",
    "Adds",
    "Connection",
    "Identity",
    "StuckError",
    "Tokens",
    "addresses",
    "admin_options",
    "amounts",
    "check_usable",
    "connect",
    "hang_up",
    "held",
    "keep_freed",
    "let_go",
    "most_times",
    "opened",
    "timely",
]

SLICE_SECONDS = 0.1  # the longest wait that does not look at the stop event

# What makes a read exact; a user's value would change the data or its order.
_LAWS: dict[str, Any] = {
    "allow.auto.create.topics": False,
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "group.id": "dali_feed",  # librdkafka wants one; it is never joined
    "isolation.level": "read_committed",
}
# What makes it fast for runs of one partition at a time; a user may know better.
_TUNING: dict[str, Any] = {
    "check.crcs": True,
    "client.id": "dali_feed",
    "fetch.error.backoff.ms": 50,
    "fetch.max.bytes": 8 << 20,
    "fetch.message.max.bytes": 4 << 20,
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 20,  # a new assignment waits for the fetch at the old one's end
    "queued.max.messages.kbytes": 8 << 10,
    "queued.min.messages": 1_000_000,
    "reconnect.backoff.max.ms": 1000,
    "socket.keepalive.enable": True,
    "topic.metadata.propagation.max.ms": 2000,
}
# Over a link so slow that a fetch outlasts the patience nothing would ever come whole: a smaller one does.
_MODEST = 256 << 10
_FETCH = ("fetch.message.max.bytes", "max.partition.fetch.bytes")  # one option by two names
# What a consumer fetches and keeps, all of it twice as much at two `times`. With 20 ms to the broker twice as much
# is 1.3 to 1.8 times as fast, and four times as much no faster than that; on the same machine it is none.
_AMOUNTS = ("fetch.message.max.bytes", "fetch.max.bytes", "queued.max.messages.kbytes")
MOST_TIMES = 2
OURS = frozenset(_LAWS) | {
    "auto.commit.enable",
    "bootstrap.servers",
    "consume.callback",
    "default.topic.config",
    "error_cb",
    "group.instance.id",
    "group.protocol",
    "logger",
    "metadata.broker.list",
    "on_commit",
}


@dataclass(frozen=True, slots=True)
class Connection:
    """A topic, and how it is reached.

    servers  "host:port,host:port", as `addresses` gives them
    timeout  seconds without an answer after which they count as unreachable
    config   the user's options of librdkafka
    """

    topic: str
    servers: str
    timeout: float = 30.0
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold passwords

    def where(self, partition: int, offset: int) -> str:
        """A record's coordinates as text: `imagenet-train[3]@41872`."""
        return f"{self.topic}[{partition}]@{offset}"


def most_times(config: Mapping[str, Any]) -> int:
    """How many times the usual amount a consumer may fetch: just that where the user has said how much."""
    return 1 if {*_FETCH, *_AMOUNTS, "receive.message.max.bytes"}.intersection(config) else MOST_TIMES


def amounts(config: Mapping[str, Any], times: int) -> dict[str, int]:
    """What a consumer fetches and keeps at so many `times` the usual amount, as far as the user lets it."""
    return {name: int(_TUNING[name]) * min(times, most_times(config)) for name in _AMOUNTS}


class Adds(Protocol):
    """What must be told to a consumer beside all else."""

    def options(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Further settings, where `config` are the user's."""
        ...


def connect(  # noqa: PLR0913  whose consumer it is, and what for
    to: Connection,
    trouble: Trouble,
    *,
    modest: bool = False,
    times: int = 1,
    logger: Any = QUIET,
    debug: str = "",
    statistics: Callable[[str], None] | None = None,
    tuning: Mapping[str, Any] | None = None,
    member: Mapping[str, Any] | None = None,
    client: Adds | None = None,
) -> Consumer:
    """A consumer with our settings and the user's; opens no connection by itself.

    A `modest` one fetches less at once; others so many `times` the usual amount where the user does not say how much.
    Its `logger` is told what `debug` names, beside what the user asked for; `statistics` librdkafka's, as JSON.
    `tuning` are further settings that the user's go before, `member` those of a member of a group, which go before all.
    `client` has settings to add.

    Raises:
        ConfigError: librdkafka does not take an option of `config`.
    """
    config = opened(to.topic, to.config, trouble)
    asked = [int(config[name]) for name in _FETCH if str(config.get(name, "")).isdecimal()]
    try:
        return Consumer(
            {
                **_TUNING,
                **amounts(config, times),
                **(tuning or {}),
                **config,
                **(dict.fromkeys(_FETCH, min([_MODEST, *asked])) if modest else {}),
                **({} if statistics is None else _measuring(config, statistics)),
                **_LAWS,
                **(member or {}),
                **({} if client is None else client.options(config)),
                **({"debug": ",".join(filter(None, (config.get("debug"), debug)))} if debug else {}),
                "bootstrap.servers": to.servers,
                "error_cb": trouble,
                "logger": logger,
            }
        )
    except (KafkaException, TypeError, ValueError) as error:
        said = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        msg = f"{to.topic}: config= must hold options of librdkafka; {hidden(said)}"
        raise ConfigError(msg) from None  # which may show a value as it was given


def _measuring(config: Mapping[str, Any], statistics: Callable[[str], None]) -> dict[str, Any]:
    """Options for statistics: at the user's interval, and for the user's function too."""
    interval, theirs = config.get("statistics.interval.ms", INTERVAL_MS), config.get("stats_cb")

    def both(text: str) -> None:
        statistics(text)
        if theirs is not None:
            theirs(text)

    return {"statistics.interval.ms": interval, "stats_cb": both if theirs is None or callable(theirs) else theirs}


def opened(subject: str, config: Mapping[str, Any], trouble: Trouble) -> dict[str, Any]:
    """The user's options as librdkafka takes them.

    Raises:
        ConfigError: a secret or a file of certificates that is not there.
        SourceDeniedError: the user's function of tokens raised.
    """
    found = revealed(subject, config)
    check_files(subject, found)
    if callable(given := found.get("oauth_cb")):
        found["oauth_cb"] = Tokens(subject, given, str(found.get("sasl.oauthbearer.config", "")), trouble.no_token)
    return found


class Identity:
    """The id of the topic that a source's snapshot is of; its readers hold what they read to it.

    A topic made anew under the same name has another one. "" where no snapshot was taken, or the brokers have none.
    """

    def __init__(self) -> None:
        self.topic_id = ""


# What only a consumer knows; an admin client would warn about it.
_CONSUMER_ONLY = ("fetch.", "queued.", "check.crcs", "max.poll.", "session.", "heartbeat.", "partition.")


def admin_options(to: Connection, trouble: Trouble) -> dict[str, Any]:
    """Settings of an admin client: the user's, but for what is a consumer's alone."""
    kept = {k: v for k, v in opened(to.topic, to.config, trouble).items() if not k.startswith(_CONSUMER_ONLY)}
    return {**kept, "bootstrap.servers": to.servers, "logger": QUIET, "error_cb": trouble}


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


_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
# [::1]:9092; host:9092; a bare IPv6 address has two colons or more, and no port
_ADDRESS = re.compile(
    r"(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]@]+)(?::(?P<port>\d{1,5}))?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[\w.%]*"
)
_MOST = 65535


def addresses(subject: str, servers: str | Sequence[str]) -> str:
    """They as librdkafka takes them, "host:port,host:port". Raises ConfigError, with `subject`, for what is none."""
    given: list[object] = [servers] if isinstance(servers, str) or not isinstance(servers, Iterable) else [*servers]
    listed = [each for each in given if isinstance(each, str)]
    if len(listed) < len(given):
        msg = f"{subject}servers must be addresses as host:port, in a text or a list; found {servers!r}"
        raise ConfigError(msg)
    found = [one.strip() for each in listed for one in each.split(",") if one.strip()]
    if not found:
        msg = f"{subject}servers must be addresses as host:port; found {servers!r}"
        raise ConfigError(msg)
    for one in found:
        protocol, _, address = one.rpartition("://")
        if protocol and protocol.lower() not in _PROTOCOLS:
            msg = f"{subject}servers must be addresses as host:port; found {one!r}: leave {protocol + '://'!r} out"
            raise ConfigError(msg)
        fits = _ADDRESS.fullmatch(address)
        if not fits or (fits["port"] and not 1 <= int(fits["port"]) <= _MOST):
            msg = f"{subject}servers must be addresses as host:port, with a port of 1 to {_MOST}; found {one!r}"
            raise ConfigError(msg)
    return ",".join(found)


LARGEST = (32 << 20) - (64 << 10)  # bytes; glibc learns from nothing larger than 32 MB


@cache
def keep_freed() -> None:
    """Once in a process, before its first consumer."""
    np.empty(LARGEST, np.uint8)


class StuckError(Exception):
    """The call has not come back; its thread is left with it."""


def timely(what: Callable[[], object], seconds: float) -> None:
    """Do it in a thread of its own. Raises what it raises, or StuckError where it does not end in so many seconds."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            what()
        except BaseException as error:  # noqa: BLE001  the caller's
            raised.append(error)

    doing = threading.Thread(target=run, name="dali_feed-kafka-call", daemon=True)
    doing.start()
    doing.join(seconds)
    if doing.is_alive():
        raise StuckError
    if raised:
        raise raised[0]


AGAIN_SECONDS = 30.0  # until a token that could not be had is asked for again


class Tokens:
    """An `oauth_cb` for librdkafka, of the user's, which takes a text and gives (token, unix seconds of its end, ...).

    Raises:
        SourceDeniedError: the function raised.
        ConfigError: it gave something else than a token, or one that has expired.
    """

    def __init__(self, subject: str, given: Callable[[str], Any], asked: str, failed: Callable[[str], None]) -> None:
        self._given, self._failed = given, failed
        try:
            found = given(asked)
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            msg = f"{subject}: oauth_cb in config= must give a token; it raised {type(error).__name__}: {error}"
            raise SourceDeniedError(hidden(msg)) from None
        if wrong := _wrong(found):
            msg = f"{subject}: oauth_cb in config= must give (token, unix seconds of its end); {wrong}"
            raise ConfigError(msg)
        self._last, self._fresh = found, True

    def __call__(self, asked: str) -> Any:
        """A token that has not expired."""
        if self._fresh:
            self._fresh = False
            return self._last
        try:
            found = self._given(asked)
            why = _wrong(found)
        except Exception as error:  # noqa: BLE001
            why = f"it raised {type(error).__name__}: {error}"
        if why:
            self._failed(hidden(f"SASL: oauth_cb gave no new token: {why}"))
            return self._last[0], time.time() + AGAIN_SECONDS, *self._last[2:]
        self._failed("")
        self._last = found
        return found


def _wrong(found: Any) -> str:
    """What is wrong with what the function gave, a clause without the token; empty where nothing is."""
    if not isinstance(found, tuple) or len(found) < 2 or not isinstance(found[0], str) or not found[0]:
        return f"it gave {type(found).__name__}" if not isinstance(found, tuple) else "it gave a tuple with other items"
    if isinstance(found[1], bool) or not isinstance(found[1], int | float):
        return f"its end is {type(found[1]).__name__}"
    ago = time.time() - found[1]
    return f"it ended {ago:.0f} s ago" if ago >= 0 else ""
