"""Where a client connects to: a topic, and bootstrap addresses as users write them.

librdkafka reads the digits that a port begins with, takes 70000 for 4464, and leaves out an address whose protocol it
does not know: it would then ask for a broker where none was meant, until the timeout. So addresses are checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dali_feed.checks import number
from dali_feed.errors import ConfigError

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
# [::1]:9092; host:9092; a bare IPv6 address has two colons or more, and no port
_ADDRESS = re.compile(
    r"(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+)(?::(?P<port>\d{1,5}))?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[\w.%]*"
)
_MOST = 65535


@dataclass(frozen=True, slots=True)
class Connection:
    """A topic, and how it is reached.

    Attributes:
        topic: its name.
        servers: bootstrap addresses, "host:port,host:port", as `addresses` gives them.
        timeout: seconds without an answer after which they count as unreachable.
        config: the user's options of librdkafka.
    """

    topic: str
    servers: str
    timeout: float = 30.0
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold passwords

    @classmethod
    def of(
        cls,
        topic: str,
        servers: str | Sequence[str],
        timeout: float,
        config: Mapping[str, Any] | None,
        ours: frozenset[str] = frozenset(),
        purpose: str = "",
    ) -> Connection:
        """What a user gives, with the options that `config` must not set and what they do, in a clause.

        Raises ConfigError for no name, no address, no time, and an option that is ours.
        """
        if not isinstance(topic, str) or not topic:
            raise ConfigError(f"topic: a topic's name is needed; found {topic!r}")
        at = addresses(f"{topic}: ", servers)
        number(f"{topic}: timeout", timeout, "above 0 seconds")
        if not isinstance(config, Mapping | None):
            msg = f"{topic}: config must be a mapping of librdkafka's options, or None; found {type(config).__name__}"
            raise ConfigError(msg)
        if taken := sorted(ours.intersection(config or {})):
            raise ConfigError(f"{topic}: config= must not set the options that {purpose}; found {', '.join(taken)}")
        return cls(topic, at, timeout, dict(config or {}))

    def meets(self, other: Connection) -> bool:
        """Whether it is the same topic, as far as the addresses tell."""
        mine, its = (set(each.servers.split(",")) for each in (self, other))
        return self.topic == other.topic and not mine.isdisjoint(its)

    def where(self, partition: int, offset: int) -> str:
        """A record's coordinates as text: `imagenet-train[3]@41872`."""
        return f"{self.topic}[{partition}]@{offset}"


def addresses(subject: str, servers: str | Sequence[str]) -> str:
    """They as librdkafka takes them, "host:port,host:port".

    Raises:
        ConfigError: with `subject`, for what is no address.
    """
    texts: list[object] = [servers] if isinstance(servers, str) or not isinstance(servers, Iterable) else [*servers]
    listed = [each for each in texts if isinstance(each, str)]
    if any("@" in each for each in listed):  # it is not shown: a password may stand there
        msg = f"{subject}servers must be addresses as host:port, without a user; sasl.* in config= say who it is"
        raise ConfigError(f"{msg}; found one with '@'")
    if len(listed) < len(texts):
        raise ConfigError(f"{subject}servers must be addresses as host:port, in a text or a list; found {servers!r}")
    wanted = [one.strip() for each in listed for one in each.split(",") if one.strip()]
    if not wanted:
        raise ConfigError(f"{subject}servers must be addresses as host:port; found {servers!r}")
    for one in wanted:
        protocol, _, address = one.rpartition("://")
        if protocol and protocol.lower() not in _PROTOCOLS:
            msg = f"{subject}servers must be addresses as host:port; found {one!r}: leave {protocol + '://'!r} out"
            raise ConfigError(msg)
        fits = _ADDRESS.fullmatch(address)
        if not fits or (fits["port"] and not 1 <= int(fits["port"]) <= _MOST):
            msg = f"{subject}servers must be addresses as host:port, with a port of 1 to {_MOST}; found {one!r}"
            raise ConfigError(msg)
    return ",".join(wanted)
