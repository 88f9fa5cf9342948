"""What librdkafka says, in our words: its errors, why a connection by TLS was refused, and its log lines.

librdkafka writes to stderr by default; here its lines go to the logger `dali_feed.kafka` at DEBUG, because
anything important in them is raised as an error of ours, with the address, the partition and the offset.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError

from dali_feed.errors import ConfigError, SourceChangedError, SourceDeniedError, SourceUnreachableError
from dali_feed.secrets import hidden

__all__ = [
    "BROKEN",
    "DENIED",
    "GONE",
    "LOG",
    "QUIET",
    "Trouble",
    "Wait",
    "check_files",
    "denied",
    "gone",
    "refused_by_tls",
    "remade",
    "speaks_tls",
    "told_by_tls",
    "unreachable",
]

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


LOG = logging.getLogger("dali_feed.kafka")

READING = "reading needs the rights Describe and Read on the topic"
DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
BROKEN = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.MSG_SIZE_TOO_LARGE})


class _Quiet:
    """The logger that confluent_kafka needs; it logs every line of librdkafka at DEBUG."""

    def log(self, level: int, text: str, *arguments: Any) -> None:
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("%s", hidden(text % arguments if arguments else text))


QUIET = _Quiet()


class Trouble:
    """librdkafka's error callback: keeps what it last said, for the message of the error that may follow."""

    def __init__(self) -> None:
        self.last = ""
        self.denied = ""
        self.gone = ""
        self._token = ""

    def __call__(self, error: KafkaError) -> None:
        """Keep the error."""
        said = hidden(error.str())
        if error.code() in DENIED or refused_by_tls(said):
            self.denied = self._token or said
        elif error.code() in GONE:
            self.gone = said
        elif error.code() != KafkaError._ALL_BROKERS_DOWN or not self.last:  # says less than what came before it
            self.last = said

    def no_token(self, why: str) -> None:
        """Keep why the user's function gave no new token; empty: it did."""
        self._token = why

    def clear(self) -> None:
        """Forget it: there was progress."""
        self.last = self.denied = self.gone = ""


def denied(
    subject: str, servers: str, said: str, config: Mapping[str, Any] | None = None, needs: str = READING
) -> SourceDeniedError:
    """No rights, which `needs` names, or credentials or a certificate that are not accepted; `config`: the client's."""
    if refused_by_tls(said):
        return SourceDeniedError(f"{subject}: a TLS connection must be trusted; {told_by_tls(said, config or {})}")
    if "SASL" in said:
        return SourceDeniedError(
            f"{subject}: the broker must accept the credentials; {servers} refuses: {said}; check sasl.mechanism, "
            "sasl.username and sasl.password, or the token, in config="
        )
    return SourceDeniedError(
        f"{subject}: {needs}; {servers} refuses: {said}; "
        "check security.protocol, sasl.* and ssl.* in config= and the topic's ACLs"
    )


def gone(subject: str, servers: str, said: str = "") -> SourceChangedError:
    """Nothing has the name any more."""
    return SourceChangedError(
        f"{subject}: it is no longer at {servers}; the topic was deleted{': ' + said if said else ''}"
    )


def remade(subject: str, known: str, found: str) -> SourceChangedError:
    """Another topic has taken the name."""
    return SourceChangedError(
        f"{subject}: the topic must be the one that the snapshot was taken of, whose id is {known}; found one of "
        f"id {found}: the topic was deleted and made again; take a new snapshot, and start without the old state"
    )


def unreachable(subject: str, servers: str, seconds: float, said: str) -> SourceUnreachableError:
    """The error for no answer in `seconds`."""
    return SourceUnreachableError(
        f"{subject}: the broker must answer; {servers} did not answer for {seconds:.1f} "
        f"s{': ' + said if said else ''}; check the address and that the broker runs, or raise timeout="
    )


class Wait:
    """How long nothing came, within one run."""

    def __init__(self, timeout: float) -> None:
        self._half = timeout / 2
        self._since = time.monotonic()
        self._renewed = False
        self.end_seen: int | None = None
        self.refused = -1  # the last offset that the broker said it does not have

    @property
    def seconds(self) -> float:
        """Since the last record, or the begin."""
        return time.monotonic() - self._since

    def progress(self) -> None:
        """A record came."""
        self._since = time.monotonic()
        self._renewed = False
        self.end_seen = None

    def due(self) -> bool:
        """True once, when half of the timeout has passed."""
        if self._renewed or self.seconds < self._half:
            return False
        self._renewed = True
        return True
