"""Which topic it is and not just what it is called: one that was deleted and made again has another id.

The law: a read counts only after the id has been checked once more. A consumer goes on at the old offsets of a new
topic without an error, whenever its fetches happen to lie within it.
"""

from __future__ import annotations

import threading
import time

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from dali_feed.errors import ClosedError
from dali_feed.external_sources.kafka_errors import DENIED, GONE, Trouble, denied, unreachable
from dali_feed.external_sources.kafka_options import SLICE_SECONDS, KafkaOptions, admin_options

__all__ = ["Asker"]

_ZERO = "AAAAAAAAAAAAAAAAAAAAAA"  # what brokers that know no ids say
_NO_ID = {KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION}
_GONE_SECONDS = 2.0  # a restarted broker may say 'unknown' for a moment


class Asker:
    """Asks for the topic's id over a connection of its own, kept between questions: a millisecond each."""

    def __init__(self, options: KafkaOptions, stop: threading.Event | None = None) -> None:
        self._options, self._stop = options, stop or threading.Event()
        self._trouble = Trouble()
        self._admin = self._connected()

    def _connected(self) -> AdminClient:
        """A client; one whose broker died may wait for that one for ever, or its connection may be stuck."""
        return AdminClient(admin_options(self._options, self._trouble))

    def answers(self) -> bool:
        """Whether an admin is answered: librdkafka's mock cluster names a controller that is none of its brokers."""
        begun = time.monotonic()
        while True:
            try:
                cluster = self._admin.list_topics(self._options.topic, timeout=1.0)
            except KafkaException as error:
                self._said(error, self._options.topic, begun)
                continue
            if cluster.controller_id >= 0 or time.monotonic() - begun > _GONE_SECONDS:
                return cluster.controller_id in cluster.brokers
            self._stop.wait(SLICE_SECONDS)  # none is elected at the moment

    def ask(self, where: str) -> str | None:
        """The id; "" where the brokers have none (before Kafka 2.8), None where there is no such topic.

        Raises SourceUnreachableError after the source's timeout, SourceDeniedError, ClosedError at the stop event.
        """
        begun = time.monotonic()
        while True:
            question = self._admin.describe_topics(TopicCollection([self._options.topic]), request_timeout=1.0)
            try:
                found = str(next(iter(question.values())).result().topic_id)
            except KafkaException as error:
                code = error.args[0].code()
                if code in _NO_ID:
                    return ""
                if code not in GONE:
                    self._said(error, where, begun)
                elif time.monotonic() - begun > _GONE_SECONDS:
                    return None
                self._stop.wait(SLICE_SECONDS)
            else:
                return "" if found == _ZERO else found

    def _said(self, error: KafkaException, where: str, begun: float) -> None:
        """Wait on, or raise."""
        if self._stop.is_set():
            msg = f"{where}: reading was stopped"
            raise ClosedError(msg)
        self._admin.poll(0)  # runs the error callback, which knows more than "timed out"
        servers, said = self._options.servers, self._trouble.last or error.args[0].str()
        if self._trouble.denied or error.args[0].code() in DENIED:
            raise denied(where, servers, self._trouble.denied or said)
        if time.monotonic() - begun >= self._options.timeout:
            raise unreachable(where, servers, time.monotonic() - begun, said)
        self._admin = self._connected()
