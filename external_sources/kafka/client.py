"""Clients of Kafka: their settings, who may use them, and how they come to an end.

The laws: settings that decide which records are read, and in which order, are ours alone. Every call into librdkafka
that may not come back has an end. librdkafka's threads do not survive a fork, and destroying its client in the child
hangs or aborts: a child keeps its parent's clients for ever, unused.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from dali_feed.errors import ClosedError, ConfigError, SourceDeniedError
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import LOG, QUIET, Trouble
from dali_feed.external_sources.kafka.statistics import INTERVAL_MS
from dali_feed.secrets import hidden, revealed

SLICE_SECONDS = 0.1  # the longest wait that does not look at the stop event
CLOSE_SECONDS = 1.5
AGAIN_SECONDS = 30.0  # until a token that could not be had is asked for again
UNREADABLE: list[Any] = []  # in the place of headers that cannot be given
_FREED = (32 << 20) - (64 << 10)  # bytes; glibc learns from nothing larger than 32 MB
_Client = TypeVar("_Client")

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
_PRODUCING: dict[str, Any] = {
    "client.id": "dali_feed",
    "message.max.bytes": 64 << 20,  # the brokers have their own bound
    "reconnect.backoff.max.ms": 1000,
    "socket.keepalive.enable": True,
    "topic.metadata.propagation.max.ms": 2000,
}
# Over a link so slow that a fetch outlasts the patience nothing would ever come whole: a smaller one does.
_MODEST = 256 << 10
_FETCH = ("fetch.message.max.bytes", "max.partition.fetch.bytes")  # one option by two names
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
_LISTS = {"debug": ",", "plugin.library.paths": ";"}  # what we name is added to what the user does
# What only a consumer knows; an admin client would warn about it.
_CONSUMER_ONLY = ("fetch.", "queued.", "check.crcs", "max.poll.", "session.", "heartbeat.", "partition.")


def consumer(
    to: Connection,
    trouble: Trouble,
    *,
    tuning: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    logger: Any = QUIET,
    statistics: Callable[[str], None] | None = None,
) -> Consumer:
    """A consumer with our settings and the user's, which go before `tuning` and behind `settings`. It opens nothing.

    `trouble` hears its errors, `statistics` gets JSON. Raises ConfigError for an option that librdkafka does not take,
    SourceDeniedError where the user's function of tokens raised.
    """
    config, ours = _revealed(to, trouble), dict(settings or {})
    for name, between in _LISTS.items():
        if name in ours:
            ours[name] = between.join(filter(None, (config.get(name), ours[name])))
    measuring = {} if statistics is None else _measuring(config, statistics)
    tuned = {**_TUNING, **(tuning or {}), **config, **measuring, **_LAWS, **ours}
    return _client(Consumer, to, {**tuned, "bootstrap.servers": to.servers, "error_cb": trouble, "logger": logger})


def admin(to: Connection, trouble: Trouble) -> AdminClient:
    """An admin client, without the user's settings that are a consumer's alone. Raises what `consumer` does."""
    config = {k: v for k, v in _revealed(to, trouble).items() if not k.startswith(_CONSUMER_ONLY)}
    return _client(AdminClient, to, {**config, "bootstrap.servers": to.servers, "error_cb": trouble, "logger": QUIET})


def producer(to: Connection, trouble: Trouble, tuning: Mapping[str, Any], settings: Mapping[str, Any]) -> Producer:
    """A producer; the user's settings go before `tuning`, and `settings` before all. Raises what `consumer` does."""
    tuned = {**_PRODUCING, **tuning, **_revealed(to, trouble), **settings}
    return _client(Producer, to, {**tuned, "bootstrap.servers": to.servers, "error_cb": trouble, "logger": QUIET})


def _client(kind: Callable[[dict[str, Any]], _Client], to: Connection, settings: dict[str, Any]) -> _Client:
    try:
        return kind(settings)
    except (KafkaException, TypeError, ValueError) as error:
        words = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        msg = f"{to.topic}: config= must hold options of librdkafka; {hidden(words)}"
        raise ConfigError(msg) from None  # which may show a value as it was given


def headers_of(message: Message) -> Sequence[tuple[str, bytes | None]]:
    """The headers of a record; UNREADABLE where a name is not UTF-8, so that confluent_kafka cannot give any of them.

    Such a list has holes in it, at which whoever is given it crashes: it is replaced. `message.headers()` would give it
    too, once Python has learned of which kind the method is and looks for errors no more; a bound one it looks at.
    """
    headers: Any
    bound = message.headers
    try:
        headers = bound()
    except SystemError:
        message.set_headers(headers := UNREADABLE)
    return () if headers is None else headers


def modest(config: Mapping[str, Any]) -> dict[str, int]:
    """Settings of a consumer that fetches little at once; never more than the user's `config` says."""
    wanted = [int(config[name]) for name in _FETCH if str(config.get(name, "")).isdecimal()]
    return dict.fromkeys(_FETCH, min([_MODEST, *wanted]))


def _measuring(config: Mapping[str, Any], statistics: Callable[[str], None]) -> dict[str, Any]:
    """Settings for statistics: at the user's interval, and for the user's function too."""
    interval, theirs = config.get("statistics.interval.ms", INTERVAL_MS), config.get("stats_cb")

    def both(text: str) -> None:
        statistics(text)
        if theirs is not None:
            theirs(text)

    return {"statistics.interval.ms": interval, "stats_cb": both if theirs is None or callable(theirs) else theirs}


def _revealed(to: Connection, trouble: Trouble) -> dict[str, Any]:
    """The user's options as librdkafka takes them. ConfigError for secrets or files of keys that are not there."""
    config = revealed(to.topic, to.config)
    for name, value in config.items():
        names_a_file = name.startswith("ssl.") and name.endswith(".location") and value not in (None, "", "probe")
        if not names_a_file or os.path.exists(text := str(value)):
            continue
        found = f"{hidden(text)!r} is not there"
        if "\n" in text or "-----BEGIN" in text:
            found = "found its text, which is for ssl.key.pem, ssl.certificate.pem or ssl.ca.pem"
        raise ConfigError(f"{to.topic}: {name} in config= must name a file; {found}")
    if callable(oauth := config.get("oauth_cb")):
        text = str(config.get("sasl.oauthbearer.config", ""))
        config["oauth_cb"] = TokenGuard(to.topic, oauth, text, trouble.no_token)
    return config


class TokenGuard:
    """An `oauth_cb` for librdkafka, of the user's, which takes a text and gives (token, unix seconds of its end, ...).

    librdkafka is never given an exception or a token that it refuses, for either would come out of it anywhere else.
    So the first token is asked for here, before a client is made, and where a later one fails the one before is given
    once more: what the broker then says is raised, with why there was no new one.

    Raises:
        SourceDeniedError: the function raised.
        ConfigError: it gave something else than a token, or one that has expired.
    """

    def __init__(self, subject: str, oauth: Callable[[str], Any], text: str, failed: Callable[[str], None]) -> None:
        self._oauth, self._failed = oauth, failed
        try:
            token = oauth(text)
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            msg = f"{subject}: oauth_cb in config= must give a token; it raised {type(error).__name__}: {error}"
            raise SourceDeniedError(hidden(msg)) from None
        if wrong := _wrong(token):
            raise ConfigError(f"{subject}: oauth_cb in config= must give (token, unix seconds of its end); {wrong}")
        self._last, self._fresh = token, True

    def __call__(self, text: str) -> Any:
        """A token that has not expired."""
        if self._fresh:
            self._fresh = False
            return self._last
        try:
            token = self._oauth(text)
            why = _wrong(token)
        except Exception as error:  # noqa: BLE001
            why = f"it raised {type(error).__name__}: {error}"
        if why:
            self._failed(hidden(f"SASL: oauth_cb gave no new token: {why}"))
            return self._last[0], time.time() + AGAIN_SECONDS, *self._last[2:]
        self._failed("")
        self._last = token
        return token


def _wrong(token: Any) -> str:
    """What is wrong with what the function gave, a clause without the token; empty where nothing is."""
    if not isinstance(token, tuple):
        return f"it gave {type(token).__name__}"
    if len(token) < 2 or not isinstance(token[0], str) or not token[0]:
        return "it gave a tuple with other items"
    if isinstance(token[1], bool) or not isinstance(token[1], int | float):
        return f"its end is {type(token[1]).__name__}"
    ago = time.time() - token[1]
    return f"it ended {ago:.0f} s ago" if ago >= 0 else ""


class StuckError(Exception):
    """A call into librdkafka has not come back; its thread is left with it."""


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


def close_in_time(topic: str, client: Consumer | None) -> None:
    """Close a consumer; one that does not come to an end is left to its thread."""
    if client is None:
        return
    try:
        timely(client.close, CLOSE_SECONDS)
    except StuckError:
        LOG.warning("%s: the consumer did not close in %.1f s; it stays open", topic, CLOSE_SECONDS)
    except (KafkaException, RuntimeError) as error:  # closed, or failed for good
        LOG.debug("%s: closing the consumer: %s", topic, error)


_LIVE: weakref.WeakSet[Any] = weakref.WeakSet()  # readers and writers that have `clients()` in this process


class Guard:
    """Who may use a reader or a writer: the process that made it, until it is closed or stopped.

    From now on a child of this process keeps what `user.clients()` are.
    """

    def __init__(self, topic: str, user: Any, stop: threading.Event | None = None) -> None:
        self.stop = threading.Event() if stop is None else stop
        self.closed = False
        self._topic, self._pid = topic, os.getpid()
        self._user = weakref.ref(user)
        _LIVE.add(user)

    @property
    def maker(self) -> int:
        """The process that made it; 0 where that is this one."""
        return 0 if self._pid == os.getpid() else self._pid

    def check(self) -> None:
        """Raise ConfigError in a child of the process that made it, ClosedError where it is closed or stopped."""
        if self.maker:
            raise ConfigError(
                f"{self._topic}: a Kafka reader must be used in the process that made it; process "
                f"{os.getpid()} was forked from {self._pid}; make a reader after the fork, or spawn"
            )
        if self.closed:
            raise ClosedError(f"{self._topic}: this reader is closed")
        if self.stop.is_set():
            raise ClosedError(f"{self._topic}: reading was stopped")

    def close(self) -> bool:
        """It is closed from now on; whether its clients are there for this process to close."""
        self.closed = True
        if self.maker:
            return False
        if (user := self._user()) is not None:
            _LIVE.discard(user)
        return True


def _after_fork() -> None:
    for user in list(_LIVE):
        # By a reference that nobody has, as an interpreter that ends clears its lists.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(user.clients()))


os.register_at_fork(after_in_child=_after_fork)


@cache
def keep_freed() -> None:
    """Once in a process, before its first consumer: have the process keep the memory that librdkafka frees.

    glibc gives freed memory back to the system where there is more of it than twice the largest piece that it has seen
    freed, and librdkafka frees what it has fetched ahead whenever a reader goes on to another place: 10 to 20 MB, which
    then come back page by page. That is a tenth of all that reading costs. One large piece, never touched, that is
    freed first teaches glibc to keep 64 MB. Where MALLOC_* or GLIBC_TUNABLES set such limits, they stay as they are.
    """
    np.empty(_FREED, np.uint8)
