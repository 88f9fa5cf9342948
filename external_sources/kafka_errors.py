"""librdkafka's errors in our words, and its log lines in Python's logging.

librdkafka writes to stderr by default; here its lines go to the logger `dali_feed.kafka` at DEBUG, because
anything important in them is raised as an error of ours, with the address, the partition and the offset.
"""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import KafkaError

from dali_feed.errors import SourceChangedError, SourceDeniedError, SourceUnreachableError

__all__ = ["DENIED", "GONE", "LOG", "QUIET", "Trouble", "denied", "gone", "remade", "unreachable"]

LOG = logging.getLogger("dali_feed.kafka")

DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


class _Quiet:
    """The logger that confluent_kafka needs; it logs every line of librdkafka at DEBUG."""

    def log(self, level: int, text: str, *arguments: Any) -> None:
        LOG.debug(text, *arguments)


QUIET = _Quiet()


class Trouble:
    """librdkafka's error callback: keeps what it last said, for the message of the error that may follow."""

    def __init__(self) -> None:
        self.last = ""
        self.denied = ""
        self.gone = ""

    def __call__(self, error: KafkaError) -> None:
        """Keep the error."""
        if error.code() in DENIED:
            self.denied = error.str()
        elif error.code() in GONE:
            self.gone = error.str()
        elif error.code() != KafkaError._ALL_BROKERS_DOWN or not self.last:  # says less than what came before it
            self.last = error.str()

    def clear(self) -> None:
        """Forget it: there was progress."""
        self.last = self.denied = self.gone = ""


def denied(subject: str, servers: str, said: str) -> SourceDeniedError:
    """No rights, or credentials that are not accepted."""
    return SourceDeniedError(
        f"{subject}: reading needs the rights Describe and Read on the topic; {servers} refuses: {said}; "
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
        f"{subject}: it must be the topic that the snapshot was taken of, whose id is {known}; found one of id {found}:"
        " the topic was deleted and made again; take a new snapshot, and start without the old state"
    )


def unreachable(subject: str, servers: str, seconds: float, said: str) -> SourceUnreachableError:
    """The error for no answer in `seconds`."""
    return SourceUnreachableError(
        f"{subject}: the broker must answer; {servers} did not for {seconds:.1f} s"
        f"{': ' + said if said else ''}; check the address and that the broker runs, or raise timeout="
    )
