"""What librdkafka says, in our words: its errors, why a connection by TLS was refused, and its log lines.

The law: one table says what an error means (`meaning`), and one loop repeats a question until it is answered
(`Patience`); whoever reads, writes or asks uses the two.

librdkafka writes to stderr by default; here its lines go to the logger `dali_feed.kafka` at DEBUG, because
anything important in them is raised as an error of ours, with the address, the partition and the offset.
"""

from __future__ import annotations

import difflib
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from dali_feed.errors import (
    ClosedError,
    SourceChangedError,
    SourceDeniedError,
    SourceError,
    SourceUnreachableError,
)
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.secrets import hidden

LOG = logging.getLogger("dali_feed.kafka")
_T = TypeVar("_T")

READING = "reading needs the rights Describe and Read on the topic"
GROUP_RIGHT = "joining a group needs the right Read on it, and Describe and Read on the topic"
PAUSE_SECONDS = 0.05  # between two questions: an answer that will change soon, such as an election's
SLICE_SECONDS = 1.0  # of one question, at most
SOON_SECONDS = 0.25  # of the first one
SILENT_SECONDS = 3.0  # before we look whether a server that says nothing speaks TLS
PROBE_SECONDS = 3.0


class Meaning(Enum):
    """What an error of librdkafka means for whoever hears it."""

    END = auto()  # the end of a partition
    RESET = auto()  # the broker does not have the offset
    DENIED = auto()  # no rights, or credentials that are not accepted
    NO_GROUP = auto()  # no rights on the group, which concerns members alone: others name one that they never join
    GONE = auto()  # no such topic or partition, perhaps just for a moment
    BROKEN = auto()  # data that cannot be read
    SPOILT = auto()  # a batch of records that cannot be unpacked: readers step over it
    REFUSED = auto()  # for good: what was asked for, or the client itself
    PASSES = auto()  # of a connection, a coordinator or an election: it is tried again


_CODES = {
    Meaning.END: "_PARTITION_EOF",
    Meaning.RESET: "_AUTO_OFFSET_RESET",
    Meaning.NO_GROUP: "GROUP_AUTHORIZATION_FAILED",
    Meaning.DENIED: "TOPIC_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    " SASL_AUTHENTICATION_FAILED _AUTHENTICATION",
    Meaning.GONE: "UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC _UNKNOWN_PARTITION",
    Meaning.BROKEN: "MSG_SIZE_TOO_LARGE",
    Meaning.SPOILT: "_BAD_MSG _BAD_COMPRESSION",
    Meaning.REFUSED: "_FATAL GROUP_MAX_SIZE_REACHED INCONSISTENT_GROUP_PROTOCOL INVALID_COMMIT_OFFSET_SIZE"
    " INVALID_CONFIG INVALID_GROUP_ID INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_SESSION_TIMEOUT"
    " OFFSET_METADATA_TOO_LARGE POLICY_VIOLATION TOPIC_DELETION_DISABLED UNSUPPORTED_ASSIGNOR",
}
NO_RIGHTS = (Meaning.DENIED, Meaning.NO_GROUP)


def codes(names: str) -> frozenset[int]:
    """Of librdkafka's errors, by their names."""
    return frozenset(getattr(KafkaError, name) for name in names.split())


_MEANINGS = {code: kind for kind, names in _CODES.items() for code in codes(names)}


def meaning(error: KafkaError) -> Meaning:
    """What an error means."""
    return _MEANINGS.get(error.code(), Meaning.REFUSED if error.fatal() else Meaning.PASSES)


class _Quiet:
    """The logger that confluent_kafka needs; it logs every line of librdkafka at DEBUG."""

    def log(self, level: int, text: str, *arguments: Any) -> None:
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("%s", hidden(text % arguments if arguments else text))


QUIET = _Quiet()


class Trouble:
    """librdkafka's error callback: keeps what it last said, for the message of the error that may follow.

    Attributes:
        last: of what passes.
        denied: that there are no rights, or that credentials are not accepted.
        gone: that there is no such topic or partition.
    """

    def __init__(self) -> None:
        self.last = ""
        self.denied = ""
        self.gone = ""
        self._token = ""

    def __call__(self, error: KafkaError) -> None:
        """Keep the error."""
        words, kind = hidden(error.str()), meaning(error)
        if kind is Meaning.DENIED or _refused_by_tls(words):
            self.denied = self._token or words
        elif kind is Meaning.GONE:
            self.gone = words
        elif error.code() != KafkaError._ALL_BROKERS_DOWN or not self.last:  # says less than what came before it
            self.last = words

    def no_token(self, why: str) -> None:
        """Keep why the user's function gave no new token; empty: it did."""
        self._token = why

    def clear(self) -> None:
        """Forget it: there was progress."""
        self.last = self.denied = self.gone = ""

    def judge(self, error: KafkaError, to: Connection, where: str, needs: str = READING) -> None:
        """Raise what ends the reading; keep what does not. For events that are no end and no lost offset."""
        kind = meaning(error)
        if kind is Meaning.DENIED or (kind is Meaning.NO_GROUP and needs != READING):
            raise denied(to, error.str(), where, needs)
        if kind in (Meaning.BROKEN, Meaning.SPOILT, Meaning.REFUSED):
            raise SourceError(f"{where}: the broker's data cannot be read: {error.str()}")
        if kind is Meaning.GONE:
            self.gone = error.str()  # looked into when nothing more comes
        else:
            self.last = error.str()  # of the connection, or the coordinator: librdkafka tries again


class NotYetError(Exception):
    """An answer that is none yet; the text says why."""


class Patience:
    """How long nothing has come, and the one loop that asks until an answer does. Used by one thread.

    `needs` names the rights where they are missing; `probe`: a silent server is asked if it wants TLS.
    """

    def __init__(
        self,
        to: Connection,
        trouble: Trouble,
        stop: threading.Event | None = None,
        *,
        seconds: float | None = None,
        needs: str = READING,
        probe: bool = False,
    ) -> None:
        self._to, self._trouble, self._needs, self._probe = to, trouble, needs, probe
        self._stop = threading.Event() if stop is None else stop
        self._most = to.timeout if seconds is None else seconds
        self.progress()

    @property
    def seconds(self) -> float:
        """Since there was progress, or the begin."""
        return time.monotonic() - self._since

    @property
    def over(self) -> bool:
        """Whether the timeout has passed."""
        return self.seconds >= self._most

    def progress(self) -> None:
        """Something came."""
        self._since, self._renewed = time.monotonic(), False

    def half_over(self) -> bool:
        """True once, when half of the timeout has passed."""
        if self._renewed or self.seconds < self._most / 2:
            return False
        self._renewed = True
        return True

    def check(self, where: str, last: Exception | None = None) -> None:
        """Raise ClosedError, SourceDeniedError or SourceUnreachableError where waiting on is no use.

        `last` is the last answer that was none.
        """
        if self._stop.is_set():
            raise ClosedError(f"{where}: reading was stopped")
        if self._trouble.denied:
            raise denied(self._to, self._trouble.denied, where, self._needs)
        if self._probe and self.seconds >= min(SILENT_SECONDS, self._most):
            self._probe = False
            if at := _speaks_tls(self._to):
                raise SourceDeniedError(f"{where}: {at} uses TLS; set security.protocol to SSL or SASL_SSL in config=")
        if self.over:
            words = "" if last is None else last.args[0].str() if isinstance(last, KafkaException) else str(last)
            raise unreachable(self._to, self.seconds, self._trouble.last or words, where) from last

    def until(
        self,
        ask: Callable[[float], _T],
        where: str = "",
        again: Callable[[KafkaError], bool] = lambda _: True,
    ) -> _T:
        """What `ask` gives, with the seconds that it may take; again until its error is none that passes.

        `again` says which pass, but for missing rights; others are raised as they are. Raises what `check` does.
        """
        where = where or self._to.topic
        last: Exception | None = None
        while True:
            self.check(where, last)
            try:
                waited = self.seconds  # as long again, or credentials that are refused at once would show late
                return ask(max(PAUSE_SECONDS, min(max(SOON_SECONDS, waited), SLICE_SECONDS, self._most - waited)))
            except NotYetError as error:
                last = error
            except KafkaException as error:
                if meaning(error.args[0]) in NO_RIGHTS:
                    raise denied(self._to, self._trouble.denied or error.args[0].str(), where, self._needs) from error
                if not again(error.args[0]):
                    raise
                last = error
            self._stop.wait(PAUSE_SECONDS)


def denied(to: Connection, words: str, where: str = "", needs: str = READING) -> SourceDeniedError:
    """No rights, which `needs` names, or credentials or a certificate that are not accepted."""
    where = where or to.topic
    if _refused_by_tls(words):
        return SourceDeniedError(f"{where}: a TLS connection must be trusted; {_words_of_tls(words, to.config)}")
    if "SASL" in words:
        return SourceDeniedError(
            f"{where}: the broker must accept the credentials; {to.servers} refuses: {words}; check sasl.mechanism, "
            "sasl.username and sasl.password, or the token, in config="
        )
    return SourceDeniedError(
        f"{where}: {needs}; {to.servers} refuses: {words}; "
        "check security.protocol, sasl.* and ssl.* in config= and the topic's ACLs"
    )


def gone(to: Connection, words: str = "", where: str = "") -> SourceChangedError:
    """Nothing has the name any more."""
    return SourceChangedError(
        f"{where or to.topic}: it is no longer at {to.servers}; the topic was deleted{': ' + words if words else ''}"
    )


def failed(to: Connection, error: KafkaException, doing: str = "reading") -> SourceError:
    """Librdkafka could not do it."""
    return SourceError(f"{to.topic} at {to.servers}: {doing} failed: {error.args[0].str()}")


def check_same(where: str, known: str, now: str) -> None:
    """Raise SourceChangedError where another topic has taken the name of the one whose id is known. "": it is not."""
    if "" not in (known, now) and known != now:
        raise SourceChangedError(
            f"{where}: the topic must be the one that the snapshot was taken of, whose id is {known}; found one of "
            f"id {now}: the topic was deleted and made again; take a new snapshot, and start without the old state"
        )


def some(parts: Sequence[object], most: int = 5) -> str:
    """Some of them, and how many more there are."""
    return ", ".join(map(str, parts[:most])) + (f" and {len(parts) - most} more" if len(parts) > most else "")


def similar(name: str, names: Iterable[str], of: str) -> str:
    """Which names are like this one, for people."""
    known = list(names)
    close = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    return f"did you mean {', '.join(close)}?" if close else f"none of {of} ({len(known)}) has a similar name"


def partitions_text(partitions: Collection[int]) -> str:
    """`partition 3`, or `partitions 0, 1 and 4 more`."""
    return f"partition{'s' * (len(partitions) != 1)} {some(sorted(partitions))}"


def unreachable(to: Connection, seconds: float, words: str, where: str = "") -> SourceUnreachableError:
    """The error for no answer in `seconds`."""
    return SourceUnreachableError(
        f"{where or to.topic}: the broker must answer; {to.servers} did not answer for {seconds:.1f} "
        f"s{': ' + words if words else ''}; check the address and that the broker runs, or raise timeout="
    )


# Why a connection by TLS was refused, in words that say what to change: librdkafka only says that it was.
_AT = re.compile(r"ssl://([^/\s]+):(\d+)")
_OWN = ("ssl.certificate.location", "ssl.keystore.location", "ssl.certificate.pem")
_ALERTS = "bad certificate|unknown ca|certificate required|certificate expired|certificate revoked|certificate unknown"
_REFUSED = re.compile(f"certificate verify failed|alert (?:{_ALERTS}|unsupported certificate|access denied)")


def _refused_by_tls(words: str) -> bool:
    """Whether an error of librdkafka's is about a certificate: trying again changes nothing."""
    return "SSL" in words and bool(_REFUSED.search(words))


def _words_of_tls(words: str, config: Mapping[str, Any]) -> str:
    """What librdkafka said of a certificate, in plain words; the server is asked once more to know them."""
    server = _AT.search(words)
    at = f"{server[1]}:{server[2]}" if server else "the broker"
    if "verify failed" not in words:
        if any(map(config.get, _OWN)):
            return (
                f"{at} needs a certificate of the client, and does not accept this one; check its dates, and that "
                "the broker trusts its authority"
            )
        return (
            f"{at} needs a certificate of the client; give ssl.certificate.location and ssl.key.location, or "
            "ssl.keystore.location"
        )
    why = _why(server[1], int(server[2]), config) if server else ""
    return f"the certificate of {at} is not accepted: {why or words}"


def _speaks_tls(to: Connection) -> str:
    """The first server's address where it was talked to without TLS and wants it; else empty."""
    if "ssl" in str(to.config.get("security.protocol", "plaintext")).lower():
        return ""
    host, _, port = to.servers.split(",", maxsplit=1)[0].strip().rpartition(":")
    if not host or not port.isdecimal():
        return ""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _shake_hands(host.strip("[]"), int(port), context)
    except (OSError, ValueError):
        return ""
    return f"{host}:{port}"


def _why(host: str, port: int, config: Mapping[str, Any]) -> str:
    """What Python's TLS says of the server's certificate, and the cure; empty where it has nothing against it."""
    authority, pem = config.get("ssl.ca.location"), config.get("ssl.ca.pem")
    file = None if authority in (None, "", "probe") else str(authority)
    try:
        context = ssl.create_default_context(cafile=file, cadata=str(pem) if pem else None)
        context.check_hostname = config.get("ssl.endpoint.identification.algorithm", "https") == "https"
        _shake_hands(host, port, context)
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message.rstrip(".")
    except (OSError, ValueError):
        return ""
    else:
        return ""
    lower = why.lower()
    if "expired" in lower:
        return f"{why}; renew it on the broker"
    if "mismatch" in lower or "not valid for" in lower:
        return f"{why}; use an address that it names, or a certificate that names this one"
    return f"{why}; give the certificate of its authority in ssl.ca.location"


def _shake_hands(host: str, port: int, context: ssl.SSLContext) -> None:
    with (
        socket.create_connection((host, port), timeout=PROBE_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host),
    ):
        pass
