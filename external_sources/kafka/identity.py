"""Which topic it is and not just what it is called: one that was deleted and made again has another id.

The law: what is read counts once it is known which topic it was read from. A consumer goes on at the old offsets of a
new topic without a word, whenever its fetches happen to lie within it.

There are two ways to know. Since Kafka 3.1 a fetch names the topic by its id and the broker refuses any other, so a
consumer's records are of the id that it stands at; and it says so when it learns one: a line of its log, which comes to
us through the queue of its records, and ahead of those that it concerns. This costs nothing. Where the line never came
(older brokers, another librdkafka) the id is asked for after each read.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from dali_feed.errors import ClosedError
from dali_feed.external_sources.kafka.errors import DENIED, GONE, QUIET, Trouble, denied, gone, remade, unreachable
from dali_feed.external_sources.kafka.options import SLICE_SECONDS, KafkaOptions, admin_options

__all__ = ["Asker", "Witness", "identify"]

_ZERO = "AAAAAAAAAAAAAAAAAAAAAA"  # what brokers that know no ids say
_NO_ID = {KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION}
_GONE_SECONDS = 2.0  # a restarted broker may say 'unknown' for a moment
_LEARNT = re.compile(r"Topic (\S+) changed id from \S+ to (\S+)")  # from _ZERO, the first time
_FETCHES = re.compile(r"ApiKey Fetch \(1\) Versions \d+\.\.(\d+)")  # of each broker, when it is connected to
_BY_ID = 13  # the first version of a fetch that names topics by their ids


class Witness:
    """A consumer's logger, which hears at which topic of a name its fetches are; see the law of this file.

    In librdkafka (rd_kafka_topic_metadata_update) the line is queued before the id is set, and the id before the next
    fetch is made with it; a response to the id before is thrown away. With `log.queue`, which confluent_kafka sets for
    any logger, lines stand in the consumer's own queue, and before records.
    """

    DEBUG = "metadata,feature"  # what librdkafka must tell for this: some lines per connection, none per fetch

    def __init__(self, topic: str, *, aloud: bool) -> None:
        self._topic, self._aloud = topic, aloud
        self._by_name = self._by_id = False
        self.topic_id = ""

    def log(self, level: int, text: str, *arguments: Any) -> None:
        """Listen to a line, and pass it on; one that only we asked for not (`aloud`: the user did too)."""
        if level <= logging.DEBUG:
            line = text % arguments if arguments else text
            if learnt := _LEARNT.search(line):
                if learnt[1] == self._topic:
                    self.topic_id = "" if learnt[2] == _ZERO else learnt[2]
            elif fetches := _FETCHES.search(line):
                by_id = int(fetches[1]) >= _BY_ID
                self._by_id, self._by_name = self._by_id or by_id, self._by_name or not by_id
            if not self._aloud:
                return
        QUIET.log(level, text, *arguments)

    def vouches(self, topic_id: str) -> bool:
        """Whether every record that the consumer has given so far is of this id."""
        return self.topic_id == topic_id != "" and self._by_id and not self._by_name

    def doubts(self, topic_id: str) -> bool:
        """Whether what it gives may be of another."""
        return "" not in (self.topic_id, topic_id) and self.topic_id != topic_id


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
            raise denied(where, servers, self._trouble.denied or said, self._options.config)
        if time.monotonic() - begun >= self._options.timeout:
            raise unreachable(where, servers, time.monotonic() - begun, said)
        self._admin = self._connected()


def identify(asker: Asker, known: str, where: str, servers: str) -> None:
    """Raise SourceChangedError where the topic is gone, or no longer the one whose id is `known`."""
    found = asker.ask(where)
    if found is None:
        raise gone(where, servers)
    if found not in (known, ""):
        raise remade(where, known, found)
