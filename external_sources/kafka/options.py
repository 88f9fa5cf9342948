"""The options of a Kafka source, and a consumer made with them: the user's, and fixed ones that no option overrides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException

from dali_feed.errors import ConfigError
from dali_feed.external_sources.kafka.claims import UNTOLD, Follows
from dali_feed.external_sources.kafka.errors import QUIET, Trouble
from dali_feed.external_sources.kafka.members import Asked
from dali_feed.external_sources.kafka.records import Codec
from dali_feed.external_sources.kafka.statistics import INTERVAL_MS
from dali_feed.external_sources.kafka.tls import check_files
from dali_feed.external_sources.kafka.tokens import Tokens
from dali_feed.secrets import hidden, revealed

__all__ = [
    "OURS",
    "SLICE_SECONDS",
    "Adds",
    "Identity",
    "KafkaOptions",
    "admin_options",
    "amounts",
    "connect",
    "most_times",
    "opened",
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
class KafkaOptions:
    """What a reader needs to know of its source; `KafkaTopic` documents the values."""

    topic: str
    servers: str
    label: str | None
    codec: Codec | None
    fields: tuple[str, ...]
    timeout: float
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold passwords
    asked: Asked | None = None  # members in the place of image and fields
    claims: Follows = UNTOLD  # what is done with values that lie elsewhere


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
    options: KafkaOptions,
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
    config = opened(options.topic, options.config, trouble)
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
                "bootstrap.servers": options.servers,
                "error_cb": trouble,
                "logger": logger,
            }
        )
    except (KafkaException, TypeError, ValueError) as error:
        said = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        msg = f"{options.topic}: config= must hold options of librdkafka; {hidden(said)}"
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


def admin_options(options: KafkaOptions, trouble: Trouble) -> dict[str, Any]:
    """Settings of an admin client: the user's, but for what is a consumer's alone."""
    kept = {k: v for k, v in opened(options.topic, options.config, trouble).items() if not k.startswith(_CONSUMER_ONLY)}
    return {**kept, "bootstrap.servers": options.servers, "logger": QUIET, "error_cb": trouble}
