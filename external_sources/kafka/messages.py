"""Whole records of a topic, with key and headers, one after another: for what is rare, not for an epoch.

The law: what is there is given, what is not there is left out, and silence ends. An offset that retention
took, a hole and the end of the partition are no error here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from dali_feed.errors import SourceError
from dali_feed.external_sources.kafka.errors import DENIED, GONE, Trouble, denied, unreachable
from dali_feed.external_sources.kafka.options import SLICE_SECONDS, KafkaOptions, connect
from dali_feed.quarantine.letters import Original

__all__ = ["as_original", "messages", "original"]

_END = frozenset({KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET})


def messages(options: KafkaOptions, partition: int, start: int, stop: int) -> Iterator[Message]:
    """The records at offsets start..stop-1 that are there; none from the first offset on that is gone.

    Raises:
        SourceUnreachableError: nothing came for the timeout of `options`.
        SourceDeniedError: no rights.
        SourceError: what is there cannot be read.
    """
    where = f"{options.topic}[{partition}]@{start}"
    trouble = Trouble()
    consumer = connect(options, trouble)
    try:
        consumer.assign([TopicPartition(options.topic, partition, start)])
        want = start
        while want < stop:
            message = _next(options, consumer, trouble, where)
            offset = None if message is None else message.offset()
            if message is None or offset is None or offset >= stop:
                return
            yield message
            want = offset + 1
    except KafkaException as error:
        msg = f"{where} at {options.servers}: reading failed: {error.args[0].str()}"
        raise SourceError(msg) from error
    finally:
        consumer.close()


def _next(options: KafkaOptions, consumer: Consumer, trouble: Trouble, where: str) -> Message | None:
    """The next record; None where there is none."""
    since = time.monotonic()
    while (seconds := time.monotonic() - since) < options.timeout:
        message = consumer.poll(SLICE_SECONDS)
        error = None if message is None else message.error()
        if trouble.denied or (error is not None and error.code() in DENIED):
            said = trouble.denied or ("" if error is None else error.str())
            raise denied(where, options.servers, said, options.config)
        if error is None:
            if message is not None:
                return message
        elif error.code() in _END:
            return None
        elif error.code() in GONE:
            trouble.gone = error.str()
        elif error.fatal():
            msg = f"{where}: the broker's data cannot be read: {error.str()}"
            raise SourceError(msg)
        else:
            trouble.last = error.str()
    if trouble.gone:
        return None
    raise unreachable(where, options.servers, seconds, trouble.last)


def original(options: KafkaOptions, partition: int, position: int) -> Original | None:
    """The record at an offset in full; None where it is gone. Raises as `messages`."""
    for message in messages(options, partition, position, position + 1):
        return as_original(message)
    return None


def as_original(message: Message) -> Original:
    """Key, value and headers as they are."""
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return Original(_bytes(message.key()), _bytes(message.value()), tuple((name, _bytes(text)) for name, text in pairs))


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
