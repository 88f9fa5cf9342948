"""Bootstrap addresses as users write them.

librdkafka reads the digits that a port begins with, takes 70000 for 4464, and leaves out an address whose protocol it
does not know: it would then ask for a broker where none was meant, until the timeout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dali_feed.errors import ConfigError

__all__ = ["addresses"]

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
