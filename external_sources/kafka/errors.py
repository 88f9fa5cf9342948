"""librdkafka's errors in our words, and its log lines in Python's logging.

librdkafka writes to stderr by default; here its lines go to the logger `dali_feed.kafka` at DEBUG, because
anything important in them is raised as an error of ours, with the address, the partition and the offset.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError

from dali_feed.errors import SourceChangedError, SourceDeniedError, SourceUnreachableError
from dali_feed.external_sources.kafka.tls import refused_by_tls, told_by_tls
from dali_feed.secrets import hidden

__all__ = ["BROKEN", "DENIED", "GONE", "LOG", "QUIET", "Trouble", "denied", "gone", "remade", "unreachable"]

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
