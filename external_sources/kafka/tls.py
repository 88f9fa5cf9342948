"""Why a connection by TLS was refused, in words that say what to change: librdkafka only says that it was."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dali_feed.errors import ConfigError

__all__ = ["check_files", "refused_by_tls", "speaks_tls", "told_by_tls"]

PROBE_SECONDS = 3.0
_AT = re.compile(r"ssl://([^/\s]+):(\d+)")
_OWN = ("ssl.certificate.location", "ssl.keystore.location", "ssl.certificate.pem")
_ALERTS = "bad certificate|unknown ca|certificate required|certificate expired|certificate revoked|certificate unknown"
_REFUSED = re.compile(f"certificate verify failed|alert (?:{_ALERTS}|unsupported certificate|access denied)")


def check_files(subject: str, config: Mapping[str, Any]) -> None:
    """ConfigError where an option names a file of keys or certificates that is not there."""
    for name, value in config.items():
        given = name.startswith("ssl.") and name.endswith(".location") and value not in (None, "", "probe")
        if given and not Path(str(value)).exists():
            msg = f"{subject}: {name} in config= must name a file; {str(value)!r} is not there"
            raise ConfigError(msg)


def refused_by_tls(said: str) -> bool:
    """Whether an error of librdkafka's is about a certificate: trying again changes nothing."""
    return "SSL" in said and bool(_REFUSED.search(said))


def told_by_tls(said: str, config: Mapping[str, Any]) -> str:
    """What librdkafka said of a certificate, in plain words; the server is asked once more to know them."""
    found = _AT.search(said)
    at = f"{found[1]}:{found[2]}" if found else "the broker"
    if "verify failed" not in said:
        own = any(map(config.get, _OWN))
        return (
            f"{at} needs a certificate of the client, and does not accept this one; check its dates, and that "
            "the broker trusts its authority"
            if own
            else f"{at} needs a certificate of the client; give ssl.certificate.location and ssl.key.location, or "
            "ssl.keystore.location"
        )
    why = _why(found[1], int(found[2]), config) if found else ""
    return f"the certificate of {at} is not accepted: {why or said}"


def speaks_tls(servers: str, config: Mapping[str, Any]) -> str:
    """The first server's address where it was talked to without TLS and wants it; else empty."""
    if "ssl" in str(config.get("security.protocol", "plaintext")).lower():
        return ""
    host, _, port = servers.split(",", maxsplit=1)[0].strip().rpartition(":")
    if not host or not port.isdecimal():
        return ""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _shaken(host.strip("[]"), int(port), context)
    except (OSError, ValueError):
        return ""
    return f"{host}:{port}"


def _why(host: str, port: int, config: Mapping[str, Any]) -> str:
    """What Python's TLS says of the server's certificate; empty where it has nothing against it, or cannot tell."""
    given, pem = config.get("ssl.ca.location"), config.get("ssl.ca.pem")
    authority = None if given in (None, "", "probe") else str(given)
    try:
        context = ssl.create_default_context(cafile=authority, cadata=str(pem) if pem else None)
        context.check_hostname = config.get("ssl.endpoint.identification.algorithm", "https") == "https"
        _shaken(host, port, context)
    except ssl.SSLCertVerificationError as error:
        return _cured(error.verify_message.rstrip("."))
    except (OSError, ValueError):
        return ""
    return ""


def _cured(why: str) -> str:
    """With what to do."""
    lower = why.lower()
    if "expired" in lower:
        return f"{why}; renew it on the broker"
    if "mismatch" in lower or "not valid for" in lower:
        return f"{why}; use an address that it names, or a certificate that names this one"
    return f"{why}; give the certificate of its authority in ssl.ca.location"


def _shaken(host: str, port: int, context: ssl.SSLContext) -> None:
    with (
        socket.create_connection((host, port), timeout=PROBE_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host),
    ):
        pass
